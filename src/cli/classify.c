/* SPDX-License-Identifier: Apache-2.0
 *
 * quern classify: how probable labels, or single tokens, are behind texts.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/logprobs.h"
#include "cli/texts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 1 << 15, TOP = 5, SHOWN = 60 };

typedef struct classification {
    const arguments *a;
    const loaded *l;
    text_source source;
    text_list texts;
    qn_tokens label_ids[MOST_WORDS];
    qn_ids labels[MOST_WORDS];
    size_t longest; /* tokens of a label */
    size_t top;
    uint64_t n_done, n_tokens;
    double seconds;
} classification;

/* ---- output ---------------------------------------------------------------------------------- */

/* The beginning of the text, on one line. */
static void print_shown(const text_item *item)
{
    const char *text = item->custom_id ? item->custom_id : item->text ? item->text : "";
    size_t n = strlen(text), shown = n < SHOWN ? n : SHOWN;
    while (shown < n && (text[shown] & 0xc0) == 0x80) /* whole characters */
        shown--;
    putchar('\t');
    for (size_t i = 0; i < shown; i++)
        putchar((unsigned char)text[i] < ' ' ? ' ' : text[i]);
    puts(shown < n ? " ..." : "");
}

static void begin_object(const classification *c, const text_item *item, uint64_t index)
{
    (void)c;
    printf("{\"index\":%llu", (unsigned long long)index);
    if (item->custom_id) {
        printf(",\"custom_id\":");
        print_json_string(stdout, item->custom_id, strlen(item->custom_id));
    }
    printf(",\"prompt_tokens\":%zu", item->ids.n);
}

static void print_labels_json(const classification *c, const qn_label_score *scores)
{
    const char *const *names = c->a->labels.word;
    size_t best = 0;
    for (size_t i = 1; i < c->a->labels.n; i++)
        best = scores[i].logprob > scores[best].logprob ? i : best;
    printf(",\"label\":");
    print_json_string(stdout, names[best], strlen(names[best]));
    printf(",\"labels\":[");
    for (size_t i = 0; i < c->a->labels.n; i++) {
        printf("%s{\"label\":", i ? "," : "");
        print_json_string(stdout, names[i], strlen(names[i]));
        printf(",\"probability\":%.9g,\"logprob\":", scores[i].probability);
        print_logprob(stdout, scores[i].logprob);
        putchar('}');
    }
    printf("]}\n");
}

static void print_labels(const classification *c, const qn_label_score *scores)
{
    for (size_t i = 0; i < c->a->labels.n; i++)
        printf("%s%.4f %s", i ? "\t" : "", scores[i].probability, c->a->labels.word[i]);
}

static void print_best_json(const classification *c, const qn_token_score *best)
{
    printf(",\"tokens\":[");
    for (size_t i = 0; i < c->top && best[i].id >= 0; i++) {
        printf(i ? ",{" : "{");
        print_token(stdout, qn_model_tokenizer(c->l->model), best[i].id);
        printf(",\"logit\":%.9g,\"logprob\":", (double)best[i].logit);
        print_logprob(stdout, (double)best[i].logprob);
        putchar('}');
    }
    printf("]}\n");
}

static void print_best(const classification *c, const qn_token_score *best)
{
    for (size_t i = 0; i < c->top && best[i].id >= 0; i++)
        printf("%s%.4f %s", i ? "\t" : "", (double)best[i].logprob,
               qn_tokenizer_piece(qn_model_tokenizer(c->l->model), best[i].id));
}

