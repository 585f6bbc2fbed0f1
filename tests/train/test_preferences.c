/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning from preferences: twenty losses and rewards are TRL's (tests/golden/make_dpo.py), the
 * same to the bit with two threads; ids and prompts are TRL's (make_preference_samples.py); pairs
 * of two batches count alike; what lines, rows and options are refused.
 */
#include "demo_test.h"
#include "train/training_test.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

enum { STEPS = 20, ROWS = 6, LENGTH = 32, TOKENS = ROWS * LENGTH };
enum { RATE, BETA1, BETA2, EPS, DECAY, CLIP, ALPHA, BETA, N_SETTINGS };
enum { CHOSEN, REJECTED, ACCURACY, MARGIN, N_REWARDS };

static qn_trainer_options options_of(const data *d)
{
    static char path[600];
    golden_path(path, sizeof path, "preferences", NULL);
    return (qn_trainer_options){.size = sizeof(qn_trainer_options),
                                .rank = 4,
                                .alpha = d->settings[ALPHA],
                                .learning_rate = d->settings[RATE],
                                .beta1 = d->settings[BETA1],
                                .beta2 = d->settings[BETA2],
                                .eps = d->settings[EPS],
                                .weight_decay = d->settings[DECAY],
                                .clip = d->settings[CLIP],
                                .adapter = path,
                                .loss = QN_LOSS_DPO,
                                .beta = d->settings[BETA]};
}

static qn_batch batch_of(const data *d, int i)
{
    return (qn_batch){.tokens = d->tokens + i * TOKENS,
                      .mask = d->mask + i * TOKENS,
                      .rows = ROWS,
                      .length = LENGTH};
}

/* ---- TRL ------------------------------------------------------------------------------------- */

static double relative(double got, double want)
{
    return fabs(got - want) / (fabs(want) > 1e-2 ? fabs(want) : 1e-2);
}

static void check_rewards(const qn_trainer *t, const double *want, int step)
{
    qn_rewards r = QN_INIT(qn_rewards);
    assert_int_equal(qn_trainer_get_rewards(t, &r), QN_OK);
    const double got[] = {r.chosen, r.rejected, r.accuracy, r.margin};
    for (int i = 0; i < N_REWARDS; i++)
        if (!(relative(got[i], want[i]) <= 1e-3)) /* of differences of sums */
            fail_msg("step %d, reward %d: %.7f, TRL %.7f", step, i, got[i], want[i]);
}

static void train(int threads, bool checkpoint, double losses[STEPS])
{
    qn_device *device = open_cpu_threads(threads);
    qn_model *model = open_base(device, "llama/plain", NULL);
    data d = take_data(golden_open("preferences"), "rewards", N_SETTINGS);
    qn_error err = {0};
    qn_trainer_options o = options_of(&d);
    o.checkpoint = checkpoint;
    qn_trainer *t = open_trainer(model, &o);
    for (int i = 0; i < STEPS; i++) {
        qn_batch b = batch_of(&d, i);
        if (qn_trainer_step_batches(t, &b, 1, &losses[i], &err) != QN_OK)
            fail_msg("step %d: %s", i, err.message);
        check_rewards(t, d.more + i * N_REWARDS, i);
    }
    qn_trainer_close(t);
    qn_model_close(model);
    free_data(&d);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void test_losses(void **state)
{
    (void)state;
    double one[STEPS], two[STEPS], again[STEPS], worst = 0;
    data d = take_data(golden_open("preferences"), "rewards", N_SETTINGS);
    train(1, false, one);
    train(2, false, two);
    train(1, true, again);
    for (int i = 0; i < STEPS; i++) {
        double e = fabs(one[i] - d.losses[i]) / d.losses[i];
        worst = e > worst ? e : worst;
        if (!(e <= 1e-4))
            fail_msg("step %d: %.8f, TRL %.8f", i, one[i], d.losses[i]);
    }
    assert_memory_equal(one, two, sizeof one);
    assert_memory_equal(one, again, sizeof one);
    print_message("relative error %.1e\n", worst);
    free_data(&d);
}

/* A step on two batches, one of two pairs and one of one, is one on all three. The loss alone is
 * that of the step behind it, and leaves everything as it is. */
static void test_parts(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, "llama/plain", NULL);
    data d = take_data(golden_open("preferences"), "rewards", N_SETTINGS);
    qn_error err = {0};
    qn_trainer_options o = options_of(&d);
    o.learning_rate = 1e-2;
    qn_trainer *t = open_trainer(model, &o), *u = open_trainer(model, &o);
    for (int i = 0; i < 3; i++) {
        qn_batch whole = batch_of(&d, i), parts[] = {whole, whole};
        double a, b, before;
        parts[0].rows = 4;
        parts[1].rows = 2;
        parts[1].tokens += 4 * LENGTH;
        parts[1].mask += 4 * LENGTH;
        assert_int_equal(qn_trainer_loss(t, whole.tokens, whole.mask, ROWS, LENGTH, &before, &err),
                         QN_OK);
        assert_int_equal(qn_trainer_step_batches(t, &whole, 1, &a, &err), QN_OK);
        assert_int_equal(qn_trainer_step_batches(u, parts, 2, &b, &err), QN_OK);
        assert_true(before == a);
        if (!(relative(b, a) <= 1e-5))
            fail_msg("step %d: %.8f and %.8f", i, a, b);
        qn_rewards r = QN_INIT(qn_rewards), q = QN_INIT(qn_rewards);
        qn_trainer_get_rewards(t, &r);
        qn_trainer_get_rewards(u, &q);
        assert_true(relative(q.accuracy, r.accuracy) <= 1e-6 &&
                    relative(q.margin, r.margin) <= 1e-3);
    }
    qn_trainer_close(t);
    qn_trainer_close(u);
    free_data(&d);
    qn_model_close(model);
    qn_device_close(device);
}

