/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing: as many rows as a slow best fit has, each text once; a packed batch has the losses and
 * the gradients of its texts in rows of their own, also where layers see a window; wrong
 * beginnings are refused.
 */
#include "models/golden_model.h"

#include "quern/train.h"
#include "train/pack.h"

#include <math.h>
#include <string.h>

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of best fit, longest first, by looking at all. */
static size_t slow_rows(const uint32_t *lengths, size_t n, uint32_t room)
{
    uint32_t *left = calloc(n, sizeof *left);
    size_t rows = 0;
    for (uint32_t length = room; length > 0; length--)
        for (size_t i = 0; i < n; i++) {
            size_t best = rows;
            for (size_t k = 0; k < rows && lengths[i] == length; k++)
                if (left[k] >= length && (best == rows || left[k] < left[best]))
                    best = k;
            if (lengths[i] != length)
                continue;
            if (best == rows)
                left[rows++] = room;
            left[best] -= length;
        }
    free(left);
    return rows;
}

static void check_packs(const uint32_t *lengths, size_t n, size_t room)
{
    qn__packs p = {0};
    uint8_t *seen = calloc(n + 1, 1);
    assert_true(qn__packs_make(&p, lengths, n, room));
    assert_int_equal(p.n, room ? slow_rows(lengths, n, (uint32_t)room) : n);
    assert_int_equal(p.first[0], 0);
    assert_int_equal(p.first[p.n], n);
    for (size_t row = 0; row < p.n; row++) {
        size_t sum = 0;
        assert_true(p.first[row] < p.first[row + 1]);
        for (size_t i = p.first[row]; i < p.first[row + 1]; i++) {
            assert_int_equal(seen[p.member[i]]++, 0);
            sum += lengths[p.member[i]];
        }
        assert_true(!room || sum <= room);
    }
    qn__packs_free(&p);
    free(seen);
}

static void test_rows(void **state)
{
    (void)state;
    static const size_t rooms[] = {0, 1, 63, 64, 65, 128, 300};
    uint32_t lengths[500];
    uint64_t seed = 1;
    for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++)
        for (size_t n = 1; n <= 500; n = 2 * n + 1) {
            for (size_t i = 0; i < n; i++) {
                double x = (test_random(&seed) + 1) / 2;
                lengths[i] = 1 + (uint32_t)(x * x * (double)(rooms[k] ? rooms[k] - 1 : 9));
            }
            check_packs(lengths, n, rooms[k]);
        }
}

/* ---- data ------------------------------------------------------------------------------------ */

