/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions: models that go to GGUF and back are the same to the bit, in logits and, where
 * nothing changes their type, in bytes; recipes are llama.cpp's (tests/golden/make_recipes.py);
 * what fails leaves nothing.
 */
#include "models/golden_model.h"

#include "../base/fail_alloc.h"
#include "convert/recipe.h"
#include "io/tensors.h"
#include "models/load.h"
#include "models/source.h"

#include <errno.h>
#include <sys/types.h>

enum { TOKENS = 40 };

ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);

static long writes_left = -1; /* -1: never fail */

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    if (writes_left < 0 || writes_left-- > 0)
        return __real_write(fd, data, n);
    writes_left = 0;
    errno = ENOSPC;
    return -1;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static float *logits_of(qn_device *device, const char *path, size_t *n)
{
    qn__decoder m;
    qn_error err = {0};
    int32_t tokens[TOKENS];
    if (qn__decoder_load(&m, device, path, NULL, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    *n = (size_t)(TOKENS * m.config.vocab);
    float *out = malloc(*n * sizeof *out);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i * 37 % (int)m.config.vocab;
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from(s, QN_I32, 2, (const int64_t[]){1, TOKENS}, tokens);
    qn_array *y = qn__decoder_logits(s, &m, qn__decoder_hidden(s, &m, x, NULL, NULL));
    if (qn_read_f32(s, y, out, *n) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
    qn__decoder_end(&m);
    return out;
}

static double difference(qn_device *device, const char *a, const char *b)
{
    size_t n, m;
    float *x = logits_of(device, a, &n), *y = logits_of(device, b, &m);
    assert_int_equal(n, m);
    double e = nmse(x, y, n);
    free(x);
    free(y);
    return e;
}

static void convert(qn_device *device, const char *from, const char *to,
                    const qn_convert_options *options)
{
    qn_error err = {0};
    if (qn_convert(device, from, to, options, &err) != QN_OK)
        fail_msg("%s -> %s: %s", from, to, err.message);
}

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

static void assert_same_files(const char *a, const char *b)
{
    size_t n, m;
    char *x = read_all(a, &n), *y = read_all(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static void source_path(char *path, size_t room, const char *name)
{
    snprintf(path, room, "%s/%s", getenv("QUERN_SOURCE"), name);
}

/* ---- the same model -------------------------------------------------------------------------- */

/* The golden Gemma 2 has scores of a scale that no real one has, and GGUF no key for. */
static void set_usual_scale(const char *directory)
{
    char path[700], text[4000];
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    char *at = strstr(text, "\"query_pre_attn_scalar\": 24");
    assert_non_null(at);
    memcpy(strstr(at, "24"), "16", 2);
    rewind(f);
    fputs(text, f);
    fclose(f);
}

static void test_families(void **state)
{
    static const char *const names[] = {
        "llama/plain",   "llama/biased",      "llama/llama3-tied", "llama/linear", "mistral/window",
        "qwen2/plain",   "qwen2/yarn",        "qwen3/plain",       "qwen3/biased", "gemma2/plain",
        "gemma3/images", "gemma3/images-new", "smollm3/plain"};
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[600], to[700], back[700];
        golden_directory(from, sizeof from, names[i]);
        if (!strcmp(names[i], "gemma2/plain"))
            set_usual_scale(from);
        snprintf(to, sizeof to, "%s/%zu.gguf", temp_root, i);
        snprintf(back, sizeof back, "%s/back-%zu", temp_root, i);
        convert(device, from, to, NULL);
        double e = difference(device, from, to), e_back = 0;
        if (strcmp(names[i], "llama/llama3-tied") != 0) {
            qn_convert_options options = {.size = sizeof options, .dtype = "f32"};
            convert(device, to, back, &options);
            e_back = difference(device, from, back);
        }
        printf("%-20s GGUF %.1e, and back %.1e\n", names[i], e, e_back);
        assert_true(e == 0);
        assert_true(e_back < 1e-11); /* norms lose their 1 again, and round */
    }
    qn_device_close(device);
}

/* Meta's names and order of rows become Hugging Face's, and GGUF's. */
static void test_meta(void **state)
{
    static const char *const kinds[] = {"meta", "meta-npz"};
    char from[600], other[600];
    skip_without_libzip();
    qn_device *device = open_cpu(state);
    source_path(other, sizeof other, "tests/models/weights/safetensors");
    for (int i = 0; i < 2; i++) {
        const char *gguf = temp_path(i ? "npz.gguf" : "meta.gguf");
        const char *directory = temp_path(i ? "npz" : "meta");
        snprintf(from, sizeof from, "%s/tests/models/weights/%s", getenv("QUERN_SOURCE"), kinds[i]);
        convert(device, from, gguf, NULL);
        convert(device, from, directory, NULL);
        assert_true(difference(device, other, gguf) == 0);
        assert_true(difference(device, other, directory) == 0);
        assert_int_equal(access(temp_path(i ? "npz/config.json" : "meta/config.json"), F_OK), 0);
    }
    qn_device_close(device);
}

/* What GGUF cannot say is refused, and nothing is written. */
static void test_unsaid(void **state)
{
    static const struct {
        const char *name, *part;
    } cases[] = {{"qwen2/window", "sliding window"},
                 {"smollm3/list", "do not turn"},
                 {"gemma3/text", "query_pre_attn_scalar"},
                 {"qwen3/yarn", "YaRN without truncation"},
                 {"bitnet/plain", "layers that are not ternary"},
                 {"bitnet/unpacked", "biases that a scale multiplies"},
                 {"bitnet/online", "biases of attention"}};
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char from[600];
        qn_error err = {0};
        const char *to = temp_path("unsaid.gguf");
        golden_directory(from, sizeof from, cases[i].name);
        assert_int_equal(qn_convert(device, from, to, NULL, &err), QN_UNSUPPORTED);
        if (!strstr(err.message, cases[i].part))
            fail_msg("\"%s\" lacks \"%s\"", err.message, cases[i].part);
        assert_int_equal(access(to, F_OK), -1);
    }
    qn_device_close(device);
}

/* The ternary layers' tensors are those of a file that gguf made, to the byte. */
static void assert_same_layers(const char *path, const char *golden)
{
    char name[600];
    qn_tensors *a, *b;
    qn_error err = {0};
    int same = 0;
    golden_path(name, sizeof name, golden, NULL);
    assert_int_equal(qn_tensors_open(&a, name, &err), QN_OK);
    assert_int_equal(qn_tensors_open(&b, path, &err), QN_OK);
    assert_int_equal(qn_tensors_count(a), qn_tensors_count(b));
    for (size_t i = 0; i < qn_tensors_count(a); i++) {
        const qn_tensor_info *t = qn_tensors_get(a, i), *u = qn_tensors_find(b, t->name);
        assert_non_null(u);
        if (strncmp(t->name, "blk.", 4) != 0)
            continue;
        assert_int_equal(t->bytes, u->bytes);
        char *x = malloc(t->bytes), *y = malloc(t->bytes);
        assert_int_equal(qn_tensors_read_bytes(a, t, 0, t->bytes, x, &err), QN_OK);
        assert_int_equal(qn_tensors_read_bytes(b, u, 0, t->bytes, y, &err), QN_OK);
        if (memcmp(x, y, t->bytes) != 0)
            fail_msg("%s differs", t->name);
        same++;
        free(x);
        free(y);
    }
    assert_int_equal(same, 2 * 11);
    qn_tensors_close(a);
    qn_tensors_close(b);
}

static void test_ternary(void **state)
{
    qn_device *device = open_cpu(state);
    char from[600];
    const char *to = temp_path("ternary.gguf");
    qn_error err = {0};
    qn_convert_options tq1 = {.size = sizeof tq1, .type = "TQ1_0", .replace = true},
                       i2 = {.size = sizeof i2, .type = "I2_S", .replace = true},
                       as_is = {.size = sizeof as_is, .replace = true},
                       bits = {.size = sizeof bits, .bits = 4};
    golden_directory(from, sizeof from, "bitnet/packed");
    convert(device, from, to, &tq1);
    assert_same_layers(to, "gguf/bitnet-tq1_0.gguf");
    convert(device, from, to, &i2);
    assert_same_layers(to, "gguf/bitnet-i2_s.gguf");
    convert(device, from, to, &as_is);
    assert_same_layers(to, "gguf/bitnet-i2_s.gguf");
    assert_true(difference(device, from, to) == 0);
    /* it has no other form in a directory, from neither side */
    assert_int_equal(qn_convert(device, from, temp_path("d"), &bits, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "GGUF has tq1_0, tq2_0 and i2_s"));
    err = (qn_error){0};
    assert_int_equal(qn_convert(device, to, temp_path("d"), NULL, &err), QN_UNSUPPORTED);
    /* a Llama: rows in pairs, a scale that divides; only i2_s says what its layers take */
    golden_directory(from, sizeof from, "bitnet/llama");
    convert(device, from, to, &as_is);
    assert_true(difference(device, from, to) == 0);
    err = (qn_error){0};
    assert_int_equal(qn_convert(device, from, to, &tq1, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "but in the type i2_s"));
    golden_directory(from, sizeof from, "llama/plain");
    err = (qn_error){0};
    assert_int_equal(qn_convert(device, from, to, &i2, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "is not ternary, as type i2_s has to be"));
    qn_device_close(device);
}

/* The demo model: to GGUF and back its weights are the same file, its tokens and its template too.
 */
static void test_demo(void **state)
{
    static const char text[] =
        "Once upon a time, 1234 cats said: don't!\n\n  <|im_end|> \xc3\xa9t\xc3\xa9";
    char demo[600], weights[700];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    source_path(weights, sizeof weights, "models/demo/model.safetensors");
    const char *gguf = temp_path("demo.gguf"), *back = temp_path("demo-back");
    qn_convert_options options = {.size = sizeof options, .dtype = "bf16"};
    convert(device, demo, gguf, NULL);
    convert(device, gguf, back, &options);
    assert_same_files(weights, temp_path("demo-back/model.safetensors"));
    qn_tokenizer *a, *b, *again;
    qn_tokens x = {0}, y = {0}, z = {0};
    assert_int_equal(qn_tokenizer_open(&a, demo, &err), QN_OK);
    if (qn_tokenizer_open(&b, gguf, &err) != QN_OK ||
        qn_tokenizer_open(&again, back, &err) != QN_OK)
        fail_msg("%s", err.message);
    for (unsigned flags = 0; flags < 4; flags++) {
        qn_tokenizer_encode(a, text, sizeof text - 1, flags, &x, &err);
        qn_tokenizer_encode(b, text, sizeof text - 1, flags, &y, &err);
        assert_int_equal(x.n, y.n);
        assert_memory_equal(x.ids, y.ids, x.n * sizeof *x.ids);
        qn_tokenizer_encode(again, text, sizeof text - 1, flags, &z, &err);
        assert_int_equal(x.n, z.n);
        assert_memory_equal(x.ids, z.ids, x.n * sizeof *x.ids);
    }
    assert_int_equal(qn_tokenizer_eos(a), qn_tokenizer_eos(b));
    assert_int_equal(qn_tokenizer_eos(a), qn_tokenizer_eos(again));
    qn_chat *chat;
    assert_int_equal(qn_chat_open(&chat, b, gguf, &err), QN_OK);
    assert_true(qn_chat_has_template(chat));
    qn_chat_close(chat);
    assert_int_equal(qn_chat_open(&chat, again, back, &err), QN_OK);
    assert_true(qn_chat_has_template(chat));
    qn_chat_close(chat);
    qn_tokenizer_close(again);
    qn_tokens_free(&x);
    qn_tokens_free(&y);
    qn_tokens_free(&z);
    qn_tokenizer_close(a);
    qn_tokenizer_close(b);
    qn_device_close(device);
}

/* ---- types ----------------------------------------------------------------------------------- */

static const char *const key[] = {"f16",    "bf16",   "q4_0",  "q4_1", "q5_0", "q5_1",
                                  "q8_0",   "q2_k",   "q3_k",  "q4_k", "q5_k", "q6_k",
                                  "iq4_nl", "iq4_xs", "tq1_0", "tq2_0"};

static void test_recipes(void **state)
{
    (void)state;
    char path[600], word[40], name[100], types[100];
    golden_path(path, sizeof path, "recipes.txt", NULL);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    qn__recipe_model m = {0};
    const qn__recipe *recipe = NULL;
    int checked = 0, tied;
    long long columns, layers, heads, kv;
    while (fscanf(f, "%39s", word) == 1) {
        if (!strcmp(word, "model")) {
            assert_int_equal(fscanf(f, "%lld %lld %lld %d", &layers, &heads, &kv, &tied), 4);
            m = (qn__recipe_model){layers, heads, kv, tied != 0};
        } else if (!strcmp(word, "recipe")) {
            assert_int_equal(fscanf(f, "%39s", word), 1);
            recipe = qn__recipe_named(word, NULL);
            assert_non_null(recipe);
        } else {
            assert_int_equal(fscanf(f, "%lld %99s", &columns, types), 2);
            for (int i = 0; types[i]; i++, checked++) {
                const char *layer = strstr(word, "%d");
                snprintf(name, sizeof name, "%.*s", layer ? (int)(layer - word) : 39, word);
                if (layer)
                    snprintf(name + strlen(name), sizeof name - strlen(name), "%d%s", i, layer + 2);
                const char *got =
                    qn__encodings[qn__recipe_encoding(recipe, &m, name, columns)].name;
                if (strcmp(got, key[types[i] - 'a']) != 0)
                    fail_msg("%s: %s is %s, llama.cpp has %s", recipe->name, name, got,
                             key[types[i] - 'a']);
            }
        }
    }
    fclose(f);
    assert_true(checked > 2000);
}

static const qn_tensor_info *info_of(qn_tensors **file, const char *path, const char *name)
{
    qn_error err = {0};
    if (qn_tensors_open(file, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return qn_tensors_find(*file, name);
}

static void assert_type(const char *path, const char *name, const char *type)
{
    qn_tensors *file;
    const qn_tensor_info *t = info_of(&file, path, name);
    assert_non_null(t);
    assert_string_equal(t->encoding ? t->encoding : qn_dtype_name(t->dtype), type);
    qn_tensors_close(file);
}

static void test_overrides(void **state)
{
    static const char *const list[] = {"ffn_(up|gate)=Q8_0", "blk\\.[01]\\.=f16",
                                       "token_embd=q5_0"};
    static const char *const bad[] = {"ffn_up", "=q4_0", "x(=q4_0", "ffn_up=q4_k_m"};
    char demo[600];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    const char *out = temp_path("overridden.gguf");
    qn_convert_options options = {.size = sizeof options,
                                  .type = "Q4_K_M",
                                  .overrides = list,
                                  .n_overrides = 3,
                                  .keep_head = true};
    convert(device, demo, out, &options);
    assert_type(out, "blk.0.ffn_up.weight", "q8_0");
    assert_type(out, "blk.1.attn_q.weight", "f16");
    assert_type(out, "blk.2.attn_q.weight", "q4_k");
    assert_type(out, "token_embd.weight", "q5_0");
    assert_type(out, "blk.0.attn_norm.weight", "f32");
    options.n_overrides = 0;
    options.replace = true;
    convert(device, demo, out, &options);
    assert_type(out, "token_embd.weight", "bf16");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.overrides = &bad[i];
        options.n_overrides = 1;
        err = (qn_error){0};
        assert_int_not_equal(qn_convert(device, demo, out, &options, &err), QN_OK);
        assert_null(strchr(err.message, '\n'));
    }
    qn_device_close(device);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Twice, on one thread and on three, over another file or not: the same bytes. */
static void test_same_bytes(void **state)
{
    char demo[600];
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    qn_convert_options options = {.size = sizeof options, .type = "q4_k_m", .threads = 1};
    convert(device, demo, temp_path("one.gguf"), &options);
    options.threads = 3;
    convert(device, demo, temp_path("two.gguf"), &options);
    assert_same_files(temp_path("one.gguf"), temp_path("two.gguf"));
    options.replace = true;
    convert(device, demo, temp_path("two.gguf"), &options);
    assert_same_files(temp_path("one.gguf"), temp_path("two.gguf"));
    options.type = NULL; /* from GGUF to GGUF nothing changes */
    convert(device, temp_path("one.gguf"), temp_path("two.gguf"), &options);
    qn_tensors *a, *b;
    info_of(&a, temp_path("one.gguf"), "");
    info_of(&b, temp_path("two.gguf"), "");
    assert_int_equal(qn_tensors_count(a), qn_tensors_count(b));
    for (size_t i = 0; i < qn_tensors_count(a); i++) {
        const qn_tensor_info *x = qn_tensors_get(a, i), *y = qn_tensors_get(b, i);
        char *p = malloc((size_t)x->bytes), *q = malloc((size_t)x->bytes);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->bytes, y->bytes);
        qn_tensors_read_bytes(a, x, 0, (size_t)x->bytes, p, NULL);
        qn_tensors_read_bytes(b, y, 0, (size_t)x->bytes, q, NULL);
        assert_memory_equal(p, q, (size_t)x->bytes);
        free(p);
        free(q);
    }
    qn_tensors_close(a);
    qn_tensors_close(b);
    qn_device_close(device);
}

static size_t size_of(const char *path)
{
    size_t n;
    free(read_all(path, &n));
    return n;
}

/* Cut into files: the same model, with the names and keys by which others find the parts. */
static void test_shards(void **state)
{
    enum { MOST = 300000 };
    char demo[600], name[100];
    qn_device *device = open_cpu(state);
    qn_tensors *whole, *cut;
    source_path(demo, sizeof demo, "models/demo");
    qn_convert_options options = {.size = sizeof options, .type = "q8_0"};
    convert(device, demo, temp_path("whole.gguf"), &options);
    options.shard_bytes = MOST;
    convert(device, demo, temp_path("cut.gguf"), &options);
    assert_int_equal(access(temp_path("cut.gguf"), F_OK), -1);
    info_of(&whole, temp_path("whole.gguf"), "");
    int count = 1;
    for (;; count++) { /* the last part has the count in its name */
        snprintf(name, sizeof name, "cut-00001-of-%05d.gguf", count);
        if (count > 99 || access(temp_path(name), F_OK) == 0)
            break;
    }
    assert_true(count > 2 && count < 99);
    info_of(&cut, temp_path(name), "");
    assert_int_equal(qn_tensors_count(cut), qn_tensors_count(whole));
    assert_true(difference(device, temp_path("whole.gguf"), temp_path(name)) == 0);
    qn_tensors_close(cut);
    qn_tensors_close(whole);
    convert(device, temp_path(name), temp_path("again.gguf"),
            &(qn_convert_options){.size = sizeof options});
    convert(device, temp_path("whole.gguf"), temp_path("sorted.gguf"),
            &(qn_convert_options){.size = sizeof options});
    assert_same_files(temp_path("sorted.gguf"), temp_path("again.gguf"));
    snprintf(name, sizeof name, "cut-%05d-of-%05d.gguf", count, count);
    assert_true(size_of(temp_path(name)) < MOST + 10000);
    options = (qn_convert_options){.size = sizeof options, .bits = 4, .shard_bytes = MOST};
    convert(device, demo, temp_path("sharded"), &options);
    options.shard_bytes = 0;
    convert(device, demo, temp_path("unsharded"), &options);
    assert_int_equal(access(temp_path("sharded/model.safetensors"), F_OK), -1);
    info_of(&cut, temp_path("sharded"), "");
    uint64_t sums[100] = {0};
    int tensors[100] = {0}, shards = 0;
    for (size_t i = 0; i < qn_tensors_count(cut); i++) {
        const qn_tensor_info *t = qn_tensors_get(cut, i);
        sums[t->file % 100] += t->bytes;
        tensors[t->file % 100]++;
        shards = (int)t->file + 1 > shards ? (int)t->file + 1 : shards;
    }
    assert_true(shards > 2 && shards < 100);
    for (int i = 0; i < shards; i++)
        assert_true(sums[i] <= MOST || tensors[i] == 1);
    qn_tensors_close(cut);
    assert_int_equal(access(temp_path("sharded/model.safetensors.index.json"), F_OK), 0);
    assert_true(difference(device, temp_path("sharded"), temp_path("unsharded")) == 0);
    options.replace = true; /* with shards that are ours */
    convert(device, demo, temp_path("sharded"), &options);
    assert_same_files(temp_path("sharded/model.safetensors"),
                      temp_path("unsharded/model.safetensors"));
    qn_device_close(device);
}

static qn_status load_status(qn_device *device, const char *path, qn_error *err)
{
    qn__decoder m;
    *err = (qn_error){0};
    qn_status status = qn__decoder_load(&m, device, path, NULL, NULL, err);
    if (status == QN_OK)
        qn__decoder_end(&m);
    return status;
}

/* What a GGUF file's numbers are, which it does not say. */
static void test_own_numbers(void **state)
{
    static const struct {
        const char *type;
        qn_dtype is;
    } cases[] = {{"f32", QN_F32}, {"bf16", QN_BF16}, {"f16", QN_F16}, {"q8_0", QN_F16}};
    char demo[600];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn__decoder m;
        qn_convert_options options = {
            .size = sizeof options, .type = cases[i].type, .replace = true};
        convert(device, demo, temp_path("numbers.gguf"), &options);
        assert_int_equal(qn__decoder_load(&m, device, temp_path("numbers.gguf"), NULL, NULL, &err),
                         QN_OK);
        assert_int_equal(m.config.dtype, cases[i].is);
        qn__decoder_end(&m);
    }
    qn_device_close(device);
}

/* One byte sequence of a file becomes another of the same length. */
static void change_file(const char *path, const char *was, const char *is)
{
    size_t n, m = strlen(was);
    char *data = read_all(path, &n), *at = memmem(data, n, was, m);
    assert_non_null(at);
    memcpy(at, is, m);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
    free(data);
}

/* Packed weights are the same weights: as they are, of a recipe, in groups, from blocks and out of
 * packed ones again. */
static void test_packed(void **state)
{
    char demo[600];
    qn_error err;
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    qn_convert_options options = {.size = sizeof options, .type = "q4_k_m"};
    convert(device, demo, temp_path("k.gguf"), &options);
    options.packed = true;
    convert(device, demo, temp_path("k"), &options);
    assert_true(difference(device, temp_path("k.gguf"), temp_path("k")) == 0);
    options.type = NULL;
    convert(device, demo, temp_path("plain"), &options);
    assert_true(difference(device, demo, temp_path("plain")) == 0);
    convert(device, temp_path("k.gguf"), temp_path("k-again"), &options);
    assert_true(difference(device, temp_path("k.gguf"), temp_path("k-again")) == 0);
    convert(device, temp_path("k"), temp_path("k-third"), &options);
    assert_same_files(temp_path("k/model.safetensors"), temp_path("k-third/model.safetensors"));
    options.bits = 4;
    convert(device, demo, temp_path("p4"), &options);
    options.packed = false;
    convert(device, demo, temp_path("m4"), &options);
    assert_true(difference(device, temp_path("p4"), temp_path("m4")) == 0);
    options.bits = 0;
    convert(device, temp_path("k"), temp_path("k-out.gguf"), &options);
    assert_true(difference(device, temp_path("k"), temp_path("k-out.gguf")) == 0);
    /* another layout, another size, another name: refused */
    static const struct {
        const char *was, *is, *part;
        qn_status code;
    } cases[] = {{"\"units\":\"1\"", "\"units\":\"2\"", "convert the model again", QN_UNSUPPORTED},
                 {"q4_k 512 256", "q5_k 512 256", "take", QN_FORMAT},
                 {"q4_k 512 256", "q4_k 513 256", "is wanted", QN_FORMAT},
                 {"q4_k 512 256", "q4_z 512 256", "no encoding", QN_FORMAT},
                 {"q4_k 512 256", "q4_k 512 25x", "no encoding", QN_FORMAT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        change_file(temp_path("k/model.safetensors"), cases[i].was, cases[i].is);
        assert_int_not_equal(load_status(device, temp_path("k"), &err), QN_OK);
        if (err.code != cases[i].code)
            fail_msg("%s", err.message);
        if (!strstr(err.message, cases[i].part))
            fail_msg("\"%s\" lacks \"%s\"", err.message, cases[i].part);
        change_file(temp_path("k/model.safetensors"), cases[i].is, cases[i].was);
    }
    assert_int_equal(load_status(device, temp_path("k"), &err), QN_OK);
    options.packed = true;
    assert_int_equal(qn_convert(device, demo, temp_path("no.gguf"), &options, &err), QN_INVALID);
    qn_device_close(device);
}

/* Directories of mlx-lm's are sources, too: their groups stay, or become GGUF's blocks. */
static void test_from_groups(void **state)
{
    char demo[600];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    qn_convert_options options = {.size = sizeof options, .bits = 4, .group_size = 32};
    convert(device, demo, temp_path("four"), &options);
    options = (qn_convert_options){.size = sizeof options};
    convert(device, temp_path("four"), temp_path("four-again"), &options);
    double again = difference(device, temp_path("four"), temp_path("four-again"));
    printf("groups as values %.1e\n", again);
    assert_true(again < 1e-3);
    assert_int_equal(qn_convert(device, temp_path("four"), temp_path("four.gguf"), &options, &err),
                     QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "which GGUF does not have"));
    options.type = "f32";
    convert(device, temp_path("four"), temp_path("four.gguf"), &options);
    options = (qn_convert_options){.size = sizeof options, .dtype = "f32"};
    convert(device, temp_path("four"), temp_path("four-f32"), &options);
    assert_true(difference(device, temp_path("four.gguf"), temp_path("four-f32")) == 0);
    double e = difference(device, temp_path("four"), temp_path("four-f32"));
    printf("groups as f32 %.1e\n", e);
    assert_true(e < 1e-3);
    qn_device_close(device);
}

/* MLX's parts, put together again, are the encoder's blocks. */
static void test_groups(void **state)
{
    char demo[600];
    qn_tensors *from, *to;
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    qn_convert_options options = {.size = sizeof options, .bits = 5, .group_size = 32};
    convert(device, demo, temp_path("mlx"), &options);
    const qn__encoding *e = &qn__encodings[qn__encoding_affine(5, 32, QN__BF16)];
    const char *stem = "model.layers.2.self_attn.k_proj.";
    char name[100];
    snprintf(name, sizeof name, "%sweight", stem);
    const qn_tensor_info *x = info_of(&from, demo, name), *w = info_of(&to, temp_path("mlx"), name);
    snprintf(name, sizeof name, "%sscales", stem);
    const qn_tensor_info *s = qn_tensors_find(to, name);
    snprintf(name, sizeof name, "%sbiases", stem);
    const qn_tensor_info *z = qn_tensors_find(to, name);
    assert_true(x && w && s && z);
    assert_true(w->dtype == QN_U32 && s->dtype == QN_BF16 && z->dtype == QN_BF16);
    assert_true(w->shape[1] == 256 * 5 / 32 && s->shape[1] == 8 && z->shape[1] == 8);
    size_t n = (size_t)(x->shape[0] * x->shape[1]), blocks = n / 32;
    uint16_t *half = malloc(n * 2), *scales = malloc(blocks * 2), *biases = malloc(blocks * 2);
    float *values = malloc(n * sizeof *values);
    char *words = malloc(blocks * 20), *whole = malloc(blocks * e->block_bytes);
    qn_tensors_read_bytes(from, x, 0, n * 2, half, NULL);
    qn_tensors_read_bytes(to, w, 0, blocks * 20, words, NULL);
    qn_tensors_read_bytes(to, s, 0, blocks * 2, scales, NULL);
    qn_tensors_read_bytes(to, z, 0, blocks * 2, biases, NULL);
    qn__encodings[QN__BF16].decode(&qn__encodings[QN__BF16], half, n, values);
    e->encode(e, values, NULL, blocks, whole);
    for (size_t i = 0; i < blocks; i++) {
        assert_memory_equal(whole + i * e->block_bytes, words + i * 20, 20);
        assert_memory_equal(whole + i * e->block_bytes + 20, &scales[i], 2);
        assert_memory_equal(whole + i * e->block_bytes + 22, &biases[i], 2);
    }
    free(half);
    free(scales);
    free(biases);
    free(values);
    free(words);
    free(whole);
    qn_tensors_close(from);
    qn_tensors_close(to);
    qn_device_close(device);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void test_full_disk(void **state)
{
    char from[600];
    qn_device *device = open_cpu(state);
    golden_directory(from, sizeof from, "llama/plain");
    char room[700];
    snprintf(room, sizeof room, "%s", temp_mkdir("full"));
    for (int directory = 0; directory < 2; directory++) {
        const char *out = temp_path(directory ? "full/model" : "full/model.gguf");
        long n = 0;
        for (;; n++) {
            qn_error err = {0};
            writes_left = n;
            qn_status status = qn_convert(device, from, out, NULL, &err);
            bool failed = writes_left == 0 && status != QN_OK;
            writes_left = -1;
            if (!failed) {
                assert_int_equal(status, QN_OK);
                break;
            }
            assert_int_equal(status, QN_IO);
            assert_non_null(strstr(err.message, "no space left"));
            assert_int_equal(temp_count(room), directory);
        }
        assert_true(n > 2);
        assert_int_equal(temp_count(room), 1 + directory);
    }
    qn_device_close(device);
}

static void test_no_memory(void **state)
{
    char demo[600];
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "tests/golden/llama/plain");
    char room[700]; /* paths of temp_path do not last */
    snprintf(room, sizeof room, "%s", temp_mkdir("memory"));
    for (int directory = 0; directory < 2; directory++)
        for (long n = 0;; n++) {
            qn_error err = {0};
            qn_convert_options options = {.size = sizeof options, .threads = 2};
            if (directory)
                options.bits = 4;
            fail_allocation_begin(n);
            qn_status status = qn_convert(
                device, demo, temp_path(directory ? "memory/m" : "memory/m.gguf"), &options, &err);
            if (!fail_allocation_end()) {
                assert_int_equal(status, QN_OK);
                break;
            }
            if (status == QN_OK) { /* cJSON or a thread did without */
                if (!directory)
                    remove(temp_path("memory/m.gguf"));
                remove(temp_path("memory/m/model.safetensors"));
                remove(temp_path("memory/m/config.json"));
                remove(temp_path("memory/m"));
                continue;
            }
            assert_int_equal(temp_count(room), directory);
        }
    qn_device_close(device);
}

static bool stop(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    return done * 2 < total;
}

static void test_refused(void **state)
{
    char demo[600];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    source_path(demo, sizeof demo, "models/demo");
    const char *gguf = temp_path("refused.gguf"), *folder = temp_path("refused");
    qn_convert_options options = {.size = sizeof options, .progress = stop};
    assert_int_equal(qn_convert(device, demo, gguf, &options, &err), QN_CANCELLED);
    assert_int_equal(access(gguf, F_OK), -1);
    options.progress = NULL;
    convert(device, demo, gguf, &options);
    convert(device, demo, folder, &options);
    assert_int_equal(qn_convert(device, demo, gguf, &options, NULL), QN_INVALID);
    assert_int_equal(qn_convert(device, demo, folder, &options, NULL), QN_INVALID);
    options.replace = true;
    convert(device, demo, folder, &options);
    temp_write("refused/notes.txt", "mine", 4);
    assert_int_equal(qn_convert(device, demo, folder, &options, NULL), QN_INVALID);
    assert_int_equal(qn_convert(device, gguf, gguf, &options, NULL), QN_INVALID);
    assert_int_equal(qn_convert(device, folder, folder, &options, NULL), QN_INVALID);
    options.type = "q4_k_m";
    assert_int_equal(qn_convert(device, demo, temp_path("other"), &options, NULL), QN_INVALID);
    options.type = "q9";
    assert_int_equal(qn_convert(device, demo, gguf, &options, NULL), QN_UNSUPPORTED);
    options.type = NULL;
    options.bits = 7;
    assert_int_equal(qn_convert(device, demo, temp_path("other"), &options, NULL), QN_INVALID);
    assert_int_equal(qn_convert(device, demo, gguf, &options, NULL), QN_INVALID);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),    cmocka_unit_test(test_unsaid),
        cmocka_unit_test(test_ternary),     cmocka_unit_test(test_demo),
        cmocka_unit_test(test_recipes),     cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_same_bytes),  cmocka_unit_test(test_groups),
        cmocka_unit_test(test_full_disk),   cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_meta),
        cmocka_unit_test(test_shards),      cmocka_unit_test(test_packed),
        cmocka_unit_test(test_own_numbers), cmocka_unit_test(test_from_groups),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
