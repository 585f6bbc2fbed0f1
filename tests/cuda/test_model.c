/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole models on a GPU: greedy tokens equal to the CPU's, one graph launch and one read a token;
 * models in encodings that it does not hold are refused with an error that names those it holds;
 * logits are the same bits in whatever company where the model is batch-invariant, and near those
 * where it is not.
 * Arguments are parts (golden, ternary, tokens, company) or directories of models; without any, all
 * is done. Exits with 77 where there is no GPU.
 */
#include "models/golden_model.h"

#include "cuda/device.h"

#include <glob.h>
#include <math.h>

enum { TOKENS = 40, WARM = 3 };

static int n_failed, n_compared;

static void check(bool ok, const char *what, const char *detail)
{
    n_failed += !ok;
    if (!ok)
        printf("FAILED  %s: %s\n", what, detail);
}

typedef struct run {
    int32_t tokens[TOKENS];
    float *logits; /* behind the prompt */
    int64_t vocab;
    uint64_t launches, captures, reads, beside; /* of the tokens after the first WARM */
    bool refused;   /* the device holds no weights in an encoding, and says so */
    bool halves;    /* some weights are f16, for which a GPU rounds what they multiply */
    uint64_t cache; /* bytes of a sequence */
} run;

static const int32_t prompt[] = {3, 17, 42, 5, 60, 11, 29};

/* Runs the prompt, then greedy steps. */
static bool run_session(qn_device *dev, qn_session *session, bool cuda, run *r, qn_error *err)
{
    size_t n = sizeof prompt / sizeof *prompt;
    qn__cuda_stats before = {0}, after = {0};
    if (qn_session_append(session, prompt, n, err) != QN_OK)
        return false;
    r->logits = malloc((size_t)r->vocab * sizeof *r->logits);
    if (!r->logits)
        return false;
    memcpy(r->logits, qn_session_logits(session), (size_t)r->vocab * sizeof *r->logits);
    int32_t token = 1;
    for (int i = 0; i < TOKENS; i++) {
        if (cuda && i == WARM)
            before = qn__cuda_stats_get(dev);
        if (qn_session_step_greedy(session, token, &token, err) != QN_OK)
            return false;
        r->tokens[i] = token;
    }
    if (cuda)
        after = qn__cuda_stats_get(dev);
    r->launches = after.launches - before.launches;
    r->captures = after.captures - before.captures;
    r->reads = after.host_reads - before.host_reads;
    r->beside = after.beside - before.beside;
    return true;
}

/* cache: the type of keys and values; NULL: the usual one. */
static bool run_model(qn_device *dev, const char *path, const char *cache, bool cuda, run *r)
{
    qn_error err = {0};
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_model_options options = {.size = sizeof options, .no_tokenizer = true};
    qn_session_options of_session = {
        .size = sizeof of_session, .cache_type_k = cache, .cache_type_v = cache};
    bool ok = qn_model_open(&model, dev, path, &options, &err) == QN_OK;
    if (ok) {
        qn_model_info info = QN_INIT(qn_model_info);
        qn_model_get_info(model, &info);
        r->vocab = info.vocab_size;
        r->halves = !strncmp(info.types, "f16 ", 4) || strstr(info.types, ", f16 ");
        r->cache = qn_model_cache_bytes(model, &of_session);
        ok = qn_session_open(&session, model, &of_session, &err) == QN_OK &&
             run_session(dev, session, cuda, r, &err);
    }
    r->refused = cuda && !model && err.code == QN_UNSUPPORTED &&
                 strstr(err.message, "cuda:0 holds no weights in") &&
                 strstr(err.message, "it holds them in f32, f16, bf16");
    if (r->refused)
        printf("%s: %s\n", path, err.message);
    check(ok || r->refused, path, err.message);
    qn_session_close(session);
    qn_model_close(model);
    return ok;
}

/* Whether the CPU's logits behind the tokens that are the same leave `other` as likely as its own
 * choice, but for what rounding in f16 does: a key or a value that rounds otherwise may make a byte
 * of x another one, which is more than what products in f16 differ by. */