static qn_dataset *open_facts(const qn_chat *chat, bool pack, int64_t longest)
{
    char path[600];
    qn_error err = {0};
    qn_dataset *d;
    snprintf(path, sizeof path, "%s/models/demo/facts.jsonl", getenv("QUERN_SOURCE"));
    const qn_dataset_options o = {
        .size = sizeof o, .max_length = longest, .mask_prompt = true, .pack = pack};
    if (qn_dataset_open(&d, chat, path, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return d;
}

static void test_data(void **state)
{
    (void)state;
    enum { ROOM = 130 };
    char path[600];
    qn_tokenizer *t;
    qn_chat *chat;
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    assert_int_equal(qn_tokenizer_open(&t, path, NULL), QN_OK);
    assert_int_equal(qn_chat_open(&chat, t, path, NULL), QN_OK);
    qn_dataset *packed = open_facts(chat, true, ROOM), *plain = open_facts(chat, false, ROOM);
    qn_dataset_info a = QN_INIT(qn_dataset_info), b = QN_INIT(qn_dataset_info);
    qn_dataset_get_info(packed, &a);
    qn_dataset_get_info(plain, &b);
    assert_true(a.texts == b.texts && a.tokens == b.tokens && b.rows == b.texts);
    assert_true(a.rows * ROOM < a.tokens * 5 / 4 && a.fingerprint != b.fingerprint);
    uint64_t hash[2] = {0}, counted[2] = {0};
    qn_batch batch = {0};
    for (int k = 0; k < 2; k++) /* the same texts, whatever the order: a sum over them */
        for (int64_t i = 0; i < qn_dataset_batches(k ? plain : packed, 3); i++) {
            assert_int_equal(qn_dataset_batch(k ? plain : packed, 3, i, &batch, NULL), QN_OK);
            assert_true(batch.length <= ROOM && !batch.begins == (k == 1));
            uint64_t text = 1;
            for (int64_t j = 0; j < batch.rows * batch.length; j++) {
                int64_t at = j % batch.length, begin = batch.begins ? batch.begins[j] : 0;
                text = at == begin ? 1 : text;
                text = text * 31 + (uint64_t)batch.tokens[j];
                assert_true(at != begin || !batch.mask[j]);
                hash[k] += batch.mask[j] ? text * text : 0;
                counted[k] += batch.mask[j];
            }
        }
    assert_true(hash[0] == hash[1] && counted[0] == counted[1]);
    qn_batch_free(&batch);
    qn_dataset *valid;
    assert_int_equal(qn_dataset_split(packed, 0.25, &valid, NULL), QN_OK);
    qn_dataset_get_info(valid, &a);
    assert_true(a.texts == 10 && a.rows == 10);
    qn_dataset_get_info(packed, &a);
    assert_true(a.texts == 30 && a.rows < 15);
    qn_dataset_close(valid);
    qn_dataset_close(packed);
    qn_dataset_close(plain);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* ---- losses ---------------------------------------------------------------------------------- */

enum { VOCAB = 150, STEPS = 4, TEXTS = 5, LONGEST = 60, ROOM = 110, ROWS = 2 };
static const int lengths[TEXTS] = {60, 50, 47, 33, 30}, row_of[TEXTS] = {0, 0, 1, 1, 1};

static qn_trainer *open_trainer(qn_device *device, const char *base)
{
    char path[600];
    qn_error err = {0};
    qn_model *model;
    qn_trainer *t = NULL;
    const qn_model_options mo = {
        .size = sizeof mo, .no_tokenizer = true, .products = QN_PRODUCTS_F32};
    const qn_trainer_options o = {.size = sizeof o, .full = true, .learning_rate = 1e-3};
    golden_directory(path, sizeof path, base);
    if (qn_model_open(&model, device, path, &mo, &err) != QN_OK ||
        qn_trainer_open(&t, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_model_close(model);
    return t;
}

/* The texts of a step, each in a row of its own, and two and three in one. */
static void fill_batches(uint64_t *seed, qn_batch *plain, qn_batch *packed)
{
    int64_t at[ROWS] = {0};
    memset(plain->mask, 0, TEXTS * LONGEST);
    memset(packed->mask, 0, ROWS * ROOM);
    for (int i = 0; i < TEXTS; i++)
        for (int64_t k = 0; k < lengths[i]; k++) {
            int32_t token = (int32_t)((test_random(seed) + 1) / 2 * VOCAB);
            int64_t to = row_of[i] * ROOM + at[row_of[i]] + k;
            plain->tokens[i * LONGEST + k] = packed->tokens[to] = token;
            plain->mask[i * LONGEST + k] = packed->mask[to] = k > 0 && token % 5;
            packed->begins[to] = (int32_t)at[row_of[i]];
            if (k == lengths[i] - 1)
                at[row_of[i]] += lengths[i];
        }
}

static void compare(const char *base)
{
    qn_device *device = open_cpu_threads(2);
    int32_t tokens[2][TEXTS * LONGEST] = {{0}}, begins[ROWS * ROOM];
    uint8_t mask[2][TEXTS * LONGEST];
    qn_batch plain = {.tokens = tokens[0], .mask = mask[0], .rows = TEXTS, .length = LONGEST};
    qn_batch packed = {
        .tokens = tokens[1], .mask = mask[1], .rows = ROWS, .length = ROOM, .begins = begins};
    qn_trainer *a = open_trainer(device, base), *b = open_trainer(device, base);
    uint64_t seed = 5;
    for (int i = 0; i < STEPS; i++) {
        double want = 0, got = 0;
        qn_error err = {0};
        fill_batches(&seed, &plain, &packed);
        if (qn_trainer_step_batches(a, &plain, 1, &want, &err) != QN_OK ||
            qn_trainer_step_batches(b, &packed, 1, &got, &err) != QN_OK)
            fail_msg("%s", err.message);
        if (!(fabs(want - got) <= 2e-6 * want))
            fail_msg("%s, step %d: %.8f, packed %.8f", base, i, want, got);
    }
    begins[7] = 8;
    assert_int_equal(qn_trainer_step_batches(b, &packed, 1, NULL, NULL), QN_INVALID);
    begins[7] = -1;
    assert_int_equal(qn_trainer_step_batches(b, &packed, 1, NULL, NULL), QN_INVALID);
    qn_trainer_close(a);
    qn_trainer_close(b);
    qn_device_close(device);
}

static void test_losses(void **state)
{
    (void)state;
    compare("llama/plain");
    compare("qwen3/plain");
    compare("gemma2/plain");
    compare("mistral/window");
    compare("smollm3/plain");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_data),
                                       cmocka_unit_test(test_losses)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