static void print_window(classification *c, const qn_label_score *scores,
                         const qn_token_score *best)
{
    for (size_t i = 0; i < c->texts.n; i++) {
        const text_item *item = &c->texts.items[i];
        if (c->a->json)
            begin_object(c, item, c->n_done + i);
        if (scores)
            (c->a->json ? print_labels_json : print_labels)(c, scores + i * c->a->labels.n);
        else
            (c->a->json ? print_best_json : print_best)(c, best + i * c->top);
        if (!c->a->json)
            print_shown(item);
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static void show_tokens(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    fprintf(stderr, "\r\033[K%s", "");
    if (done < total)
        fprintf(stderr, "%llu of %llu tokens ", (unsigned long long)done,
                (unsigned long long)total);
}

static qn_status run_window(classification *c, qn_error *err)
{
    const text_list *t = &c->texts;
    size_t n_labels = c->a->labels.n;
    qn_forward_options o = {.size = sizeof o,
                            .cancel = &interrupted,
                            .progress = isatty(STDERR_FILENO) ? show_tokens : NULL};
    qn_label_score *scores = n_labels ? malloc(t->n * n_labels * sizeof *scores) : NULL;
    qn_token_score *best = n_labels ? NULL : malloc(t->n * c->top * sizeof *best);
    double begun = qn__seconds();
    if (!scores && !best)
        qn__fail_memory(err, "results");
    else if (n_labels)
        qn_classify(c->l->model, t->ids, t->n, c->labels, n_labels, &o, scores, err);
    else
        qn_next_tokens(c->l->model, t->ids, t->n, c->top, &o, best, err);
    c->seconds += qn__seconds() - begun;
    if (err->code == QN_OK)
        print_window(c, scores, best);
    c->n_done += t->n;
    c->n_tokens += t->tokens;
    free(scores);
    free(best);
    return err->code;
}

static qn_status encode_labels(classification *c, qn_error *err)
{
    const qn_tokenizer *t = qn_model_tokenizer(c->l->model);
    for (size_t i = 0; t && i < c->a->labels.n; i++) {
        const char *label = c->a->labels.word[i];
        if (qn_tokenizer_encode(t, label, strlen(label), 0, &c->label_ids[i], err) != QN_OK)
            return err->code;
        if (!c->label_ids[i].n)
            return qn__fail(err, QN_INVALID, "--label: \"%s\" has no tokens", label);
        c->labels[i] = (qn_ids){c->label_ids[i].ids, c->label_ids[i].n};
        c->longest = c->label_ids[i].n > c->longest ? c->label_ids[i].n : c->longest;
    }
    return QN_OK;
}

static int run_classification(classification *c, text_kind kind)
{
    qn_error err = {0};
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(c->l->model, &info);
    if (encode_labels(c, &err) == QN_OK) {
        size_t behind = c->longest ? c->longest - 1 : 0;
        texts_open(&c->source, c->l, c->a, kind, (size_t)info.max_positions - behind, &err);
        while (err.code == QN_OK && texts_read(&c->source, &c->texts, WINDOW, &err) == QN_OK &&
               c->texts.n)
            run_window(c, &err);
        texts_close(&c->source);
    }
    texts_free(&c->texts);
    for (size_t i = 0; i < c->a->labels.n; i++)
        qn_tokens_free(&c->label_ids[i]);
    if (err.code == QN_OK && (c->a->verbose || isatty(STDERR_FILENO)))
        fprintf(stderr, "%llu texts, %llu tokens in %.2f s, %.1f tok/s\n",
                (unsigned long long)c->n_done, (unsigned long long)c->n_tokens, c->seconds,
                c->seconds > 0 ? (double)c->n_tokens / c->seconds : 0);
    return err.code == QN_OK ? 0 : failed(&err);
}

int command_classify(arguments *a)
{
    text_kind kind;
    if (!text_kind_of(a, "classify", &kind))
        return 2;
    if (a->labels.n && a->top > 0) {
        fprintf(stderr, "quern classify: --top is for next tokens, in the place of --label\n");
        return 2;
    }
    catch_interrupts(true);
    loaded l;
    int code = open_loaded(&l, a, false);
    if (!code) {
        classification *c = calloc(1, sizeof *c);
        qn_error err = {0};
        if (c) {
            *c = (classification){.a = a, .l = &l, .top = a->top > 0 ? (size_t)a->top : TOP};
            code = run_classification(c, kind);
        } else {
            qn__fail_memory(&err, "a classification");
            code = failed(&err);
        }
        free(c);
    }
    close_loaded(&l);
    return code;
}
