/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs that grow: programs older and newer than the library, and calls that were given no size.
 */
#include "test.h"

#include "base/sized.h"

#include <string.h>

/* Three versions of one struct. */
typedef struct first {
    size_t size;
    int32_t a, b;
} first;

typedef struct second {
    size_t size;
    int32_t a, b;
    int64_t c;
} second;

typedef struct third {
    size_t size;
    int32_t a, b;
    int64_t c;
    double d;
} third;

static void test_older_program(void **state)
{
    (void)state;
    struct {
        first options;
        int64_t behind;
    } given = {{sizeof(first), 1, 2}, -1};
    second to = {.c = 7};
    assert_int_equal(qn__sized_in(&to, sizeof to, &given.options, "options", NULL), QN_OK);
    assert_true(to.size == sizeof to && to.a == 1 && to.b == 2 && to.c == 0);
    assert_int_equal(
        qn__sized_out(&given.options, &(second){sizeof(second), 3, 4, 5}, sizeof(second)), QN_OK);
    assert_true(given.options.size == sizeof(first) && given.options.a == 3 &&
                given.options.b == 4);
    assert_int_equal(given.behind, -1);
}

static void test_newer_program(void **state)
{
    (void)state;
    third given = {.size = sizeof given, .a = 1, .c = 3};
    second to;
    qn_error err = {0};
    assert_int_equal(qn__sized_in(&to, sizeof to, &given, "options", &err), QN_OK);
    assert_true(to.size == sizeof to && to.a == 1 && to.c == 3);
    given.d = 0.5;
    assert_int_equal(qn__sized_in(&to, sizeof to, &given, "options", &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "later version than"));
    assert_int_equal(qn__sized_out(&given, &(second){sizeof(second), 8, 9, 10}, sizeof(second)),
                     QN_OK);
    assert_true(given.size == sizeof given && given.a == 8 && given.c == 10 && given.d == 0.5);
}

static void test_no_size(void **state)
{
    (void)state;
    second to;
    assert_int_equal(qn__sized_in(&to, sizeof to, NULL, "options", NULL), QN_OK);
    assert_true(to.size == sizeof to && to.a == 0 && to.c == 0);
    for (size_t size = 0; size < sizeof size; size++) {
        qn_error err = {0};
        first given = {size, 1, 2};
        assert_int_equal(qn__sized_in(&to, sizeof to, &given, "qn_x", &err), QN_INVALID);
        assert_non_null(strstr(err.message, "QN_INIT(qn_x)"));
        assert_int_equal(qn__sized_out(&given, &(first){sizeof(first), 7, 7}, sizeof(first)),
                         QN_INVALID);
        assert_true(given.a == 1 && given.b == 2);
    }
    first given = {SIZE_MAX, 1, 2}; /* garbage: nothing behind it is read */
    assert_int_equal(qn__sized_in(&to, sizeof to, &given, "options", NULL), QN_INVALID);
}

#define REFUSED(call, name)                                                                        \
    do {                                                                                           \
        err = (qn_error){0};                                                                       \
        assert_int_equal((call), QN_INVALID);                                                      \
        assert_non_null(strstr(err.message, name));                                                \
    } while (0)

/* Every public struct that has a size: without one, calls refuse it. */
static void test_public_structs(void **state)
{
    (void)state;
    qn_error err;
    qn_device *device = open_cpu(NULL), *other;
    qn_model *model, *second_model;
    qn_session *session;
    qn_generation *g;
    qn_template *t;
    qn_text text = {0};
    char path[600];
    const int32_t id = 5;
    float logits[4] = {0};
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    assert_int_equal(qn_model_open(&model, device, path, NULL, NULL), QN_OK);
    assert_int_equal(qn_session_open(&session, model, NULL, NULL), QN_OK);
    assert_int_equal(qn_template_new(&t, "t", "x", 1, NULL), QN_OK);

    REFUSED(qn_device_open(&other, "cpu", &(qn_device_options){.threads = 1}, &err),
            "qn_device_options");
    REFUSED(
        qn_model_open(&second_model, device, path, &(qn_model_options){.no_weights = true}, &err),
        "qn_model_options");
    REFUSED(
        qn_session_open(&(qn_session *){NULL}, model, &(qn_session_options){.context = 9}, &err),
        "qn_session_options");
    REFUSED(
        qn_generation_begin(&g, session, &id, 1, &(qn_generation_options){.max_tokens = 1}, &err),
        "qn_generation_options");
    qn_generation_options unsized = {.size = sizeof unsized,
                                     .sampling = &(qn_sampling){.temperature = 1}};
    REFUSED(qn_generation_begin(&g, session, &id, 1, &unsized, &err), "qn_sampling");
    REFUSED(qn_sample(device, logits, 4, &(qn_sampling){.top_k = 1}, NULL, 0, 0, &err) == -1
                ? err.code
                : QN_OK,
            "qn_sampling");
    REFUSED(qn_sampling_set_chain(&(qn_sampling){.top_k = 1}, "top_k", &err), "qn_sampling");
    REFUSED(qn_template_render(t, "{}", 2, &(qn_template_options){.steps = 9}, &text, NULL, &err),
            "qn_template_options");
    REFUSED(qn_primitive_register(device, "l", &(qn_primitive_def){.name = "n"}, &err),
            "qn_primitive_def");
    qn_scope *s = qn_scope_begin(device);
    qn_array *q = qn_zeros(s, QN_F32, 4, (int64_t[]){1, 1, 1, 2});
    qn_attention(s, q, q, q, &(qn_attention_options){.causal = true});
    assert_int_equal(qn_scope_status(s), QN_INVALID);
    assert_non_null(strstr(qn_scope_error(s), "qn_attention_options"));
    qn_scope_end(s);

    assert_int_equal(qn_generation_begin(&g, session, &id, 1, NULL, NULL), QN_OK);
    qn_metrics metrics = {0};
    qn_model_info info = {0};
    qn_generation_defaults defaults = {0};
    qn_memory_stats memory = {0};
    qn_plan_stats plans = {0};
    assert_int_equal(qn_generation_get_metrics(g, &metrics), QN_INVALID);
    assert_int_equal(qn_model_get_info(model, &info), QN_INVALID);
    assert_int_equal(qn_model_get_defaults(model, &defaults), QN_INVALID);
    assert_int_equal(qn_device_memory(device, &memory), QN_INVALID);
    assert_int_equal(qn_device_plan_stats(device, &plans), QN_INVALID);
    info.size = sizeof info;
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    assert_int_equal(info.size, sizeof info);
    assert_string_equal(info.family, "llama");

    qn_generation_end(g);
    qn_text_free(&text);
    qn_template_free(t);
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_older_program),
        cmocka_unit_test(test_newer_program),
        cmocka_unit_test(test_no_size),
        cmocka_unit_test(test_public_structs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