static bool is_tie(qn_device *cpu, const char *path, const char *cache, const run *want, int same,
                   int32_t other)
{
    qn_error err = {0};
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_model_options options = {.size = sizeof options, .no_tokenizer = true};
    qn_session_options of_session = {
        .size = sizeof of_session, .cache_type_k = cache, .cache_type_v = cache};
    const int32_t first = 1;
    bool ran = qn_model_open(&model, cpu, path, &options, &err) == QN_OK &&
               qn_session_open(&session, model, &of_session, &err) == QN_OK &&
               qn_session_append(session, prompt, sizeof prompt / sizeof *prompt, &err) == QN_OK &&
               qn_session_append(session, &first, 1, &err) == QN_OK &&
               (!same || qn_session_append(session, want->tokens, (size_t)same, &err) == QN_OK);
    double gap = INFINITY, power = 0;
    if (ran) {
        const float *logits = qn_session_logits(session);
        gap = (double)logits[want->tokens[same]] - (double)logits[other];
        for (int64_t i = 0; i < want->vocab; i++)
            power += (double)logits[i] * (double)logits[i];
        gap /= sqrt(power / (double)want->vocab);
        printf("%s: token %d is %d, not %d, by %.2g of logits' size\n", path, same, (int)other,
               (int)want->tokens[same], gap);
    }
    qn_session_close(session);
    qn_model_close(model);
    return gap >= 0 && gap < (cache ? 2e-2 : 2e-3);
}

static void compare(qn_device *cpu, qn_device *cuda, const char *path, const char *cache)
{
    run want = {{0}}, got = {{0}};
    bool ran =
        run_model(cpu, path, cache, false, &want) && run_model(cuda, path, cache, true, &got);
    if (ran && want.cache != got.cache) { /* a GPU keeps f16 where the CPU keeps f32 */
        compare(cpu, cuda, path, "f32");
        compare(cpu, cuda, path, "f16");
    } else if (ran) {
        double error = 0, power = 0;
        for (int64_t i = 0; i < want.vocab; i++) {
            double d = (double)got.logits[i] - (double)want.logits[i];
            error += d * d;
            power += (double)want.logits[i] * (double)want.logits[i];
        }
        int same = 0;
        const bool halves = want.halves || (cache && !strcmp(cache, "f16"));
        n_compared++;
        while (same < TOKENS && want.tokens[same] == got.tokens[same])
            same++;
        printf("%s, %s keys and values: logits nmse %.3g, %d of %d tokens the same; of %d tokens: "
               "%llu launches, %llu captures, %llu reads\n",
               path, cache ? cache : "usual", error / power, same, TOKENS, TOKENS - WARM,
               (unsigned long long)got.launches, (unsigned long long)got.captures,
               (unsigned long long)got.reads);
        check(error <= (halves ? 1e-6 : 1e-9) * power, path, "logits");
        check(same == TOKENS || (halves && is_tie(cpu, path, cache, &want, same, got.tokens[same])),
              path, "greedy tokens");
        check(got.launches == TOKENS - WARM, path, "one launch a token");
        check(got.captures == 0, path, "nothing is captured again");
        check(got.reads == TOKENS - WARM, path, "only tokens are read");
        check(got.beside == TOKENS - WARM, path, "each is written for beside the one before");
    }
    free(want.logits);
    free(got.logits);
}

/* ---- company --------------------------------------------------------------------------------- */

/* So long that in one step attention has a block for each tile of rows (op_attend.c). */
enum { LENGTH = 1100, TOGETHER = 32, VOCABULARY = 512 };

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":512,\"intermediate_size\":1024,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":64,"
    "\"vocab_size\":512,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-6,"
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}";

/* Logits [n, VOCABULARY] of a text in steps of so many tokens, with such a cache. */
static bool score_with(qn_model *model, const char *cache, int64_t chunk, const int32_t *ids,
                       int64_t n, float *logits, qn_error *err)
{
    const char *type = cache ? cache : "", *of_values = strchr(type, '/');
    char keys[16];
    snprintf(keys, sizeof keys, "%.*s", (int)strcspn(type, "/"), type);
    qn_session *session = NULL;
    qn_session_options o = {.size = sizeof o,
                            .prefill_chunk = chunk,
                            .cache_type_k = cache ? keys : NULL,
                            .cache_type_v = of_values ? of_values + 1 : cache};
    bool ok = qn_session_open(&session, model, &o, err) == QN_OK &&
              qn_session_score(session, ids, n, logits, err) == QN_OK;
    qn_session_close(session);
    return ok;
}

static bool score(qn_model *model, int64_t chunk, const int32_t *ids, int64_t n, float *logits,
                  qn_error *err)
{
    return score_with(model, NULL, chunk, ids, n, logits, err);
}