/* All weights of a model in bf16: it begins where the reference is, which has products of f32, too.
 */
static void test_full(void **state)
{
    char path[600];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    qn_model *model;
    data d = take_data(golden_open("preferences"), "rewards", N_SETTINGS);
    const qn_model_options mo = {.size = sizeof mo, .no_tokenizer = true};
    golden_directory_of(path, sizeof path, "mistral/window", true);
    if (qn_model_open(&model, device, path, &mo, &err) != QN_OK)
        fail_msg("%s", err.message);
    const qn_trainer_options o = {
        .size = sizeof o, .full = true, .loss = QN_LOSS_DPO, .learning_rate = 1e-3};
    qn_trainer *t = open_trainer(model, &o);
    qn_batch b = batch_of(&d, 0);
    double loss[4];
    for (int i = 0; i < b.rows * b.length; i++)
        b.tokens[i] %= 160;
    for (int i = 0; i < 4; i++) {
        qn_rewards r = QN_INIT(qn_rewards);
        if (qn_trainer_step_batches(t, &b, 1, &loss[i], &err) != QN_OK)
            fail_msg("%s", err.message);
        qn_trainer_get_rewards(t, &r);
        assert_true(i || (fabs(r.margin) <= 1e-5 && fabs(loss[0] - log(2)) <= 1e-5));
    }
    assert_true(loss[3] < 0.7 * loss[0]);
    qn_trainer_close(t);
    qn_model_close(model);
    free_data(&d);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* ---- refused --------------------------------------------------------------------------------- */

static void refuse(qn_model *model, const qn_trainer_options *o, const char *part)
{
    qn_error err = {0};
    qn_trainer *t;
    assert_int_equal(qn_trainer_open(&t, model, o, &err), QN_INVALID);
    if (!strstr(err.message, part))
        fail_msg("%s", err.message);
}

static void test_refused(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, "llama/plain", NULL);
    data d = take_data(golden_open("preferences"), "rewards", N_SETTINGS);
    qn_error err = {0};
    qn_trainer_options o = options_of(&d), other = o;
    qn_rewards r = QN_INIT(qn_rewards);
    qn_trainer *t = open_trainer(model, &o), *u;
    qn_batch odd = batch_of(&d, 0);
    odd.rows = 5;
    assert_int_equal(qn_trainer_get_rewards(t, &r), QN_STATE);
    assert_int_equal(qn_trainer_step_batches(t, &odd, 1, NULL, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "5 rows"));
    const char *saved = temp_path("saved");
    memset(&err, 0, sizeof err);
    assert_int_equal(qn_trainer_save_state(t, saved, NULL, &err), QN_OK);
    qn_trainer_close(t);
    other.adapter = NULL;
    other.resume = saved;
    other.beta = 0.3;
    memset(&err, 0, sizeof err);
    assert_int_equal(qn_trainer_open(&u, model, &other, &err), QN_STATE);
    assert_non_null(strstr(err.message, "beta was 0.2, and is 0.3"));
    memset(&err, 0, sizeof err);
    other.loss = QN_LOSS_CROSS_ENTROPY;
    refuse(model, &other, "beta is of QN_LOSS_DPO");
    other.beta = 0;
    assert_int_equal(qn_trainer_open(&u, model, &other, &err), QN_STATE);
    assert_non_null(strstr(err.message, "loss was \"dpo\""));
    other = o;
    other.loss = QN_LOSS_COUNT;
    refuse(model, &other, "there is no loss 2");
    other = o;
    other.beta = -1;
    refuse(model, &other, "beta is -1");
    other = o;
    other.label_smoothing = 0.6;
    refuse(model, &other, "label_smoothing is 0.6");
    free_data(&d);
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void check_text(const qn_batch *b, int64_t row, const cJSON *ids, int prompt)
{
    const cJSON *id;
    int64_t at = row * b->length, end = at + b->length;
    cJSON_ArrayForEach(id, ids)
    {
        int64_t i = at - row * b->length;
        assert_true(at < end);
        assert_int_equal(b->tokens[at], id->valueint);
        assert_int_equal(b->mask[at++], i > 0 && i >= prompt);
    }
    for (; at < end; at++)
        assert_int_equal(b->mask[at], 0);
}

static void check_line(const qn_tokenizer *t, const cJSON *row)
{
    const cJSON *chosen = cJSON_GetObjectItem(row, "chosen");
    const cJSON *rejected = cJSON_GetObjectItem(row, "rejected");
    int prompt = cJSON_GetObjectItem(row, "prompt")->valueint;
    char *line = cJSON_PrintUnformatted(cJSON_GetObjectItem(row, "line"));
    qn_chat *chat = open_demo_chat(t, cJSON_GetObjectItem(row, "template")->valuestring);
    qn_dataset_options o = {.size = sizeof o, .preferences = true};
    qn_dataset *d;
    qn_batch b = {0};
    qn_error err = {0};
    if (qn_dataset_open(&d, chat, temp_write("row.jsonl", line, strlen(line)), &o, &err) != QN_OK)
        fail_msg("%s: %s", line, err.message);
    assert_int_equal(qn_dataset_batch(d, 3, 0, &b, &err), QN_OK);
    assert_int_equal(b.rows, 2);
    int n = cJSON_GetArraySize(chosen), m = cJSON_GetArraySize(rejected);
    if (b.length != (n > m ? n : m) || b.counted != n + m - 2 * prompt)
        fail_msg("%s: %lld tokens, %lld count", line, (long long)b.length, (long long)b.counted);
    check_text(&b, 0, chosen, prompt);
    check_text(&b, 1, rejected, prompt);
    qn_batch_free(&b);
    qn_dataset_close(d);
    qn_chat_close(chat);
    cJSON_free(line);
}

static void test_lines(void **state)
{
    (void)state;
    char path[600], line[4096];
    int rows = 0;
    qn_tokenizer *t = open_demo();
    golden_path(path, sizeof path, "preferences", "samples.jsonl");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); rows++) {
        cJSON *row = cJSON_Parse(line);
        check_line(t, row);
        cJSON_Delete(row);
    }
    assert_int_equal(rows, 7);
    fclose(f);
    qn_tokenizer_close(t);
}

