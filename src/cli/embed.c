/* SPDX-License-Identifier: Apache-2.0
 *
 * quern embed: a vector for each text.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/texts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 1 << 15 };

typedef enum embedding_form { FORM_RAW, FORM_JSON, FORM_ARRAY, FORM_LINES, N_FORMS } embedding_form;

static const char *const form_names[N_FORMS] = {
    [FORM_RAW] = "raw", [FORM_JSON] = "json", [FORM_ARRAY] = "array", [FORM_LINES] = "jsonl"};

typedef struct embedding {
    const arguments *a;
    const loaded *l;
    text_source source;
    text_list texts;
    embedding_form form;
    qn_embed_options options;
    size_t width;
    float *vectors; /* [room, width]: of the window; with -o of all */
    size_t n, room; /* vectors */
    uint64_t n_tokens;
} embedding;

/* ---- output ---------------------------------------------------------------------------------- */

static void print_vector(const float *x, size_t n, const char *between)
{
    for (size_t i = 0; i < n; i++)
        printf("%s%.9g", i ? between : "", (double)x[i]); /* as many digits as f32 has */
}

static void print_embedding(const embedding *e, const text_item *item, size_t index, const float *x)
{
    if (e->form == FORM_RAW) {
        print_vector(x, e->width, " ");
        putchar('\n');
        return;
    }
    if (index && e->form != FORM_LINES)
        printf(",\n");
    if (e->form == FORM_JSON)
        printf("{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", index);
    if (e->form == FORM_LINES)
        printf("{\"index\":%zu", index);
    if (e->form == FORM_LINES && item->custom_id) {
        printf(",\"custom_id\":");
        print_json_string(stdout, item->custom_id, strlen(item->custom_id));
    }
    printf(e->form == FORM_LINES ? ",\"embedding\":[" : "[");
    print_vector(x, e->width, ",");
    printf(e->form == FORM_LINES ? "]}\n" : e->form == FORM_JSON ? "]}" : "]");
}

/* What stands around all of them. */
static void print_frame(const embedding *e, bool end)
{
    if (e->form == FORM_ARRAY)
        printf(end ? "]\n" : "[");
    else if (e->form == FORM_JSON && !end)
        printf("{\"object\":\"list\",\"data\":[");
    else if (e->form == FORM_JSON)
        printf("],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}\n",
               (unsigned long long)e->n_tokens, (unsigned long long)e->n_tokens);
}

static qn_status write_vectors(const embedding *e, qn_error *err)
{
    qn_scope *s = qn_scope_begin(e->l->device);
    const int64_t shape[] = {(int64_t)e->n, (int64_t)e->width};
    qn_named_array a = {"embeddings", qn_from(s, QN_F32, 2, shape, e->vectors)};
    qn_tensors_write(s, e->a->output, &a, 1, err);
    qn_scope_end(s);
    return err->code;
}

/* ---- the run --------------------------------------------------------------------------------- */

static qn_status reserve_vectors(embedding *e, size_t n, qn_error *err)
{
    if (n <= e->room)
        return QN_OK;
    size_t room = n + n / 2;
    float *more = realloc(e->vectors, room * e->width * sizeof *more);
    if (!more)
        return qn__fail_memory(err, "embeddings");
    e->vectors = more;
    e->room = room;
    return QN_OK;
}

static qn_status embed_window(embedding *e, qn_error *err)
{
    const text_list *t = &e->texts;
    size_t kept = e->a->output ? e->n : 0;
    qn_forward_options o = {.size = sizeof o, .cancel = &interrupted};
    if (reserve_vectors(e, kept + t->n, err) != QN_OK)
        return err->code;
    float *x = e->vectors + kept * e->width;
    if (qn_embed(e->l->model, t->ids, t->n, &e->options, &o, x, err) != QN_OK)
        return err->code;
    for (size_t i = 0; i < t->n && !e->a->output; i++)
        print_embedding(e, &t->items[i], e->n + i, x + i * e->width);
    e->n += t->n;
    e->n_tokens += t->tokens;
    return QN_OK;
}

static int run_embedding(embedding *e, text_kind kind)
{
    qn_error err = {0};
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(e->l->model, &info);
    e->width = (size_t)info.hidden_size;
    double begun = qn__seconds();
    texts_open(&e->source, e->l, e->a, kind, (size_t)info.max_positions, &err);
    /* what goes wrong with the first texts is said before anything is printed */
    bool framed = false;
    while (err.code == QN_OK && texts_read(&e->source, &e->texts, WINDOW, &err) == QN_OK &&
           (e->texts.n || !framed)) {
        if (!framed && !e->a->output)
            print_frame(e, false);
        framed = true;
        embed_window(e, &err);
    }
    texts_close(&e->source);
    texts_free(&e->texts);
    if (err.code == QN_OK && e->a->output)
        write_vectors(e, &err);
    else if (err.code == QN_OK)
        print_frame(e, true);
    free(e->vectors);
    double taken = qn__seconds() - begun;
    if (err.code == QN_OK && (e->a->verbose || isatty(STDERR_FILENO)))
        fprintf(stderr, "%zu texts, %llu tokens in %.2f s, %.1f tok/s\n", e->n,
                (unsigned long long)e->n_tokens, taken, (double)e->n_tokens / taken);
    return err.code == QN_OK ? 0 : failed(&err);
}

/* ---- usage ----------------------------------------------------------------------------------- */

static bool read_pooling(embedding *e)
{
    const char *text = e->a->pooling;
    bool last = text && !strcmp(text, "last");
    e->options.pooling = last ? QN_POOL_LAST : QN_POOL_MEAN;
    if (text && !last && strcmp(text, "mean") != 0)
        fprintf(stderr, "quern embed: --pooling: it is mean or last, not \"%.40s\"\n", text);
    return !text || last || !strcmp(text, "mean");
}

static bool read_form(embedding *e)
{
    const char *text = e->a->embd_form, *out = e->a->output;
    size_t n = out ? strlen(out) : 0;
    int form = FORM_RAW;
    while (text && form < N_FORMS && strcmp(text, form_names[form]) != 0)
        form++;
    bool array = n > 4 && (!strcmp(out + n - 4, ".npy") || !strcmp(out + n - 4, ".npz"));
    bool tensors = n > 12 && !strcmp(out + n - 12, ".safetensors");
    if (form == N_FORMS)
        fprintf(stderr,
                "quern embed: --embd-output-format: it is raw, json, array or jsonl, not "
                "\"%.40s\"\n",
                text);
    else if (out && text)
        fprintf(stderr, "quern embed: the name behind -o says its form\n");
    else if (out && !array && !tensors)
        fprintf(stderr, "quern embed: -o FILE ends in .npy, .npz or .safetensors\n");
    e->form = (embedding_form)form;
    return form != N_FORMS && !(out && text) && (!out || array || tensors);
}

int command_embed(arguments *a)
{
    static const qn_norm norms[] = {QN_NORM_NONE, QN_NORM_MAX_INT16, QN_NORM_L1, QN_NORM_L2};
    text_kind kind;
    loaded l;
    embedding e = {.a = a, .l = &l};
    e.options = (qn_embed_options){.size = sizeof e.options, .norm = norms[a->embd_normalize + 1]};
    if (!text_kind_of(a, "embed", &kind) || !read_pooling(&e) || !read_form(&e))
        return 2;
    catch_interrupts(true);
    int code = open_loaded(&l, a, false);
    if (!code)
        code = run_embedding(&e, kind);
    close_loaded(&l);
    return code;
}