/* Those behind the text, the second one of `batch` sequences that run side by side. */
static bool run_together(qn_model *model, int batch, const int32_t *ids, float *logits,
                         qn_error *err)
{
    qn_session *session = NULL;
    qn_session_options o = {.size = sizeof o, .batch = batch};
    bool ok = qn_session_open(&session, model, &o, err) == QN_OK;
    for (int i = 0; ok && i < LENGTH; i++) {
        int32_t column[TOGETHER];
        for (int k = 0; k < batch; k++)
            column[k] = k == 1 ? ids[i] : (k * LENGTH + i) % 509;
        ok = qn_session_append(session, column, 1, err) == QN_OK;
    }
    if (ok)
        memcpy(logits, qn_session_logits(session) + VOCABULARY, VOCABULARY * sizeof *logits);
    qn_session_close(session);
    return ok;
}

static double nmse_of(const float *a, const float *b, size_t n)
{
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        power += (double)b[i] * b[i];
    }
    return error / power;
}

static void test_company(qn_device *cuda, const char *type)
{
    enum { N = LENGTH * VOCABULARY };
    static const int batches[] = {3, 12, TOGETHER}; /* heads have 8, 4 and 2 blocks each */
    static float alone[N], whole[N], quick[N], together[VOCABULARY];
    int32_t ids[LENGTH];
    qn_error err = {0};
    qn_model *exact = NULL, *model = NULL;
    qn_model_options o = {.size = sizeof o, .batch_invariant = true};
    for (int i = 0; i < LENGTH; i++)
        ids[i] = i * 37 % 511;
    bool ok =
        qn_model_open_random(&exact, cuda, config, strlen(config), type, type, &o, &err) == QN_OK &&
        qn_model_open_random(&model, cuda, config, strlen(config), type, type, NULL, &err) ==
            QN_OK &&
        score(exact, 1, ids, LENGTH, alone, &err) && score(exact, 0, ids, LENGTH, whole, &err) &&
        score(model, 0, ids, LENGTH, quick, &err);
    check(ok, type, err.message);
    if (ok) {
        double nmse = nmse_of(quick, alone, N);
        printf("%s: a prompt's logits differ from single tokens' by nmse %.3g\n", type, nmse);
        check(!memcmp(alone, whole, sizeof alone), type, "batch-invariant: a prompt's bits");
        for (int i = 0; i < 3; i++) {
            check(run_together(exact, batches[i], ids, together, &err), type, err.message);
            check(!memcmp(alone + N - VOCABULARY, together, sizeof together), type,
                  "batch-invariant: bits in a batch");
        }
        check(nmse > 0, type, "the option makes a difference");
        check(nmse < 1e-3, type, "the difference is small");
    }
    qn_model_close(exact);
    qn_model_close(model);
}

#define TERNARY(wide, inner, layers, heads, key_heads)                                             \
    "{\"model_type\":\"bitnet\",\"hidden_size\":" #wide ",\"intermediate_size\":" #inner           \
    ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads                           \
    ",\"num_key_value_heads\":" #key_heads ",\"vocab_size\":512,"                                  \
    "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,"         \
    "\"hidden_act\":\"relu2\",\"quantization_config\":{"                                           \
    "\"quant_method\":\"bitnet\",\"linear_class\":\"autobitlinear\"}}"

/* Ternary weights: logits of single tokens, of some at a time and of a prompt, the same bits, which
 * come from kernels for one row, for few and for many. */
static void test_ternary(qn_device *cuda, const char *config)
{
    static float alone[LENGTH * VOCABULARY], some[LENGTH * VOCABULARY];
    static const int64_t chunks[] = {20, 70, 300, 0};
    int32_t ids[LENGTH];
    qn_error err = {0};
    qn_model *model = NULL;
    qn_model_options o = {.size = sizeof o, .batch_invariant = true};
    for (int i = 0; i < LENGTH; i++)
        ids[i] = i * 37 % 511;
    bool ok = qn_model_open_random(&model, cuda, config, strlen(config), "i2_s", "i2_s", &o,
                                   &err) == QN_OK &&
              score(model, 1, ids, LENGTH, alone, &err);
    check(ok, "ternary", err.message);
    for (size_t i = 0; ok && i < sizeof chunks / sizeof *chunks; i++) {
        char text[64];
        snprintf(text, sizeof text, "%d tokens at a time: a token's bits", (int)chunks[i]);
        check(score(model, chunks[i], ids, LENGTH, some, &err), "ternary", err.message);
        int64_t same = 0;
        while (same < LENGTH && !memcmp(some + same * VOCABULARY, alone + same * VOCABULARY,
                                        VOCABULARY * sizeof *some))
            same++;
        printf("ternary, %d tokens at a time: %d of %d have a token's bits\n", (int)chunks[i],
               (int)same, (int)LENGTH);
        check(same == LENGTH, "ternary", text);
    }
    qn_model_close(model);
}

