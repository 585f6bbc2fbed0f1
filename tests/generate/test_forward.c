/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts side by side: what transformers makes of them (tests/golden/make_forward.py), and to the
 * bit what a session makes of each alone, whatever the steps, lengths and groups; steps are full;
 * what cannot be is refused.
 */
#include "generate/model_test.h"
#include "models/golden_model.h"

#include "quern/forward.h"

#include <math.h>

enum { N_TEXTS = 12, LONGEST = 330, N_LABELS = 3, N_GOLDEN = 4 };

static const char *const golden_names[] = {"llama/llama3-tied", "gemma2/plain", "gemma3/text",
                                           "qwen3/plain",       "qwen3/yarn",   "mistral/window",
                                           "smollm3/plain"};

static qn_model *open_golden(qn_device *device, const char *name)
{
    char path[600];
    golden_directory(path, sizeof path, name);
    return open_model_at(device, path, false);
}

static qn_tensors *open_forward(const char *name)
{
    char flat[100];
    snprintf(flat, sizeof flat, "forward/%s.safetensors", name);
    *strchr(strchr(flat, '/') + 1, '/') = '-';
    char path[600];
    golden_path(path, sizeof path, flat, NULL);
    qn_tensors *file;
    qn_error err = {0};
    if (qn_tensors_open(&file, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return file;
}

static size_t hidden_of(const qn_model *model)
{
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    return (size_t)info.hidden_size;
}

/* ---- transformers ---------------------------------------------------------------------------- */

static void check_near(const char *name, const float *got, const float *want, size_t n, double most)
{
    double e = nmse(got, want, n);
    if (!(e < most))
        fail_msg("%s: NMSE %g", name, e);
}

static void check_embeddings(qn_model *model, const qn_tensors *file, const qn_ids *texts)
{
    static const char *const poolings[] = {"mean", "last"};
    size_t width = hidden_of(model), n;
    float *got = malloc(N_GOLDEN * width * sizeof *got);
    for (int p = 0; p < 2; p++) {
        float *want = golden_tensor(file, poolings[p], &n);
        assert_int_equal(n, N_GOLDEN * width);
        for (int norm = QN_NORM_L2; norm <= QN_NORM_NONE; norm++) {
            qn_embed_options o = {
                .size = sizeof o, .pooling = (qn_pooling)p, .norm = (qn_norm)norm};
            qn_error err = {0};
            assert_int_equal(qn_embed(model, texts, N_GOLDEN, &o, NULL, got, &err), QN_OK);
            for (size_t i = 0; i < N_GOLDEN; i++) {
                double sum = 0, squares = 0, most = 0;
                float *w = want + i * width, *scaled = malloc(width * sizeof *scaled);
                for (size_t k = 0; k < width; k++) {
                    sum += fabs((double)w[k]);
                    squares += (double)w[k] * (double)w[k];
                    most = fmax(most, fabs((double)w[k]));
                }
                double by = norm == QN_NORM_L2     ? sqrt(squares)
                            : norm == QN_NORM_L1   ? sum
                            : norm == QN_NORM_NONE ? 1
                                                   : most / 32760;
                for (size_t k = 0; k < width; k++)
                    scaled[k] = (float)((double)w[k] / by);
                check_near(poolings[p], got + i * width, scaled, width, 1e-9);
                free(scaled);
            }
        }
        free(want);
    }
    free(got);
}

static void check_labels(qn_model *model, const qn_tensors *file, const qn_ids *texts)
{
    size_t n;
    int32_t *ids = golden_tensor(file, "labels", &n);
    float *want = golden_tensor(file, "label_logprobs", &n);
    const qn_ids labels[N_LABELS] = {{ids, 1}, {ids + 1, 2}, {ids + 3, 3}};
    qn_label_score got[N_GOLDEN][N_LABELS];
    qn_error err = {0};
    if (qn_classify(model, texts, N_GOLDEN, labels, N_LABELS, NULL, &got[0][0], &err) != QN_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < N_GOLDEN; i++) {
        double sum = 0, all = 0;
        for (size_t j = 0; j < N_LABELS; j++) {
            double w = (double)want[i * N_LABELS + j];
            if (fabs(got[i][j].logprob - w) > 2e-4)
                fail_msg("text %zu, label %zu: %g, not %g", i, j, got[i][j].logprob, w);
            sum += got[i][j].probability;
            all += exp(w);
        }
        assert_true(fabs(sum - 1) < 1e-12);
        for (size_t j = 0; j < N_LABELS; j++)
            assert_true(fabs(got[i][j].probability - exp((double)want[i * N_LABELS + j]) / all) <
                        1e-4);
    }
    free(ids);
    free(want);
}

static void test_golden(void **state)
{
    qn_device *device = open_cpu(state);
    for (size_t m = 0; m < sizeof golden_names / sizeof *golden_names; m++) {
        qn_model *model = open_golden(device, golden_names[m]);
        qn_tensors *file = open_forward(golden_names[m]);
        size_t n;
        int32_t *tokens = golden_tensor(file, "tokens", &n);
        int32_t *lengths = golden_tensor(file, "lengths", &n);
        assert_int_equal(n, N_GOLDEN);
        qn_ids texts[N_GOLDEN];
        for (size_t i = 0; i < N_GOLDEN; i++)
            texts[i] = (qn_ids){tokens, (size_t)lengths[i]};
        check_embeddings(model, file, texts);
        check_labels(model, file, texts);
        free(tokens);
        free(lengths);
        qn_tensors_close(file);
        qn_model_close(model);
    }
    qn_device_close(device);
}

/* ---- alone ----------------------------------------------------------------------------------- */

typedef struct corpus {
    int32_t ids[N_TEXTS][LONGEST + 8];
    qn_ids texts[N_TEXTS];
    int32_t label_ids[8];
    qn_ids labels[N_LABELS];
    float *logits; /* [N_TEXTS, vocab] of a session with one text */
    double logprobs[N_TEXTS][N_LABELS];
} corpus;

static double logprob_of(const float *row, size_t vocab, int32_t id, qn_device *device)
{
    qn_logprob own;
    assert_int_equal(qn_logprobs(device, row, vocab, id, 0, &own, NULL), QN_OK);
    return (double)own.logprob;
}

static void run_alone(qn_device *device, qn_model *model, corpus *c)
{
    size_t vocab = vocab_of(model);
    float *row = malloc(8 * vocab * sizeof *row);
    c->logits = malloc(N_TEXTS * vocab * sizeof *c->logits);
    qn_error err = {0};
    for (size_t i = 0; i < N_TEXTS; i++) {
        qn_session *session = open_session(model, 0, 1);
        assert_int_equal(qn_session_append(session, c->texts[i].ids, c->texts[i].n, &err), QN_OK);
        memcpy(c->logits + i * vocab, qn_session_logits(session), vocab * sizeof *row);
        for (size_t j = 0; j < N_LABELS; j++) {
            const qn_ids *label = &c->labels[j];
            double sum = logprob_of(c->logits + i * vocab, vocab, label->ids[0], device);
            qn_session_rewind(session, (int64_t)c->texts[i].n);
            if (label->n > 1)
                assert_int_equal(qn_session_score(session, label->ids, label->n - 1, row, &err),
                                 QN_OK);
            for (size_t k = 1; k < label->n; k++)
                sum += logprob_of(row + (k - 1) * vocab, vocab, label->ids[k], device);
            c->logprobs[i][j] = sum;
        }
        qn_session_close(session);
    }
    free(row);
}

static corpus *make_corpus(qn_device *device, qn_model *model)
{
    static const size_t lengths[N_TEXTS] = {20, 1, 64, 63, 65, LONGEST, 2, 128, 200, 31, 7, 100};
    corpus *c = calloc(1, sizeof *c);
    size_t vocab = vocab_of(model);
    for (size_t i = 0; i < N_TEXTS; i++) {
        random_tokens(c->ids[i], LONGEST, vocab, i + 1);
        c->texts[i] = (qn_ids){c->ids[i], lengths[i]};
    }
    random_tokens(c->label_ids, 8, vocab, 99);
    c->labels[0] = (qn_ids){c->label_ids, 3};
    c->labels[1] = (qn_ids){c->label_ids + 3, 1};
    c->labels[2] = (qn_ids){c->label_ids + 4, 4};
    run_alone(device, model, c);
    return c;
}

static void count_step(void *user, uint64_t done, uint64_t total)
{
    uint64_t *seen = user;
    assert_true(done > seen[1] && done <= total);
    seen[0]++;
    seen[1] = done;
    seen[2] = total;
}

static void check_steps(qn_model *model, const corpus *c, const qn_forward_options *with)
{
    size_t vocab = vocab_of(model), width = hidden_of(model), all = 0;
    float *logits = malloc(N_TEXTS * vocab * sizeof *logits);
    float *vectors = malloc(N_TEXTS * width * sizeof *vectors);
    float *alone = malloc(width * sizeof *alone);
    uint64_t seen[3] = {0};
    qn_forward_options o = *with;
    qn_error err = {0};
    o.progress = count_step;
    o.progress_user = seen;
    if (qn_next_logits(model, c->texts, N_TEXTS, &o, logits, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_memory_equal(logits, c->logits, N_TEXTS * vocab * sizeof *logits);
    for (size_t i = 0; i < N_TEXTS; i++)
        all += c->texts[i].n;
    size_t step = o.step_tokens ? (size_t)o.step_tokens : 512;
    assert_int_equal(seen[0], (all + step - 1) / step); /* no step is emptier than it must be */
    assert_int_equal(seen[1], all);
    assert_int_equal(seen[2], all);
    for (int p = 0; p < 2; p++) {
        qn_embed_options e = {.size = sizeof e, .pooling = (qn_pooling)p};
        assert_int_equal(qn_embed(model, c->texts, N_TEXTS, &e, with, vectors, &err), QN_OK);
        for (size_t i = 0; i < N_TEXTS; i++) {
            assert_int_equal(qn_embed(model, &c->texts[i], 1, &e, NULL, alone, &err), QN_OK);
            assert_memory_equal(alone, vectors + i * width, width * sizeof *alone);
        }
    }
    free(logits);
    free(vectors);
    free(alone);
}

/* Labels of several tokens, in groups that the cache has room for. */
static void check_groups(qn_model *model, const corpus *c, const qn_forward_options *with)
{
    qn_label_score got[N_TEXTS][N_LABELS], one[N_LABELS];
    uint64_t seen[3] = {0};
    qn_forward_options o = *with;
    qn_error err = {0};
    o.progress = count_step;
    o.progress_user = seen;
    if (qn_classify(model, c->texts, N_TEXTS, c->labels, N_LABELS, &o, &got[0][0], &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(seen[1], seen[2]);
    for (size_t i = 0; i < N_TEXTS; i++) {
        assert_int_equal(qn_classify(model, &c->texts[i], 1, c->labels, N_LABELS, NULL, one, &err),
                         QN_OK);
        assert_memory_equal(one, got[i], sizeof one);
        for (size_t j = 0; j < N_LABELS; j++)
            if (fabs(got[i][j].logprob - c->logprobs[i][j]) > 1e-5)
                fail_msg("text %zu, label %zu: %.9g, alone %.9g", i, j, got[i][j].logprob,
                         c->logprobs[i][j]);
    }
}

static const char *const bit_names[] = {NULL, "gemma3/text", "mistral/window"}; /* NULL: the demo */

static void test_bits(void **state)
{
    static const qn_forward_options options[] = {
        {.size = sizeof(qn_forward_options)},
        {.size = sizeof(qn_forward_options), .step_tokens = 7, .cache_tokens = 1},
        {.size = sizeof(qn_forward_options), .step_tokens = 100, .cache_tokens = 400},
        {.size = sizeof(qn_forward_options), .step_tokens = 4000}};
    qn_device *device = open_cpu(state);
    for (size_t m = 0; m < sizeof bit_names / sizeof *bit_names; m++) {
        qn_model *model = bit_names[m] ? open_golden(device, bit_names[m])
                                       : open_model(device, "models/demo", false);
        corpus *c = make_corpus(device, model);
        for (size_t k = 0; k < sizeof options / sizeof *options; k += FEWER ? 2 : 1) {
            check_steps(model, c, &options[k]);
            check_groups(model, c, &options[k]);
        }
        free(c->logits);
        free(c);
        qn_model_close(model);
    }
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void test_next_tokens(void **state)
{
    enum { TOP = 5 };
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "models/demo", false);
    corpus *c = make_corpus(device, model);
    size_t vocab = vocab_of(model);
    qn_token_score got[N_TEXTS][TOP];
    qn_logprob want[1 + TOP];
    qn_error err = {0};
    assert_int_equal(qn_next_tokens(model, c->texts, N_TEXTS, TOP, NULL, &got[0][0], &err), QN_OK);
    for (size_t i = 0; i < N_TEXTS; i++) {
        const float *row = c->logits + i * vocab;
        assert_int_equal(qn_logprobs(device, row, vocab, 0, TOP, want, &err), QN_OK);
        for (size_t k = 0; k < TOP; k++) {
            assert_int_equal(got[i][k].id, want[1 + k].id);
            assert_true(got[i][k].logprob == want[1 + k].logprob);
            assert_true(got[i][k].logit == row[got[i][k].id]);
        }
    }
    free(c->logits);
    free(c);
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refuses(qn_status status, qn_status want, const qn_error *err, const char *says)
{
    assert_int_equal(status, want);
    if (!strstr(err->message, says))
        fail_msg("\"%s\" says nothing of \"%s\"", err->message, says);
}

static void cancel_step(void *user, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    atomic_store((atomic_bool *)user, true);
}

static void test_refusals(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "models/demo", false);
    static int32_t ids[5000];
    static float out[4 * 2048];
    qn_label_score scores[4];
    qn_token_score best[4];
    qn_ids good = {ids, 3};
    const int32_t outside = 1 << 20;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    size_t most = (size_t)info.max_positions;
    assert_true(most < 5000);
    qn_ids empty[] = {good, {ids, 0}}, wild[] = {good, {&outside, 1}}, full = {ids, most};
    qn_ids long_ones[] = {good, {ids, most + 1}}, labels[] = {{ids, 2}, {ids, 1}};
#define REFUSED(call, want, says)                                                                  \
    do {                                                                                           \
        qn_error err = {0};                                                                        \
        refuses(call, want, &err, says);                                                           \
    } while (0)
    REFUSED(qn_next_logits(model, empty, 2, NULL, out, &err), QN_INVALID, "text 1 has no tokens");
    REFUSED(qn_next_logits(model, wild, 2, NULL, out, &err), QN_INVALID, "text 1: token 0");
    REFUSED(qn_next_logits(model, long_ones, 2, NULL, out, &err), QN_LIMIT, "text 1");
    REFUSED(qn_embed(model, empty, 2, NULL, NULL, out, &err), QN_INVALID, "text 1");
    REFUSED(qn_embed(model, &good, 1, &(qn_embed_options){sizeof(qn_embed_options), 2, 0}, NULL,
                     out, &err),
            QN_INVALID, "pooling 2");
    REFUSED(qn_classify(model, &good, 1, empty, 2, NULL, scores, &err), QN_INVALID, "label 1");
    REFUSED(qn_classify(model, &good, 1, NULL, 0, NULL, scores, &err), QN_INVALID, "no labels");
    REFUSED(qn_classify(model, &full, 1, labels, 2, NULL, scores, &err), QN_LIMIT, "text 0");
    REFUSED(qn_next_tokens(model, &good, 1, 0, NULL, best, &err), QN_INVALID, "1 to 1000");
    REFUSED(qn_next_tokens(model, &good, 1, 1001, NULL, best, &err), QN_INVALID, "1 to 1000");
    qn_forward_options wrong = {.size = sizeof wrong, .step_tokens = -1};
    REFUSED(qn_next_logits(model, &good, 1, &wrong, out, &err), QN_INVALID, "step_tokens -1");
    atomic_bool flag = false;
    qn_ids two[] = {{ids, 40}, {ids, 40}};
    qn_forward_options stopped = {.size = sizeof stopped,
                                  .step_tokens = 16,
                                  .cancel = &flag,
                                  .progress = cancel_step,
                                  .progress_user = &flag};
    REFUSED(qn_classify(model, two, 2, labels, 2, &stopped, scores, &err), QN_CANCELLED, "");
    qn_error none = {0};
    assert_int_equal(qn_next_logits(model, NULL, 0, NULL, out, &none), QN_OK);
    assert_int_equal(qn_classify(model, NULL, 0, labels, 2, NULL, scores, &none), QN_OK);
    assert_int_equal(qn_next_logits(model, &full, 1, NULL, out, &none), QN_OK);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_next_tokens),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
