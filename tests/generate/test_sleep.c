/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions that sleep in a file: what they say after waking is, to the bit, what they would have
 * said, with windows and every type of cache; files of others and damaged ones are refused, and
 * leave the session as it was.
 */
#include "generate/model_test.h"
#include "models/golden_model.h"

#include <string.h>
#include <unistd.h>

enum { CONTEXT = 400, MORE = 5 };

static char path[64];

/* Tokens that run at once; windows keep as many more. */
static int64_t chunk;

static qn_session *session_with(qn_model *model, int64_t context, const char *type)
{
    qn_session *session;
    qn_error err = {0};
    qn_session_options o = {.size = sizeof o,
                            .context = context,
                            .prefill_chunk = chunk,
                            .cache_type_k = type,
                            .cache_type_v = type};
    if (qn_session_open(&session, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return session;
}

static void append(qn_session *session, const int32_t *ids, size_t n)
{
    qn_error err = {0};
    if (qn_session_append(session, ids, n, &err) != QN_OK)
        fail_msg("%s", err.message);
}

/* A session of n tokens sleeps and wakes; then it goes back to `back`, and both go on. */
static void check_sleep(qn_model *model, const char *type, const int32_t *ids, size_t n,
                        int64_t back)
{
    qn_error err = {0};
    size_t bytes = vocab_of(model) * sizeof(float);
    qn_session *a = session_with(model, CONTEXT, type), *b = session_with(model, CONTEXT, type);
    append(a, ids, n);
    if (qn_session_save(a, path, &err) != QN_OK || qn_session_restore(b, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(qn_session_length(b), n);
    assert_memory_equal(qn_session_tokens(b), ids, n * sizeof *ids);
    assert_null(qn_session_logits(b));
    int64_t kept = qn_session_rewind_to(a, ids, (size_t)back + 1);
    assert_int_equal(qn_session_rewind_to(b, ids, (size_t)back + 1), kept); /* as far as awake */
    assert_true(kept == back || (kept == 0 && chunk));
    append(a, ids + kept, (size_t)(back - kept));
    append(b, ids + kept, (size_t)(back - kept));
    for (int i = 0; i < MORE; i++) {
        append(a, ids + n + i, 1);
        append(b, ids + n + i, 1);
        assert_memory_equal(qn_session_logits(a), qn_session_logits(b), bytes);
    }
    qn_session_close(a);
    qn_session_close(b);
}

static void test_same(void **state)
{
    static const struct {
        const char *model, *type; /* NULL: the demo; the usual type */
    } cases[] = {{NULL, NULL},   {NULL, "f16"},          {NULL, "q8_0"},
                 {NULL, "q4_0"}, {"gemma3/text", "f32"}, {"mistral/window", NULL}};
    static const size_t lengths[] = {0, 1, 63, 64, 65, 300};
    qn_device *device = open_cpu(state);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char at[600];
        if (cases[k].model)
            golden_directory(at, sizeof at, cases[k].model);
        qn_model *model = cases[k].model ? open_model_at(device, at, false)
                                         : open_model(device, "models/demo", false);
        int32_t ids[CONTEXT];
        random_tokens(ids, CONTEXT, vocab_of(model), k);
        for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
            chunk = i % 2 ? 16 : 0;
            int64_t n = (int64_t)lengths[i / 2];
            check_sleep(model, cases[k].type, ids, lengths[i / 2], n);
            check_sleep(model, cases[k].type, ids, lengths[i / 2], n > 2 ? n - 2 : 0);
            check_sleep(model, cases[k].type, ids, lengths[i / 2], n / 3);
        }
        qn_model_close(model);
    }
    chunk = 0;
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* The file, with one byte flipped or cut to `size`. */
static void damage(long flip, long size)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    if (flip >= 0) {
        fseek(f, flip, SEEK_SET);
        int c = fgetc(f);
        fseek(f, flip, SEEK_SET);
        fputc(c ^ 16, f);
    }
    fclose(f);
    if (size >= 0)
        assert_int_equal(truncate(path, size), 0);
}

/* Refused, and the session is as good as new. */
static void check_refused(qn_session *session, qn_status status, const char *words)
{
    qn_error err = {0};
    const int32_t one = 1;
    qn_status got = qn_session_restore(session, path, &err);
    if (got != status || !strstr(err.message, words))
        fail_msg("%d, \"%s\"; wanted %d, \"%s\"", got, err.message, status, words);
    assert_int_equal(qn_session_length(session), 0);
    assert_int_equal(qn_session_cache_bytes(session), 0);
    assert_int_equal(qn_session_append(session, &one, 1, NULL), QN_OK);
    qn_session_close(session);
}

static long file_size(void)
{
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    fclose(f);
    return size;
}

/* The demo with options by which what it computes is another model's: one option differs in each
 * from open_model's. */
static int open_others(qn_device *device, qn_model **others)
{
    const qn_model_options options[] = {
        {.size = sizeof *options, .batch_invariant = true, .products = QN_PRODUCTS_F32},
        {.size = sizeof *options}};
    enum { N = sizeof options / sizeof *options };
    char at[600];
    qn_error err = {0};
    snprintf(at, sizeof at, "%s/models/demo", getenv("QUERN_SOURCE"));
    for (int i = 0; i < N; i++)
        if (qn_model_open(&others[i], device, at, &options[i], &err) != QN_OK)
            fail_msg("%s", err.message);
    return N;
}

static void test_refusals(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "models/demo", false);
    qn_model *others[2];
    const int n_others = open_others(device, others);
    qn_error err = {0};
    int32_t ids[100];
    random_tokens(ids, 100, vocab_of(model), 3);
    qn_session *session = session_with(model, CONTEXT, "q8_0");
    append(session, ids, 100);
    assert_int_equal(qn_session_restore(session, path, &err), QN_STATE);
    err = (qn_error){0};
    assert_int_equal(qn_session_save(session, "/nowhere/file", &err), QN_IO);
    assert_int_equal(qn_session_save(session, path, NULL), QN_OK);
    for (int i = 0; i < n_others; i++)
        check_refused(session_with(others[i], CONTEXT, "q8_0"), QN_STATE, "another model");
    check_refused(session_with(model, CONTEXT, "f16"), QN_STATE, "keys is \"q8_0\"");
    check_refused(session_with(model, 99, "q8_0"), QN_LIMIT, "100 tokens");
    long size = file_size();
    for (int i = 1; i < 6; i++) {
        assert_int_equal(qn_session_save(session, path, NULL), QN_OK);
        damage(size - size / 7 * i, -1);
        check_refused(session_with(model, CONTEXT, "q8_0"), QN_INVALID, "not those");
    }
    assert_int_equal(qn_session_save(session, path, NULL), QN_OK);
    damage(-1, size - 1);
    err = (qn_error){0};
    qn_session *awake = session_with(model, CONTEXT, "q8_0");
    assert_int_not_equal(qn_session_restore(awake, path, &err), QN_OK);
    qn_session_close(awake);
    qn_session_close(session);
    for (int i = 0; i < n_others; i++)
        qn_model_close(others[i]);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/quern-sleep-%d", (int)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same),
                                       cmocka_unit_test(test_refusals)};
    int failed = cmocka_run_group_tests(tests, temp_begin, temp_end);
    unlink(path);
    return failed;
}