static void test_all_ternary(qn_device *cuda)
{
    test_ternary(cuda, TERNARY(512, 1152, 3, 8, 2));
    test_ternary(cuda, TERNARY(2560, 6912, 2, 20, 5));
    test_ternary(cuda, TERNARY(3584, 4736, 1, 28, 4));
    test_ternary(cuda, TERNARY(512, 5376, 1, 8, 2));
    test_ternary(cuda, TERNARY(1024, 7680, 1, 16, 4));
}

/* Logits of single tokens, of a few at a time and of a prompt, the same bits, for each way in which
 * attention of a token goes over pages: heads of each size, of few key heads and of many, more than
 * eight for one, few pages and more, several rounds of them, a window that begins within a page,
 * soft caps, norms of heads; and over caches in f16 and in blocks. */
static void test_tokens(qn_device *cuda)
{
    enum { MOST = 4400 };
    static const struct {
        const char *family;
        int heads, groups, head_dim, length, window;
        const char *cache;
    } all[] = {
        {"llama", 8, 2, 128, 2200, 0},
        {"llama", 4, 1, 256, 1100, 0},
        {"llama", 8, 1, 64, 1100, 0},
        {"llama", 6, 2, 64, 1100, 0},
        {"llama", 24, 24, 64, 600, 0},
        {"llama", 17, 17, 128, 600, 0},
        {"mistral", 8, 2, 64, 1100, 150},
        {"mistral", 4, 1, 128, 1100, 1000},
        {"gemma2", 4, 2, 256, 1100, 333},
        {"llama", 32, 8, 128, MOST, 0},
        {"llama", 16, 8, 64, MOST, 0},
        {"llama", 64, 8, 64, MOST, 0},
        {"llama", 24, 24, 128, MOST, 0},
        {"mistral", 16, 8, 128, MOST, 4200},
        {"llama", 24, 2, 64, 600, 0},
        {"llama", 16, 1, 128, 1100, 0},
        {"qwen3", 8, 2, 128, 1100, 0},
        {"gemma3_text", 4, 1, 256, 1100, 333},
        {"gemma3_text", 4, 1, 256, 1100, 512},
        {"qwen3", 16, 8, 128, MOST, 0},
        {"qwen3", 32, 8, 128, 600, 0},
        {"llama", 64, 8, 128, MOST, 0},
        {"llama", 56, 8, 64, MOST, 0},
        {"llama", 32, 8, 128, MOST, 0, "f16"},
        {"gemma3_text", 4, 1, 256, 1100, 333, "f16"},
        {"gemma3_text", 4, 1, 256, 1100, 512, "f16"},
        {"llama", 16, 8, 64, MOST, 0, "f16"},
        {"llama", 17, 17, 128, 600, 0, "f16"},
        {"qwen3", 8, 2, 128, 1100, 0, "f16"},
        {"llama", 32, 8, 128, MOST, 0, "q8_0"},
        {"llama", 16, 8, 64, MOST, 0, "q4_0"},
        {"gemma3_text", 4, 1, 256, 1100, 333, "q8_0"},
        {"qwen3", 8, 2, 128, 1100, 0, "q5_1"},
        {"qwen3", 16, 2, 128, 1600, 0, "q8_0"},
        {"llama", 20, 20, 64, 1900, 0, "q8_0"},
        {"gemma2", 4, 2, 256, 600, 333, "q4_0"},
        {"llama", 21, 7, 128, 2600, 0, "q8_0/q4_0"},
        {"mistral", 48, 24, 128, 1500, 900, "q4_0"},
        {"qwen3", 34, 17, 256, 700, 0, "q8_0/q4_0"},
        {"llama", 32, 8, 128, MOST, 0, "f16/q8_0"},
        {"llama", 16, 8, 64, 2600, 0, "bf16/q8_0"},
        {"qwen3", 16, 8, 128, 1600, 0, "bf16/q8_0"},
        {"gemma3_text", 4, 1, 256, 1100, 333, "f16/q8_0"},
        {"llama", 20, 20, 64, 1900, 0, "f16/q8_0"},
    };
    static float alone[MOST * VOCABULARY], whole[MOST * VOCABULARY], some[MOST * VOCABULARY];
    int32_t ids[MOST];
    for (int i = 0; i < MOST; i++)
        ids[i] = i * 37 % 511;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[640], name[80];
        const int64_t n = all[i].length;
        qn_error err = {0};
        qn_model *model = NULL;
        qn_model_options o = {.size = sizeof o, .batch_invariant = true};
        const bool capped = !strcmp(all[i].family, "gemma2");
        const char *caps =
            capped ? "\"attn_logit_softcapping\":5.0,\"final_logit_softcapping\":30.0," : "";
        snprintf(name, sizeof name, "%s, %d and %d heads of %d, %s", all[i].family, all[i].heads,
                 all[i].groups, all[i].head_dim, all[i].cache ? all[i].cache : "bf16");
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",\"hidden_size\":%d,\"intermediate_size\":512,"
                 "\"num_hidden_layers\":2,\"num_attention_heads\":%d,"
                 "\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,"
                 "\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-6,\"sliding_window\":%d,"
                 "\"query_pre_attn_scalar\":256,%s"
                 "\"hidden_activation\":\"gelu_pytorch_tanh\","
                 "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"%s\"}",
                 all[i].family, all[i].heads * all[i].head_dim, all[i].heads, all[i].groups,
                 all[i].head_dim, VOCABULARY, all[i].window ? all[i].window : 8192, caps,
                 capped ? "gelu_pytorch_tanh" : "silu");
        bool ok = qn_model_open_random(&model, cuda, text, strlen(text), "bf16", "bf16", &o,
                                       &err) == QN_OK &&
                  score_with(model, all[i].cache, 1, ids, n, alone, &err) &&
                  score_with(model, all[i].cache, 0, ids, n, whole, &err);
        check(ok, name, err.message);
        for (int64_t few = 3; ok && few <= 12; few += 9)
            check(score_with(model, all[i].cache, few, ids, n, some, &err) &&
                      !memcmp(some, whole, (size_t)n * VOCABULARY * sizeof *some),
                  name, "a few tokens at a time: a prompt's bits");
        int64_t same = 0;
        while (ok && same < n &&
               !memcmp(alone + same * VOCABULARY, whole + same * VOCABULARY,
                       VOCABULARY * sizeof *alone))
            same++;
        printf("%s: %lld of %lld tokens' logits have a prompt's bits\n", name, (long long)same,
               (long long)n);
        check(same == n, name, "single tokens: a prompt's bits");
        qn_model_close(model);
    }
}

