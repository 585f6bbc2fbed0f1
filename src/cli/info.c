/* SPDX-License-Identifier: Apache-2.0
 *
 * quern info: what a model is and what it needs, from its headers.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/shared.h"

#include <string.h>

typedef struct card {
    qn_model_info info;
    int64_t context;
    uint64_t cache_bytes;
    const char *device, *template;
    char kernels[128];
    int32_t n_tokens;
} card;

static void print_json(const card *c, const char *path)
{
    const qn_model_info *m = &c->info;
    printf("{\"path\":");
    print_json_string(stdout, path, strlen(path));
    printf(",\"family\":\"%s\",\"parameters\":%llu,\"layers\":%lld,\"hidden_size\":%lld,"
           "\"intermediate_size\":%lld,\"heads\":%lld,\"kv_heads\":%lld,\"head_dim\":%lld,"
           "\"max_positions\":%lld,\"vocab_size\":%lld,\"tokenizer_size\":%d,\"dtype\":\"%s\",",
           m->family, (unsigned long long)m->parameters, (long long)m->n_layers,
           (long long)m->hidden_size, (long long)m->intermediate_size, (long long)m->n_heads,
           (long long)m->n_kv_heads, (long long)m->head_dim, (long long)m->max_positions,
           (long long)m->vocab_size, c->n_tokens, qn_dtype_name(m->dtype));
    printf("\"chat_template\":\"%s\",\"file_bytes\":%llu,\"weight_bytes\":%llu,\"context\":%lld,"
           "\"cache_bytes\":%llu,\"memory_bytes\":%llu,\"device\":\"%s\",\"kernels\":\"%s\"}\n",
           c->template, (unsigned long long)m->file_bytes, (unsigned long long)m->weight_bytes,
           (long long)c->context, (unsigned long long)c->cache_bytes,
           (unsigned long long)(m->weight_bytes + c->cache_bytes), c->device, c->kernels);
}

/* "2.9 million", "1.24 billion" */
static const char *large(uint64_t n, char text[32])
{
    if (n >= 1000000000)
        snprintf(text, 32, "%.2f billion", (double)n / 1e9);
    else if (n >= 1000000)
        snprintf(text, 32, "%.1f million", (double)n / 1e6);
    else
        snprintf(text, 32, "%llu", (unsigned long long)n);
    return text;
}

static void print_text(const card *c, const char *path)
{
    const qn_model_info *m = &c->info;
    const double mib = 1048576;
    char text[32];
    printf("model       %s\n", path);
    printf("family      %s\n", m->family);
    printf("parameters  %s, %s\n", large(m->parameters, text), qn_dtype_name(m->dtype));
    printf("layers      %lld, of width %lld and %lld\n", (long long)m->n_layers,
           (long long)m->hidden_size, (long long)m->intermediate_size);
    printf("heads       %lld of %lld dimensions, %lld for keys and values\n", (long long)m->n_heads,
           (long long)m->head_dim, (long long)m->n_kv_heads);
    printf("vocabulary  %lld, %d of them in the tokenizer\n", (long long)m->vocab_size, c->n_tokens);
    printf("context     %lld positions\n", (long long)m->max_positions);
    printf("chat        %s\n", c->template);
    printf("weights     %.1f MiB in files\n", (double)m->file_bytes / mib);
    printf("memory      %.1f MiB weights, %.1f MiB cache of %lld positions, %.1f MiB in all\n",
           (double)m->weight_bytes / mib, (double)c->cache_bytes / mib, (long long)c->context,
           (double)(m->weight_bytes + c->cache_bytes) / mib);
    printf("device      %s, kernels %s\n", c->device, c->kernels);
}

static int describe(const loaded *l, const arguments *a)
{
    card c = {.device = qn_device_name(l->device)};
    const qn_tokenizer *t = qn_model_tokenizer(l->model);
    qn_error err = {0};
    qn_chat *chat;
    if (qn_chat_open(&chat, t, l->path, &err) != QN_OK)
        return failed(&err);
    qn_chat_format format = qn_chat_format_of(t);
    c.template = qn_chat_has_template(chat) ? "its own template"
                 : format != QN_CHAT_NONE   ? qn_chat_format_name(format)
                                            : "no format";
    qn_chat_close(chat);
    qn_model_get_info(l->model, &c.info);
    c.context = a->context > 0 ? a->context : c.info.max_positions;
    c.cache_bytes = qn_model_cache_bytes(l->model, c.context);
    c.n_tokens = qn_tokenizer_vocab_size(t);
    qn_device_describe(l->device, c.kernels, sizeof c.kernels);
    (a->json ? print_json : print_text)(&c, l->path);
    return 0;
}

int command_info(arguments *a)
{
    loaded l;
    int code = open_loaded(&l, a, true);
    if (!code)
        code = describe(&l, a);
    close_loaded(&l);
    return code;
}
