/* SPDX-License-Identifier: Apache-2.0
 *
 * quern eval: how well a model tells a text, and how far it is from another one.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/shared.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void show_chunks(void *user, int64_t done, int64_t total)
{
    const double *begun = user;
    if (done < total)
        fprintf(stderr, "\rchunk %lld of %lld, %.0f s ", (long long)done + 1, (long long)total,
                qn__seconds() - *begun);
    else
        fprintf(stderr, "\r\033[K");
}

/* JSON has no infinity. */
static void print_number(const char *name, double x)
{
    if (isfinite(x))
        printf(",\"%s\":%.10g", name, x);
    else
        printf(",\"%s\":null", name);
}

static void print_evaluation_json(const qn_evaluation *e, const qn_evaluation_options *o,
                                  double taken)
{
    printf("{\"tokens\":%llu,\"chunks\":%llu,\"context\":%lld,\"stride\":%lld",
           (unsigned long long)e->tokens, (unsigned long long)e->chunks, (long long)o->context,
           (long long)o->stride);
    print_number("perplexity", e->perplexity);
    print_number("loss", e->loss);
    print_number("loss_error", e->loss_error);
    if (o->against) {
        print_number("against_perplexity", e->against_perplexity);
        print_number("kl", e->kl);
        print_number("kl_error", e->kl_error);
        print_number("kl_median", e->kl_median);
        print_number("kl_99", e->kl_99);
        print_number("kl_max", e->kl_max);
        print_number("same_top", e->same_top);
    }
    print_number("seconds", taken);
    printf("}\n");
}

static void print_evaluation(const qn_evaluation *e, const qn_evaluation_options *o, double taken)
{
    printf("scored      %llu tokens in %llu chunks of %lld, %.1f s\n",
           (unsigned long long)e->tokens, (unsigned long long)e->chunks, (long long)o->context,
           taken);
    printf("perplexity  %.4f +/- %.4f\n", e->perplexity, e->perplexity * e->loss_error);
    if (!o->against)
        return;
    printf("against     %.4f, so %+.3f %%\n", e->against_perplexity,
           100 * (e->perplexity / e->against_perplexity - 1));
    printf("KL          %.6g +/- %.2g; median %.3g, 99 %% below %.3g, largest %.3g\n", e->kl,
           e->kl_error, e->kl_median, e->kl_99, e->kl_max);
    printf("same top    %.2f %%\n", 100 * e->same_top);
}

static qn_status read_tokens(const arguments *a, const qn_model *model, qn_tokens *ids,
                             qn_error *err)
{
    char *text;
    size_t size;
    if (!qn_model_tokenizer(model))
        return qn__fail(err, QN_NOT_FOUND, "the model has no tokenizer");
    if (read_input(a->prompt_file, &text, &size, err) != QN_OK)
        return err->code;
    qn_tokenizer_encode(qn_model_tokenizer(model), text, size,
                        QN_ADD_SPECIAL | (a->parse_special ? QN_PARSE_SPECIAL : 0), ids, err);
    free(text);
    return err->code;
}

/* Where a text begins with bos, each chunk does. */
static const int32_t *first_token(const qn_model *model, const qn_tokens *ids)
{
    return ids->n && ids->ids[0] == qn_tokenizer_bos(qn_model_tokenizer(model)) ? ids->ids : NULL;
}

static int evaluate(const arguments *a, qn_model *model, qn_model *against)
{
    qn_error err = {0};
    qn_tokens ids = {0};
    qn_evaluation e = QN_INIT(qn_evaluation);
    double begun = qn__seconds();
    qn_evaluation_options o = {.size = sizeof o,
                               .context = a->context > 0 ? a->context : 512,
                               .stride = a->stride > 0 ? a->stride : 0,
                               .chunks = a->chunks > 0 ? a->chunks : 0,
                               .against = against,
                               .cancel = &interrupted,
                               .progress = isatty(STDERR_FILENO) ? show_chunks : NULL,
                               .progress_user = &begun};
    cache_types types;
    if (cache_types_of(a, &types, &err) == QN_OK && read_tokens(a, model, &ids, &err) == QN_OK) {
        o.cache_type_k = types.k;
        o.cache_type_v = types.v;
        o.begin = first_token(model, &ids);
        if (qn_evaluate(model, ids.ids, ids.n, &o, &e, &err) == QN_OK)
            (a->json ? print_evaluation_json : print_evaluation)(&e, &o, qn__seconds() - begun);
    }
    qn_tokens_free(&ids);
    return err.code == QN_OK ? 0 : failed(&err);
}

/* The second model: another one, which has no adapter of the first, or the same with other
 * products.
 */
static int open_against(loaded *l, const arguments *a)
{
    arguments other = *a;
    other.model = a->against ? a->against : a->model;
    other.adapter = a->against ? NULL : a->adapter;
    other.products = a->against_products ? a->against_products : a->products;
    return open_loaded(l, &other, false);
}

static bool check_usage(const arguments *a)
{
    int64_t context = a->context > 0 ? a->context : 512;
    if (!a->prompt_file)
        fprintf(stderr, "quern eval: which text? Name its file with -f; - is standard input\n");
    else if (a->stride > context)
        fprintf(stderr, "quern eval: --stride %lld leaves out what chunks of %lld do not reach\n",
                (long long)a->stride, (long long)context);
    return a->prompt_file && a->stride <= context;
}

int command_eval(arguments *a)
{
    if (!check_usage(a))
        return 2;
    catch_interrupts(true);
    loaded model, against = {.model = NULL};
    int code = open_loaded(&model, a, false);
    if (!code && (a->against || a->against_products))
        code = open_against(&against, a);
    if (!code)
        code = evaluate(a, model.model, against.model);
    close_loaded(&against);
    close_loaded(&model);
    return code;
}