/* Every tests/golden/FAMILY/MODEL. */
static void compare_golden(qn_device *cpu, qn_device *cuda)
{
    char pattern[512], path[512];
    glob_t found;
    golden_path(pattern, sizeof pattern, "*/*", "config.json");
    check(glob(pattern, 0, NULL, &found) == 0, pattern, "no models");
    temp_begin(NULL);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = strrchr(found.gl_pathv[i], '/');
        for (*name = 0; strncmp(name, "/golden/", 8) != 0; name--)
            continue;
        golden_directory(path, sizeof path, name + 8);
        compare(cpu, cuda, path, NULL);
    }
    temp_end(NULL);
    globfree(&found);
    check(n_compared > 40, pattern, "most models are held");
}

static bool part_wanted(const char *name, int argc, char **argv)
{
    bool wanted = argc < 2;
    for (int i = 1; i < argc; i++)
        wanted = wanted || !strcmp(argv[i], name);
    return wanted;
}

int main(int argc, char **argv)
{
    qn_device *cpu = NULL, *cuda = NULL;
    qn_error err = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (qn_device_open(&cuda, "cuda:0", NULL, &err) != QN_OK) {
        printf("skipped: %s\n", err.message);
        return err.code == QN_UNSUPPORTED ? 77 : 1;
    }
    if (qn_device_open(&cpu, "cpu", NULL, &err) != QN_OK) {
        printf("cpu: %s\n", err.message);
        return 1;
    }
    if (part_wanted("ternary", argc, argv))
        test_all_ternary(cuda);
    if (part_wanted("tokens", argc, argv))
        test_tokens(cuda);
    if (part_wanted("company", argc, argv)) {
        test_company(cuda, "bf16");
        test_company(cuda, "f16");
        test_company(cuda, "q4_k");
        test_company(cuda, "affine4-g64-bf16");
    }
    if (part_wanted("golden", argc, argv))
        compare_golden(cpu, cuda);
    for (int i = 1; i < argc; i++)
        if (strchr(argv[i], '/'))
            compare(cpu, cuda, argv[i], NULL);
    check(memory_of(cuda).active == 0, "memory", "all are back");
    qn_device_close(cuda);
    qn_device_close(cpu);
    printf("%d failed\n", n_failed);
    return n_failed ? 1 : 0;
}
