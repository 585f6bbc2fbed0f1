/* SPDX-License-Identifier: Apache-2.0
 *
 * A Llama, written with arrays alone: loads a checkpoint directory of Hugging Face (models/demo,
 * Llama 2, TinyLlama ...), continues a prompt greedily, and says how long that took.
 *     build/examples/llama [--num-tokens N] models/demo "Once upon a time"
 */
#include <quern/quern.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_LAYERS = 128, MOST_TOKENS = 4096, LARGEST_HEAD = 1024 };
enum { ATTENTION_NORM, Q, K, V, O, FFN_NORM, GATE, UP, DOWN, WEIGHTS };

static const char *const names[WEIGHTS] = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

typedef struct llama {
    qn_device *device;
    int64_t n_layers, n_heads, n_kv_heads, head_dim;
    float eps, frequency[LARGEST_HEAD / 2];
    qn_array *weights[MOST_LAYERS][WEIGHTS];
    qn_array *cache[MOST_LAYERS][2]; /* keys and values [1, n_kv_heads, tokens, head_dim] */
    qn_array *embedding, *norm, *head;
} llama;

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "llama: %s%s\n", what, detail);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The number behind "key": in config.json. */
static double number(const char *config, const char *key, double otherwise)
{
    char quoted[64];
    double value;
    int n = snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(config, quoted);
    return at && sscanf(at + n, "%lf", &value) == 1 ? value : otherwise;
}

static void configure(llama *m, const char *path)
{
    char config[16384] = "";
    FILE *f = fopen(path, "rb");
    config[f ? fread(config, 1, sizeof config - 1, f) : 0] = '\0';
    if (!f || !strstr(config, "\"model_type\": \"llama\"") ||
        strstr(config, "\"rope_scaling\": {") || strstr(config, "\"rope_parameters\""))
        die("not a Llama with plain rotary frequencies: ", path);
    fclose(f);
    m->n_layers = (int64_t)number(config, "num_hidden_layers", 0);
    m->n_heads = (int64_t)number(config, "num_attention_heads", 1);
    m->n_kv_heads = (int64_t)number(config, "num_key_value_heads", (double)m->n_heads);
    double d = number(config, "head_dim", number(config, "hidden_size", 0) / (double)m->n_heads);
    if (m->n_layers < 1 || m->n_layers > MOST_LAYERS || d < 2 || d > LARGEST_HEAD)
        die("sizes that cannot be, or are too large: ", path);
    m->head_dim = (int64_t)d;
    m->eps = (float)number(config, "rms_norm_eps", 1e-6);
    for (int i = 0; i < m->head_dim / 2; i++)
        m->frequency[i] = (float)pow(number(config, "rope_theta", 10000), -2 * i / d);
}

/* A weight by name: matrices in the device's layout, vectors as f32. */
static qn_array *load(llama *m, const qn_tensors *file, const char *name)
{
    qn_scope *s = qn_scope_begin(m->device);
    qn_array *w = qn_tensors_read(s, file, name);
    w = qn_array_ndim(w) == 2 ? w : qn_cast(s, w, QN_F32);
    qn_eval(s, w);
    w = qn_array_ndim(w) == 2 ? qn_pack(s, w) : qn_retain(w);
    if (!w || qn_scope_status(s) != QN_OK)
        die("", qn_scope_error(s));
    qn_scope_end(s);
    return w;
}

static void load_llama(llama *m, const char *directory)
{
    char text[4096];
    qn_tensors *f;
    qn_error err = {0};
    snprintf(text, sizeof text, "%s/config.json", directory);
    configure(m, text);
    if (qn_tensors_open(&f, directory, &err) != QN_OK)
        die("", err.message);
    m->embedding = load(m, f, "model.embed_tokens.weight");
    m->norm = load(m, f, "model.norm.weight");
    m->head = qn_tensors_find(f, "lm_head.weight") ? load(m, f, "lm_head.weight") : m->embedding;
    for (int i = 0; i < m->n_layers * WEIGHTS; i++) {
        snprintf(text, sizeof text, "model.layers.%d.%s.weight", i / WEIGHTS, names[i % WEIGHTS]);
        m->weights[i / WEIGHTS][i % WEIGHTS] = load(m, f, text);
    }
    qn_tensors_close(f);
}

/* x w^T in heads: [1, L, D] -> [1, H, L, head_dim] */
static qn_array *heads(qn_scope *s, const llama *m, qn_array *x, qn_array *w, int64_t n_heads)
{
    const int64_t shape[] = {1, -1, n_heads, m->head_dim};
    return qn_swap_axes(s, qn_reshape(s, qn_linear(s, x, w, NULL), 4, shape), 1, 2);
}

/* Keys or values so far with the new ones behind them, in the type of the weights. */
static qn_array *append(qn_scope *s, const llama *m, qn_array *cache, qn_array *x)
{
    x = qn_contiguous(s, qn_cast(s, x, qn_array_dtype(m->embedding)));
    return cache ? qn_concatenate(s, (qn_array *[]){cache, x}, 2, 2) : x;
}

