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
    qn_device *device;
    const char *template;
    char device_text[128];
    const qn_tokenizer *tokenizer; /* NULL: there is none */
} card;

/* "linear avx512, attention avx512 ...", or the members of a JSON object. */
static void print_kernels(const card *c, const char *form, const char *between)
{
    const char *purpose, *tier;
    for (int i = 0; qn_device_kernel(c->device, i, &purpose, &tier); i++) {
        fputs(i ? between : "", stdout);
        printf(form, purpose, tier);
    }
}

static void print_json(const card *c, const char *path)
{
    const qn_model_info *m = &c->info;
    printf("{\"path\":");
    print_json_string(stdout, path, strlen(path));
    printf(",\"family\":\"%s\",\"parameters\":%llu,\"layers\":%lld,\"hidden_size\":%lld,"
           "\"intermediate_size\":%lld,\"heads\":%lld,\"kv_heads\":%lld,\"head_dim\":%lld,"
           "\"max_positions\":%lld,\"vocab_size\":%lld,\"dtype\":\"%s\",\"types\":\"%s\",",
           m->family, (unsigned long long)m->parameters, (long long)m->n_layers,
           (long long)m->hidden_size, (long long)m->intermediate_size, (long long)m->n_heads,
           (long long)m->n_kv_heads, (long long)m->head_dim, (long long)m->max_positions,
           (long long)m->vocab_size, qn_dtype_name(m->dtype), m->types);
    if (c->tokenizer)
        printf("\"tokenizer_size\":%d,\"chat_template\":\"%s\",",
               qn_tokenizer_vocab_size(c->tokenizer), c->template);
    else
        printf("\"tokenizer_size\":null,\"chat_template\":null,");
    printf("\"file_bytes\":%llu,\"weight_bytes\":%llu,\"context\":%lld,"
           "\"cache_bytes\":%llu,\"memory_bytes\":%llu,\"device\":\"%s\",\"device_text\":\"%s\","
           "\"kernels\":{",
           (unsigned long long)m->file_bytes, (unsigned long long)m->weight_bytes,
           (long long)c->context, (unsigned long long)c->cache_bytes,
           (unsigned long long)(m->weight_bytes + c->cache_bytes), qn_device_name(c->device),
           c->device_text);
    print_kernels(c, "\"%s\":\"%s\"", ",");
    printf("}}\n");
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
    const char *purpose, *tier;
    char text[32];
    printf("model       %s\n", path);
    printf("family      %s\n", m->family);
    printf("parameters  %s\n", large(m->parameters, text));
    printf("layers      %lld, of width %lld and %lld\n", (long long)m->n_layers,
           (long long)m->hidden_size, (long long)m->intermediate_size);
    printf("heads       %lld of %lld dimensions, %lld for keys and values\n", (long long)m->n_heads,
           (long long)m->head_dim, (long long)m->n_kv_heads);
    printf("vocabulary  %lld, ", (long long)m->vocab_size);
    if (c->tokenizer)
        printf("%d of them in the tokenizer\n", qn_tokenizer_vocab_size(c->tokenizer));
    else
        printf("no tokenizer: only programs that bring token ids can run it\n");
    printf("context     %lld positions\n", (long long)m->max_positions);
    if (c->tokenizer)
        printf("chat        %s\n", c->template);
    printf("weights     %.1f MiB in files: %s\n", (double)m->file_bytes / mib, m->types);
    printf("memory      %.1f MiB weights, %.1f MiB cache of %lld positions, %.1f MiB in all\n",
           (double)m->weight_bytes / mib, (double)c->cache_bytes / mib, (long long)c->context,
           (double)(m->weight_bytes + c->cache_bytes) / mib);
    printf("device      %s, %s\n", qn_device_name(c->device), c->device_text);
    printf("kernels     ");
    print_kernels(c, "%s %s", ", ");
    printf("%s\n", qn_device_kernel(c->device, 0, &purpose, &tier) ? "" : "the device's own");
}

/* The tokenizer and how chats are written; a model may have neither. */
static qn_status describe_text(card *c, const char *path, qn_tokenizer **tokenizer, qn_error *err)
{
    qn_chat *chat;
    qn_status status = qn_tokenizer_open(tokenizer, path, err);
    if (status == QN_OK)
        status = qn_chat_open(&chat, *tokenizer, path, err);
    else if (status == QN_NOT_FOUND)
        return QN_OK;
    if (status != QN_OK)
        return status;
    qn_chat_format format = qn_chat_format_of(*tokenizer);
    c->tokenizer = *tokenizer;
    c->template = qn_chat_has_template(chat) ? "its own template"
                  : format != QN_CHAT_NONE   ? qn_chat_format_name(format)
                                             : "no format";
    qn_chat_close(chat);
    return QN_OK;
}

static int describe(const loaded *l, const arguments *a)
{
    card c = {.info = QN_INIT(qn_model_info), .device = l->device};
    qn_tokenizer *tokenizer = NULL;
    qn_error err = {0};
    int code = 0;
    cache_types types;
    if (cache_types_of(a, &types, &err) == QN_OK &&
        describe_text(&c, l->path, &tokenizer, &err) == QN_OK) {
        qn_model_get_info(l->model, &c.info);
        c.context = a->context > 0 ? a->context : c.info.max_positions;
        qn_session_options session = {.size = sizeof session,
                                      .context = c.context,
                                      .cache_type_k = types.k,
                                      .cache_type_v = types.v};
        c.cache_bytes = qn_model_cache_bytes(l->model, &session);
        qn_device_describe(l->device, c.device_text, sizeof c.device_text);
        (a->json ? print_json : print_text)(&c, l->path);
    } else {
        code = failed(&err);
    }
    qn_tokenizer_close(tokenizer);
    return code;
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