static void remember(void *user, const char *message)
{
    snprintf(user, 600, "%s", message);
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define SAYS(text) "[{\"role\":\"assistant\",\"content\":\"" text "\"}]"

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"{\"text\":\"a\"}", "line 1: \"chosen\" is not there"},
        {"{\"prompt\":\"a\",\"chosen\":\"b\"}", "\"rejected\" is not there"},
        {"{\"chosen\":\"a\",\"rejected\":\"b\"}", "\"prompt\" is not there"},
        {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":5}", "must all be texts, or all lists"},
        {"{\"prompt\":\"a\",\"chosen\":" SAYS("b") ",\"rejected\":" SAYS("c") "}", "must all be"},
        {"{\"prompt\":[" USER("a") "],\"chosen\":\"b\",\"rejected\":\"c\"}", "must all be"},
        {"{\"prompt\":[],\"chosen\":" SAYS("b") ",\"rejected\":" SAYS("c") "}", "has no message"},
        {"{\"chosen\":" SAYS("b") ",\"rejected\":" SAYS("c") "}", "no message that they share"},
        {"{\"prompt\":[" USER("a") "],\"chosen\":[],\"rejected\":" SAYS("c") "}",
         "\"chosen\" has no message"},
        {"{\"prompt\":[" USER("a") "],\"chosen\":" SAYS("c") ",\"rejected\":[ ]}",
         "\"rejected\" has no message"},
        {"{\"prompt\":[" USER("a") "],\"chosen\":[5],\"rejected\":" SAYS("c") "}",
         "messages[1]: a message must be an object"},
        {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"b\"}", "are the same tokens"},
        {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"\xff\"}", "line 1: "},
        {"[]", "not an object"},
    };
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char told[600] = "";
        qn_error err = {0};
        qn_dataset *d;
        qn_dataset_options o = {
            .size = sizeof o, .preferences = true, .bad = remember, .user = told};
        const char *path = temp_write("bad.jsonl", cases[i].line, strlen(cases[i].line));
        assert_int_equal(qn_dataset_open(&d, chat, path, &o, &err), QN_INVALID);
        if (!strstr(told, cases[i].part))
            fail_msg("%s: %s", cases[i].line, told);
    }
    static const char pair[] = "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}";
    char told[600] = "";
    qn_error err = {0};
    qn_dataset *d;
    qn_dataset_options o = {.size = sizeof o, .bad = remember, .user = told};
    const char *path = temp_write("bad.jsonl", pair, strlen(pair));
    assert_int_equal(qn_dataset_open(&d, chat, path, &o, &err), QN_INVALID);
    assert_non_null(strstr(told, "--loss dpo"));
    /* Prompts that fill all leave nothing. */
    memset(&err, 0, sizeof err);
    o = (qn_dataset_options){.size = sizeof o, .preferences = true, .max_length = 4};
    assert_int_equal(qn_dataset_open(&d, chat, path, &o, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "nothing is left to learn"));
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),    cmocka_unit_test(test_parts),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_lines),
        cmocka_unit_test(test_bad_lines), cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
