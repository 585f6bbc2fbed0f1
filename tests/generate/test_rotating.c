/* SPDX-License-Identifier: Apache-2.0
 *
 * Caches that let positions go. A session beyond its context that keeps its first tokens, against
 * transformers with the mask written out (tests/golden/make_rotating.py); the same bits however it
 * came there. And the windows of the Gemmas' sliding layers, over several pages, against
 * transformers (tests/golden/make_families.py).
 */
#include "generate/model_test.h"

#include "models/golden_model.h"

enum { LENGTH = 300 };

static void score(qn_session *session, const int32_t *ids, size_t n, float *out)
{
    qn_error err = {0};
    if (qn_session_score(session, ids, n, out, &err) != QN_OK)
        fail_msg("%s", err.message);
}

static qn_session *open_rotating(qn_model *model, int64_t context, int64_t keep, int64_t chunk,
                                 int batch)
{
    qn_error err = {0};
    qn_session *session;
    qn_session_options o = {.size = sizeof o,
                            .context = context,
                            .rotate = true,
                            .keep = keep,
                            .prefill_chunk = chunk,
                            .batch = batch};
    if (qn_session_open(&session, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return session;
}

typedef struct fixture {
    qn_model *model;
    size_t vocab;
    int32_t *ids;
    int64_t context, keep;
    float *want; /* [LENGTH, vocab]: as one chunk */
    float *got;
} fixture;

static void check_chunks(const fixture *f)
{
    for (int64_t chunk = FEWER ? 7 : 1; chunk < LENGTH; chunk = chunk * 3 + 4) {
        qn_session *session = open_rotating(f->model, f->context, f->keep, chunk, 1);
        score(session, f->ids, LENGTH, f->got);
        assert_memory_equal(f->got, f->want, LENGTH * f->vocab * sizeof *f->got);
        qn_session_close(session);
    }
}

/* Two sequences in lockstep, the first of which is ours. */
static void check_batch(const fixture *f)
{
    int32_t *both = malloc(2 * LENGTH * sizeof *both);
    float *out = malloc(2 * LENGTH * f->vocab * sizeof *out);
    memcpy(both, f->ids, LENGTH * sizeof *both);
    random_tokens(both + LENGTH, LENGTH, f->vocab, 8);
    qn_session *session = open_rotating(f->model, f->context, f->keep, 50, 2);
    score(session, both, LENGTH, out);
    assert_memory_equal(out, f->want, LENGTH * f->vocab * sizeof *out);
    qn_session_close(session);
    free(both);
    free(out);
}

/* Until the context is full a session is like any other. */
static void check_before_the_limit(const fixture *f)
{
    qn_session *session = open_session(f->model, 0, 1);
    score(session, f->ids, (size_t)f->context, f->got);
    assert_memory_equal(f->got, f->want, (size_t)f->context * f->vocab * sizeof *f->got);
    qn_session_close(session);
}

/* Going back, to where the pages still hold what is seen and to where it does not. */
static void check_rewind(const fixture *f)
{
    static const int64_t lengths[] = {0, 3, 39, 63, 64, 65, 150, 250, 292, 299};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        qn_session *session = open_rotating(f->model, f->context, f->keep, 9, 1);
        size_t n = (size_t)lengths[i];
        score(session, f->ids, LENGTH, f->got);
        qn_session_rewind(session, lengths[i]);
        score(session, f->ids + n, LENGTH - n, f->got);
        assert_memory_equal(f->got, f->want + n * f->vocab,
                            (LENGTH - n) * f->vocab * sizeof *f->got);
        qn_session_close(session);
    }
    qn_session *session = open_rotating(f->model, f->context, f->keep, 9, 1);
    score(session, f->ids, LENGTH, f->got);
    for (size_t n = 230; n < 295; n++) { /* about where the oldest key is just seen, and just not */
        qn_session_rewind(session, (int64_t)n);
        score(session, f->ids + n, LENGTH - n, f->got);
        assert_memory_equal(f->got, f->want + n * f->vocab,
                            (LENGTH - n) * f->vocab * sizeof *f->got);
    }
    qn_session_close(session);
}

static void test_kept_tokens(void **state)
{
    char path[600], name[20];
    size_t n;
    qn_device *device = open_cpu(state);
    golden_directory(path, sizeof path, "mistral/head-dim");
    fixture f = {.model = open_model_at(device, path, false)};
    qn_tensors *file = golden_open("rotating");
    f.vocab = vocab_of(f.model);
    f.ids = golden_tensor(file, "tokens", &n);
    f.want = malloc(LENGTH * f.vocab * sizeof *f.want);
    f.got = malloc(LENGTH * f.vocab * sizeof *f.got);
    int32_t *contexts = golden_tensor(file, "contexts", &n),
            *keeps = golden_tensor(file, "keeps", &n);
    for (size_t i = 0; i < n; i++) {
        f.context = contexts[i];
        f.keep = keeps[i];
        qn_session *session = open_rotating(f.model, f.context, f.keep, 0, 1);
        score(session, f.ids, LENGTH, f.want);
        qn_session_close(session);
        snprintf(name, sizeof name, "logits.%d", (int)i);
        double e = golden_rows(file, name, "positions", f.want, f.vocab);
        session = open_rotating(f.model, f.context, 0, 0, 1);
        score(session, f.ids, LENGTH, f.got);
        double without = golden_rows(file, name, "positions", f.got, f.vocab);
        qn_session_close(session);
        printf("context %3d, first %2d: NMSE %.2e, without them %.2e\n", contexts[i], keeps[i], e,
               without);
        assert_true(e <= 1e-9 && without > 1e-3);
        check_chunks(&f);
        check_batch(&f);
        check_before_the_limit(&f);
        check_rewind(&f);
    }
    free(contexts);
    free(keeps);
    free(f.ids);
    free(f.want);
    free(f.got);
    qn_tensors_close(file);
    qn_model_close(f.model);
    qn_device_close(device);
}

/* A bf16 cache, and heads of 64. */
static void test_kept_bf16(void **state)
{
    int32_t ids[LENGTH];
    qn_device *device = open_cpu(state);
    fixture f = {
        .model = open_model(device, "models/demo", false), .ids = ids, .context = 130, .keep = 4};
    f.vocab = vocab_of(f.model);
    f.want = malloc(LENGTH * f.vocab * sizeof *f.want);
    f.got = malloc(LENGTH * f.vocab * sizeof *f.got);
    random_tokens(ids, LENGTH, f.vocab, 6);
    qn_session *session = open_rotating(f.model, f.context, f.keep, 0, 1);
    score(session, ids, LENGTH, f.want);
    qn_session_close(session);
    check_chunks(&f);
    check_batch(&f);
    check_before_the_limit(&f);
    check_rewind(&f);
    free(f.want);
    free(f.got);
    qn_model_close(f.model);
    qn_device_close(device);
}

/* The cache stays as large as the context and one chunk ask for. */
static void test_kept_bytes(void **state)
{
    char path[600];
    int32_t ids[LENGTH];
    qn_device *device = open_cpu(state);
    golden_directory(path, sizeof path, "mistral/head-dim");
    qn_model *model = open_model_at(device, path, false);
    random_tokens(ids, LENGTH, vocab_of(model), 4);
    qn_session *session = open_rotating(model, 40, 4, 8, 1);
    qn_error err = {0};
    size_t page = 64 * 4 * 2 * 2 * 20 * sizeof(float); /* places, layers, K and V, heads, D */
    for (int i = 0; i < 40; i++) {
        assert_int_equal(qn_session_append(session, ids, 30, &err), QN_OK);
        assert_true(qn_session_cache_bytes(session) <= 3 * page);
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_bad_keep(void **state)
{
    static const struct {
        int64_t context, keep;
        bool rotate;
    } bad[] = {{40, -1, true}, {40, 65, true}, {40, 40, true}, {40, 4, false}, {0, 100, true}};
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "tests/golden/llama/plain", false);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_session *session;
        qn_error err = {0};
        qn_session_options o = {.size = sizeof o,
                                .context = bad[i].context,
                                .keep = bad[i].keep,
                                .rotate = bad[i].rotate};
        assert_int_equal(qn_session_open(&session, model, &o, &err), QN_INVALID);
        assert_non_null(strstr(err.message, "keep"));
    }
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- the Gemmas' windows
 * ------------------------------------------------------------------------------------- */

/* The golden tokens in pieces of `piece`, so that windows give several pages back. */
static void check_windows(qn_device *device, const char *name, size_t piece)
{
    char path[600];
    size_t n;
    golden_directory(path, sizeof path, name);
    qn_model *model = open_model_at(device, path, false);
    qn_tensors *file = golden_open(name);
    int32_t *ids = golden_tensor(file, "tokens", &n);
    size_t vocab = vocab_of(model);
    float *logits = malloc(n * vocab * sizeof *logits);
    qn_session *session = open_session(model, (int64_t)piece, 1),
               *whole = open_session(model, 0, 1);
    for (size_t at = 0; at < n; at += piece)
        score(session, ids + at, n - at < piece ? n - at : piece, logits + at * vocab);
    double e = golden_rows(file, "logits", "logit_positions", logits, vocab);
    printf("%-20s in pieces of %2zu: NMSE %.2e\n", name, piece, e);
    assert_true(e <= 1e-9);
    score(whole, ids, n, logits);
    assert_true(qn_session_cache_bytes(session) < qn_session_cache_bytes(whole));
    qn_session_close(session);
    qn_session_close(whole);
    qn_model_close(model);
    qn_tensors_close(file);
    free(ids);
    free(logits);
}

static void test_windows(void **state)
{
    static const char *const names[] = {"gemma2/plain", "gemma2/layer-types", "gemma3/text",
                                        "gemma3/layer-types", "gemma3/images"};
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t piece = 1; piece < 60; piece += 19)
            check_windows(device, names[i], piece);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_tokens), cmocka_unit_test(test_kept_bf16),
        cmocka_unit_test(test_kept_bytes),  cmocka_unit_test(test_bad_keep),
        cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
