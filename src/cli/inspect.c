/* SPDX-License-Identifier: Apache-2.0
 *
 * quern inspect: the queries and keys of a text, as a file of arrays, and a head's attention as a
 * picture.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/heatmap.h"
#include "cli/texts.h"

#include <stdlib.h>
#include <string.h>

typedef struct inspected {
    const arguments *a;
    const loaded *l;
    qn_model_info info;
    const text_item *text;
    qn_inspection *seen;
    int first, n_layers;
} inspected;

/* ---- arrays ---------------------------------------------------------------------------------- */

static qn_status write_arrays(const inspected *x, qn_error *err)
{
    size_t n = 2 * (size_t)x->n_layers + 1;
    qn_named_array *arrays = calloc(n, sizeof *arrays);
    char(*names)[32] = calloc(n, sizeof *names);
    qn_scope *s = qn_scope_begin(x->l->device);
    const int64_t length = (int64_t)x->text->ids.n;
    const int64_t queries[] = {x->info.n_heads, length, x->info.head_dim};
    const int64_t keys[] = {x->info.n_kv_heads, length, x->info.head_dim};
    if (!arrays || !names)
        qn__fail_memory(err, "arrays");
    for (int i = 0; i < x->n_layers && err->code == QN_OK; i++) {
        int layer = x->first + i;
        snprintf(names[2 * i], sizeof *names, "layers.%d.q", layer);
        snprintf(names[2 * i + 1], sizeof *names, "layers.%d.k", layer);
        arrays[2 * i] = (qn_named_array){
            names[2 * i], qn_from(s, QN_F32, 3, queries, qn_inspection_queries(x->seen, layer))};
        arrays[2 * i + 1] = (qn_named_array){
            names[2 * i + 1], qn_from(s, QN_F32, 3, keys, qn_inspection_keys(x->seen, layer))};
    }
    if (err->code == QN_OK) {
        arrays[n - 1] = (qn_named_array){"ids", qn_from(s, QN_I32, 1, &length, x->text->ids.ids)};
        qn_tensors_write(s, x->a->output, arrays, (int)n, err);
    }
    qn_scope_end(s);
    free(arrays);
    free(names);
    return err->code;
}

/* ---- the picture ----------------------------------------------------------------------------- */

static qn_status write_picture(const inspected *x, qn_error *err)
{
    size_t n = x->text->ids.n;
    int layer = x->first, head = x->a->head > 0 ? (int)x->a->head : 0;
    int64_t sharing = x->info.n_heads / x->info.n_kv_heads;
    char title[120];
    if (n > MOST_PICTURED)
        return qn__fail(err, QN_LIMIT, "--picture: %zu tokens; it has room for %d", n,
                        MOST_PICTURED);
    snprintf(title, sizeof title,
             "layer %d, head %d (key head %lld), %zu tokens: rows read columns", layer, head,
             (long long)(head / sharing), n);
    float *weights = malloc(n * n * sizeof *weights);
    if (!weights)
        return qn__fail_memory(err, "a picture");
    heatmap h = {title, weights, qn_model_tokenizer(x->l->model), x->text->ids.ids, n};
    if (qn_inspection_attention(x->seen, layer, head, weights, err) == QN_OK)
        heatmap_write(&h, x->a->picture, err);
    free(weights);
    return err->code;
}

/* ---- the run --------------------------------------------------------------------------------- */

static qn_status check_heads(const inspected *x, qn_error *err)
{
    if (x->a->layer >= x->info.n_layers)
        return qn__fail(err, QN_INVALID, "--layer %lld: the model has layers 0 to %lld",
                        (long long)x->a->layer, (long long)x->info.n_layers - 1);
    if (x->a->head >= x->info.n_heads)
        return qn__fail(err, QN_INVALID, "--head %lld: the model has heads 0 to %lld",
                        (long long)x->a->head, (long long)x->info.n_heads - 1);
    return QN_OK;
}

/* Only the layers that something is written of. */
static qn_status inspect_text(inspected *x, qn_error *err)
{
    bool one = x->a->layer >= 0 || !x->a->output;
    x->first = x->a->layer >= 0 ? (int)x->a->layer : 0;
    x->n_layers = one ? 1 : (int)x->info.n_layers;
    qn_ids text = {x->text->ids.ids, x->text->ids.n};
    qn_inspect_options o = {.size = sizeof o, .first_layer = x->first, .n_layers = x->n_layers};
    qn_forward_options forward = {.size = sizeof forward, .cancel = &interrupted};
    if (qn_inspect(&x->seen, x->l->model, &text, &o, &forward, err) != QN_OK)
        return err->code;
    if (x->a->output)
        write_arrays(x, err);
    if (x->a->picture && err->code == QN_OK)
        write_picture(x, err);
    return err->code;
}

static int run_inspection(const arguments *a, const loaded *l)
{
    qn_error err = {0};
    text_source source;
    text_list texts = {.n = 0};
    inspected x = {.a = a, .l = l, .info = QN_INIT(qn_model_info)};
    qn_model_get_info(l->model, &x.info);
    if (check_heads(&x, &err) == QN_OK) {
        texts_open(&source, l, a, TEXT_WHOLE, (size_t)x.info.max_positions, &err);
        if (err.code == QN_OK && texts_read(&source, &texts, 1, &err) == QN_OK) {
            x.text = &texts.items[0];
            inspect_text(&x, &err);
        }
        texts_close(&source);
    }
    qn_inspection_free(x.seen);
    texts_free(&texts);
    return err.code == QN_OK ? 0 : failed(&err);
}

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

int command_inspect(arguments *a)
{
    text_kind kind;
    if (!text_kind_of(a, "inspect", &kind))
        return 2;
    const char *wrong =
        !a->output && !a->picture ? "what is to be written? -o OUT.npz or --picture OUT.svg"
        : a->output && !ends_in(a->output, ".npz") && !ends_in(a->output, ".safetensors")
            ? "-o OUT ends in .npz or .safetensors"
        : a->picture && !ends_in(a->picture, ".svg") ? "--picture OUT ends in .svg"
        : a->head >= 0 && !a->picture                ? "--head is of --picture"
                                                     : NULL;
    if (wrong) {
        fprintf(stderr, "quern inspect: %s\n", wrong);
        return 2;
    }
    catch_interrupts(true);
    loaded l;
    int code = open_loaded(&l, a, false);
    if (!code)
        code = run_inspection(a, &l);
    close_loaded(&l);
    return code;
}
