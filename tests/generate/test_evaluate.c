/* SPDX-License-Identifier: Apache-2.0
 *
 * qn_evaluate against the same sums over logits of whole chunks, written the plain way.
 */
#include "generate/model_test.h"

#include "generate/evaluate.h"

#include <math.h>

enum { N = 75, VOCAB_MOST = 4096 };

typedef struct setting {
    qn_device *device;
    qn_model *model, *other;
    size_t vocab;
    int32_t ids[N];
} setting;

static void begin_setting(setting *t)
{
    qn_error err = {0};
    if (qn_device_open(&t->device, "cpu", NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    t->model = open_model(t->device, "tests/golden/llama/plain", false);
    t->other = open_model(t->device, "tests/golden/llama/plain", false);
    t->vocab = vocab_of(t->model);
    assert_true(t->vocab <= VOCAB_MOST);
    random_tokens(t->ids, N, t->vocab, 5);
}

static void end_setting(setting *t)
{
    qn_model_close(t->model);
    qn_model_close(t->other);
    qn_device_close(t->device);
}

static double log_p(const float *x, size_t vocab, int32_t id)
{
    double sum = 0;
    for (size_t i = 0; i < vocab; i++)
        sum += exp((double)x[i]);
    return x[id] - log(sum);
}

/* Mean loss of tokens first + 1 .. context - 1 of chunks that begin `stride` apart. */
static double expected_loss(setting *t, int64_t context, int64_t stride, int64_t first,
                            const int32_t *begin, uint64_t *count)
{
    float *logits = malloc((size_t)context * t->vocab * sizeof *logits);
    double loss = 0;
    *count = 0;
    for (int64_t at = 0; at + context <= N; at += stride) {
        qn_session *session = open_session(t->model, 0, 1);
        int32_t chunk[N];
        memcpy(chunk, t->ids + at, (size_t)context * sizeof *chunk);
        chunk[0] = begin ? *begin : chunk[0];
        assert_int_equal(qn_session_score(session, chunk, (size_t)context, logits, NULL), QN_OK);
        for (int64_t i = first; i < context - 1; i++, ++*count)
            loss -= log_p(logits + (size_t)i * t->vocab, t->vocab, chunk[i + 1]);
        qn_session_close(session);
    }
    free(logits);
    return loss / (double)*count;
}

static void test_chunks(void **state)
{
    (void)state;
    setting t;
    begin_setting(&t);
    const int32_t begin = 3;
    static const struct {
        int64_t context, stride, first;
        bool begins;
    } cases[] = {{16, 0, 8, false}, {16, 0, 8, true}, {17, 0, 8, false}, {20, 7, 12, false},
                 {75, 0, 37, true}, {2, 0, 1, false}, {8, 8, 0, true},   {40, 1, 38, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_evaluation_options o = {.size = sizeof o,
                                   .context = cases[i].context,
                                   .stride = cases[i].stride,
                                   .begin = cases[i].begins ? &begin : NULL};
        qn_evaluation e = QN_INIT(qn_evaluation);
        qn_error err = {0};
        qn_status status = qn_evaluate(t.model, t.ids, N, &o, &e, &err);
        if (cases[i].context == 2) { /* nothing is left of the second half */
            assert_int_equal(status, QN_INVALID);
            continue;
        }
        if (status != QN_OK)
            fail_msg("%s", err.message);
        uint64_t count;
        double want = expected_loss(&t, o.context, o.stride ? o.stride : o.context, cases[i].first,
                                    o.begin, &count);
        assert_int_equal(e.tokens, count);
        assert_true(fabs(e.loss - want) < 1e-6 * want);
        assert_true(fabs(e.perplexity - exp(want)) < 1e-4 * exp(want));
        assert_true(e.loss_error > 0 && e.kl == 0 && e.same_top == 0);
    }
    end_setting(&t);
}

static void test_against(void **state)
{
    (void)state;
    setting t;
    begin_setting(&t);
    qn_evaluation_options o = {.size = sizeof o, .context = 25, .against = t.other, .chunks = 2};
    qn_evaluation e = QN_INIT(qn_evaluation);
    assert_int_equal(qn_evaluate(t.model, t.ids, N, &o, &e, NULL), QN_OK);
    assert_true(e.chunks == 2 && e.tokens == 24); /* not the third */
    assert_true(e.kl < 1e-14 && e.kl_max < 1e-14 && e.same_top == 1);
    assert_true(e.against_loss == e.loss && e.against_perplexity == e.perplexity);
    end_setting(&t);
}

/* Known distributions: KL((1/2, 1/2) || (1/4, 3/4)) and back. */
static void test_rows(void **state)
{
    (void)state;
    const float p[] = {0, 0, -INFINITY}, q[] = {-1, (float)(-1 + log(3)), -INFINITY};
    qn__row_loss r = qn__row_measure(p, q, 3, 0);
    assert_true(fabs(r.loss - log(4)) < 1e-6 && fabs(r.against_loss - log(2)) < 1e-12);
    assert_true(fabs(r.kl - (0.5 * log(2) + 0.5 * log(2.0 / 3))) < 1e-6 && !r.same_top);
    r = qn__row_measure(q, p, 3, 1);
    assert_true(fabs(r.loss - log(2)) < 1e-12 && fabs(r.against_loss - log(4.0 / 3)) < 1e-6);
    assert_true(fabs(r.kl - (0.25 * log(0.5) + 0.75 * log(1.5))) < 1e-6);
    r = qn__row_measure(p, (const float[]){-INFINITY, 0, 0}, 3, 1);
    assert_true(isinf(r.kl)); /* what p may say q never does */
    r = qn__row_measure(q, q, 3, 1);
    assert_true(r.kl < 1e-15 && r.same_top);
}

static void count_progress(void *user, int64_t done, int64_t total)
{
    int64_t *seen = user;
    assert_int_equal(done, seen[0]++);
    seen[1] = total;
}

static void test_options(void **state)
{
    (void)state;
    setting t;
    begin_setting(&t);
    qn_error err = {0};
    int64_t seen[2] = {0, 0};
    qn_flag cancel;
    atomic_init(&cancel, false);
    qn_evaluation e = QN_INIT(qn_evaluation);
    qn_evaluation_options o = {.size = sizeof o,
                               .context = 25,
                               .progress = count_progress,
                               .progress_user = seen,
                               .cancel = &cancel};
    assert_int_equal(qn_evaluate(t.model, t.ids, N, &o, &e, NULL), QN_OK);
    assert_true(seen[0] == 4 && seen[1] == 3);
    atomic_store(&cancel, true);
    o.progress = NULL;
    uint64_t before = e.tokens;
    assert_int_equal(qn_evaluate(t.model, t.ids, N, &o, &e, &err), QN_CANCELLED);
    assert_true(e.tokens == before);
    err = (qn_error){0};
    assert_int_equal(qn_evaluate(t.model, t.ids, 10, NULL, &e, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "10 tokens"));
    for (int i = 0; i < 4; i++) {
        qn_evaluation_options bad = {.size = sizeof bad, .context = 20};
        int64_t *const fields[] = {&bad.context, &bad.stride, &bad.stride, &bad.chunks};
        *fields[i] = (const int64_t[]){1, -1, 21, -1}[i];
        assert_int_equal(qn_evaluate(t.model, t.ids, N, &bad, &e, NULL), QN_INVALID);
    }
    qn_model *wide = open_model(t.device, "tests/golden/kl", false);
    qn_evaluation_options two = {.size = sizeof two, .context = 20, .against = wide};
    err = (qn_error){0};
    if (vocab_of(wide) != t.vocab) {
        assert_int_equal(qn_evaluate(t.model, t.ids, N, &two, &e, &err), QN_INVALID);
        assert_non_null(strstr(err.message, "vocabularies"));
    }
    qn_model_close(wide);
    e.size = 0;
    o.cancel = NULL;
    assert_int_equal(qn_evaluate(t.model, t.ids, N, &o, &e, NULL), QN_INVALID);
    end_setting(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chunks),
                                       cmocka_unit_test(test_against), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