/* x: [1, L, D]; cache receives the keys and values of all tokens so far */
static qn_array *attend(qn_scope *s, llama *m, int i, qn_array *x, int32_t past, qn_array **cache)
{
    qn_array **w = m->weights[i], *offset = qn_from_i32(s, &past, 1);
    qn_array *frequency = qn_from_f32(s, m->frequency, m->head_dim / 2);
    qn_array *q = qn_rope(s, heads(s, m, x, w[Q], m->n_heads), offset, frequency, false);
    qn_array *k = qn_rope(s, heads(s, m, x, w[K], m->n_kv_heads), offset, frequency, false);
    cache[0] = append(s, m, m->cache[i][0], k);
    cache[1] = append(s, m, m->cache[i][1], heads(s, m, x, w[V], m->n_kv_heads));
    qn_attention_options causal = {.size = sizeof causal, .causal = true};
    qn_array *v = qn_cast(s, cache[1], QN_F32);
    qn_array *y = qn_attention(s, q, qn_cast(s, cache[0], QN_F32), v, &causal);
    const int64_t flat[] = {1, -1, m->n_heads * m->head_dim};
    return qn_linear(s, qn_reshape(s, qn_swap_axes(s, y, 1, 2), 3, flat), w[O], NULL);
}

/* Runs n tokens behind `past` others and returns the most probable next one. */
static int32_t forward(llama *m, const int32_t *ids, int64_t n, int32_t past)
{
    qn_scope *s = qn_scope_begin(m->device);
    qn_array *results[1 + 2 * MOST_LAYERS], **cache = results + 1;
    qn_array *x = qn_take(s, m->embedding, qn_from(s, QN_I32, 2, (int64_t[]){1, n}, ids), 0);
    for (int i = 0; i < m->n_layers; i++) {
        qn_array **w = m->weights[i];
        qn_array *h = qn_rms_norm(s, x, w[ATTENTION_NORM], m->eps);
        x = qn_add(s, x, attend(s, m, i, h, past, cache + 2 * i));
        h = qn_rms_norm(s, x, w[FFN_NORM], m->eps);
        qn_array *gate = qn_silu(s, qn_linear(s, h, w[GATE], NULL));
        h = qn_multiply(s, gate, qn_linear(s, h, w[UP], NULL));
        x = qn_add(s, x, qn_linear(s, h, w[DOWN], NULL));
    }
    x = qn_rms_norm(s, qn_slice(s, x, 1, n - 1, n, 1), m->norm, m->eps);
    results[0] = qn_argmax(s, qn_linear(s, x, m->head, NULL), -1, false);
    int64_t next;
    if (qn_eval_many(s, results, 1 + 2 * (int)m->n_layers) != QN_OK ||
        qn_read_i64(s, results[0], &next, 1) != QN_OK)
        die("", qn_scope_error(s));
    for (int i = 0; i < 2 * m->n_layers; i++) {
        qn_release(m->cache[i / 2][i % 2]);
        m->cache[i / 2][i % 2] = qn_retain(cache[i]);
    }
    qn_scope_end(s);
    return (int32_t)next;
}

/* What is static here is freed by the end of the process; the other examples free things. */
int main(int argc, char **argv)
{
    static llama m;
    static qn_tokenizer *tokenizer;
    static qn_tokens ids;
    static qn_text text;
    qn_error err = {0};
    int32_t most = 100, done = 0, out[MOST_TOKENS];
    if (argc == 5 && !strcmp(argv[1], "--num-tokens"))
        most = atoi(argv[2]);
    if ((argc != 3 && argc != 5) || most < 1 || most > MOST_TOKENS)
        die("usage: ", "llama [--num-tokens N] MODEL PROMPT");
    const char *directory = argv[argc - 2], *prompt = argv[argc - 1];
    double begun = now();
    if (qn_device_open(&m.device, "cpu", NULL, &err) != QN_OK ||
        qn_tokenizer_open(&tokenizer, directory, &err) != QN_OK ||
        qn_tokenizer_encode(tokenizer, prompt, strlen(prompt), QN_ADD_SPECIAL, &ids, &err) != QN_OK)
        die("", err.message);
    load_llama(&m, directory);
    double loaded = now();
    int32_t n = (int32_t)ids.n, id = n ? forward(&m, ids.ids, n, 0) : qn_tokenizer_eos(tokenizer);
    double prefilled = now();
    while (id != qn_tokenizer_eos(tokenizer) && done < most) {
        out[done++] = id;
        id = done < most ? forward(&m, &id, 1, n + done - 1) : id;
    }
    qn_tokenizer_decode(tokenizer, out, (size_t)done, QN_SKIP_SPECIAL, &text, &err);
    printf("%.*s\n", (int)text.n, text.n ? text.data : "");
    fprintf(stderr, "load %.3f s, prompt of %d tokens %.3f s, generation of %d tokens %.3f s\n",
            loaded - begun, n, prefilled - loaded, done, now() - prefilled);
}
