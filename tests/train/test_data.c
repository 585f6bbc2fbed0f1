/* SPDX-License-Identifier: Apache-2.0
 *
 * Training data: ids and what is learned of them are mlx-lm's (tests/golden/make_samples.py); every
 * epoch has each text once, in an order that depends on seed and epoch alone; what lines can be
 * wrong in; a file that changes.
 */
#include "demo_test.h"
#include "models/golden_model.h"

#include "base/fail_alloc.h"
#include "base/json.h"
#include "quern/train.h"

#include <string.h>

static qn_dataset *open_data(const qn_chat *chat, const char *path, const qn_dataset_options *o)
{
    qn_error err = {0};
    qn_dataset *d;
    if (qn_dataset_open(&d, chat, path, o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return d;
}

static qn_dataset_info info_of(const qn_dataset *d)
{
    qn_dataset_info info = QN_INIT(qn_dataset_info);
    assert_int_equal(qn_dataset_get_info(d, &info), QN_OK);
    return info;
}

/* ---- mlx-lm ---------------------------------------------------------------------------------- */

static void check_row(const qn_tokenizer *t, const cJSON *row)
{
    const cJSON *ids = cJSON_GetObjectItem(row, "ids"), *id;
    int prompt = cJSON_GetObjectItem(row, "prompt")->valueint, i = 0;
    char *line = cJSON_PrintUnformatted(cJSON_GetObjectItem(row, "line"));
    qn_chat *chat = open_demo_chat(t, cJSON_GetObjectItem(row, "template")->valuestring);
    qn_dataset_options o = {.size = sizeof o,
                            .mask_prompt = cJSON_IsTrue(cJSON_GetObjectItem(row, "mask"))};
    qn_dataset *d = open_data(chat, temp_write("row.jsonl", line, strlen(line)), &o);
    qn_batch b = {0};
    qn_error err = {0};
    assert_int_equal(qn_dataset_batch(d, 1, 0, &b, &err), QN_OK);
    assert_int_equal(b.rows, 1);
    if (b.length != cJSON_GetArraySize(ids))
        fail_msg("%s: %lld tokens", line, (long long)b.length);
    cJSON_ArrayForEach(id, ids)
    {
        assert_int_equal(b.tokens[i], id->valueint);
        assert_int_equal(b.mask[i], i > 0 && i >= prompt);
        i++;
    }
    assert_int_equal(b.counted, i - (prompt ? prompt : 1));
    qn_batch_free(&b);
    qn_dataset_close(d);
    qn_chat_close(chat);
    cJSON_free(line);
}

static void test_mlx_lm(void **state)
{
    (void)state;
    char path[600], line[4096];
    int rows = 0;
    qn_tokenizer *t = open_demo();
    golden_path(path, sizeof path, "samples.jsonl", NULL);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); rows++) {
        cJSON *row = cJSON_Parse(line);
        check_row(t, row);
        cJSON_Delete(row);
    }
    assert_int_equal(rows, 12);
    fclose(f);
    qn_tokenizer_close(t);
}

/* ---- batches --------------------------------------------------------------------------------- */

enum { TEXTS = 23, ROWS = 4, BATCHES = 6, EPOCHS = 5 };

static const char *write_texts(void)
{
    static char text[TEXTS * 100];
    size_t n = 0;
    for (int i = 0; i < TEXTS; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\": \"%.*s\"}\n", i + 1,
                              "abcdefghijklmnopqrstuvwxyz");
    return temp_write("texts.jsonl", text, n);
}

/* Appends which texts a batch has: the demo's tokenizer tells them by their lengths. */
static int list_texts(qn_dataset *d, int64_t index, int64_t *sums)
{
    qn_batch b = {0};
    qn_error err = {0};
    assert_int_equal(qn_dataset_batch(d, ROWS, index, &b, &err), QN_OK);
    int64_t counted = 0;
    for (int64_t row = 0; row < b.rows; row++) {
        sums[row] = 0;
        for (int64_t i = 0; i < b.length; i++) {
            if (!i || b.mask[row * b.length + i])
                sums[row] = (sums[row] * 31 + b.tokens[row * b.length + i]) % 1000000007;
            counted += b.mask[row * b.length + i];
        }
    }
    assert_int_equal(counted, b.counted);
    int rows = (int)b.rows;
    qn_batch_free(&b);
    return rows;
}

static int compare_sums(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void test_epochs(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    const char *path = write_texts();
    qn_dataset_options o = {.size = sizeof o, .seed = 3};
    qn_dataset *d = open_data(chat, path, &o), *same = open_data(chat, path, &o);
    int64_t all[EPOCHS][TEXTS + ROWS], sums[ROWS];
    assert_int_equal(qn_dataset_batches(d, ROWS), BATCHES);
    for (int64_t i = 0, n = 0; i < EPOCHS * BATCHES; i++, n = i % BATCHES ? n : 0)
        n += list_texts(d, i, all[i / BATCHES] + n);
    for (int64_t i = EPOCHS * BATCHES; i-- > 0;) { /* whichever came before */
        int rows = list_texts(same, i, sums);
        assert_int_equal(rows, i % BATCHES == BATCHES - 1 ? TEXTS % ROWS : ROWS);
        assert_memory_equal(sums, all[i / BATCHES] + i % BATCHES * ROWS,
                            (size_t)rows * sizeof *sums);
    }
    for (int e = 1; e < EPOCHS; e++)
        assert_memory_not_equal(all[e], all[e - 1], TEXTS * sizeof **all);
    for (int e = 0; e < EPOCHS; e++)
        qsort(all[e], TEXTS, sizeof **all, compare_sums);
    for (int i = 1; i < TEXTS; i++)
        assert_true(all[0][i] != all[0][i - 1]);
    for (int e = 1; e < EPOCHS; e++)
        assert_memory_equal(all[e], all[0], TEXTS * sizeof **all);
    o.seed = 4;
    qn_dataset *other = open_data(chat, path, &o);
    int64_t first[ROWS];
    list_texts(d, 0, first);
    list_texts(other, 0, sums);
    assert_memory_not_equal(first, sums, sizeof sums);
    assert_int_equal(info_of(other).fingerprint, info_of(d).fingerprint);
    qn_dataset_close(other);
    qn_dataset_close(same);
    qn_dataset_close(d);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

static void test_split(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    qn_dataset_options o = {.size = sizeof o, .in_order = true};
    qn_error err = {0};
    qn_dataset *d = open_data(chat, write_texts(), &o), *valid;
    int64_t all[TEXTS + ROWS], parts[TEXTS + 2 * ROWS], n = 0;
    for (int64_t i = 0; i < BATCHES; i++)
        n += list_texts(d, i, all + n);
    uint64_t tokens = info_of(d).tokens;
    assert_int_equal(qn_dataset_split(d, 0.01, &valid, &err), QN_INVALID);
    assert_int_equal(qn_dataset_split(d, 0.99, &valid, NULL), QN_INVALID);
    assert_null(valid);
    assert_int_equal(qn_dataset_split(d, 0.3, &valid, NULL), QN_OK);
    assert_int_equal(info_of(valid).texts, 7);
    assert_int_equal(info_of(d).texts, TEXTS - 7);
    assert_int_equal(info_of(d).tokens + info_of(valid).tokens, tokens);
    n = 0;
    for (int64_t i = 0; i < qn_dataset_batches(d, ROWS); i++)
        n += list_texts(d, i, parts + n);
    for (int64_t i = 0; i < qn_dataset_batches(valid, ROWS); i++)
        n += list_texts(valid, i, parts + n);
    assert_int_equal(n, TEXTS);
    qsort(all, TEXTS, sizeof *all, compare_sums);
    qsort(parts, TEXTS, sizeof *parts, compare_sums);
    assert_memory_equal(all, parts, TEXTS * sizeof *all);
    qn_dataset_close(valid);
    qn_dataset_close(d);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct told {
    int n;
    char last[600];
} told;

static void remember(void *user, const char *message)
{
    told *t = user;
    t->n++;
    snprintf(t->last, sizeof t->last, "%s", message);
}

static void test_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *part;
        bool mask;
    } cases[] = {
        {"{\"text\": 5}", "bad.jsonl: line 2: text: expected a string", false},
        {"[]", "line 2: not an object", false},
        {"{", "line 2: JSON ends", false},
        {"{\"text\": \"\xff\"}", "line 2: ", false},
        {"{\"id\": 4}", "line 2: none of", false},
        {"{\"text\": \"a b\", \"messages\": []}", "more than one", false},
        {"{\"text\": \"a b\"}", "a prompt to mask", true},
        {"{\"prompt\": \"a\"}", "line 2: completion: ", false},
        {"{\"completion\": \"a\"}", "line 2: prompt: ", false},
        {"{\"messages\": []}", "there is no message", false},
        {"{\"messages\": [{\"role\": \"user\"}]}", "messages[0]: the message has no content",
         false},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", "a prompt", true},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"user\", "
         "\"content\": \"a\"}]}",
         "not an assistant's reply", true},
    };
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        told all = {0};
        qn_error err = {0};
        qn_dataset *d;
        snprintf(text, sizeof text, "{\"prompt\":\"a\",\"completion\":\"b\"}\n%s", cases[i].line);
        qn_dataset_options o = {
            .size = sizeof o, .mask_prompt = cases[i].mask, .bad = remember, .user = &all};
        const char *path = temp_write("bad.jsonl", text, strlen(text));
        assert_int_equal(qn_dataset_open(&d, chat, path, &o, &err), QN_INVALID);
        assert_null(d);
        if (all.n != 1 || !strstr(all.last, cases[i].part))
            fail_msg("%s: %s", cases[i].line, all.last);
        assert_non_null(strstr(err.message, "1 of 2 lines cannot be used"));
    }
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* A byte order mark, carriage returns, blank lines, no newline at the end, unknown members. */
static void test_forms(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf{\"text\": \"one two\", \"id\": 5}\r\n\r\n \t\n"
                               "{\"text\": \"one two\", \"id\": 6, \"source\": \"x\", \"i\": 0}";
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    qn_error err = {0};
    qn_dataset *d = open_data(chat, temp_write("forms.jsonl", text, sizeof text - 1), NULL);
    assert_int_equal(info_of(d).texts, 2);
    assert_string_equal(info_of(d).passed_over, "id, source, i");
    qn_dataset_close(d);
    assert_int_equal(qn_dataset_open(&d, chat, temp_write("none.jsonl", "\n", 1), NULL, &err),
                     QN_INVALID);
    assert_non_null(strstr(err.message, "there are no texts"));
    assert_int_equal(qn_dataset_open(&d, chat, temp_path("absent"), NULL, NULL), QN_NOT_FOUND);
    const qn_dataset_options one = {.size = sizeof one, .max_length = 1};
    assert_int_equal(qn_dataset_open(&d, chat, temp_path("forms.jsonl"), &one, NULL), QN_INVALID);
    char *longest = malloc(17 << 20);
    memset(longest, 'x', 17 << 20);
    memcpy(longest, text + 3, sizeof text - 4);
    longest[(17 << 20) - 1] = '\n';
    told all = {0};
    const qn_dataset_options o = {.size = sizeof o, .bad = remember, .user = &all};
    assert_int_equal(
        qn_dataset_open(&d, chat, temp_write("long.jsonl", longest, 17 << 20), &o, NULL),
        QN_INVALID);
    assert_int_equal(all.n, 1);
    assert_non_null(strstr(all.last, "line 4 exceeds 16777216 bytes"));
    free(longest);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* What is longer is cut off; a prompt that leaves nothing to learn is left out. */
static void test_cut(void **state)
{
    (void)state;
    static const char text[] =
        "{\"prompt\": \"a\", \"completion\": \"one two three four five six seven eight nine\"}\n"
        "{\"prompt\": \"one two three four five six seven eight nine\", \"completion\": \"b\"}\n";
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    qn_error err = {0};
    qn_batch b = {0};
    qn_dataset_options o = {.size = sizeof o, .max_length = 12, .mask_prompt = true};
    const char *path = temp_write("cut.jsonl", text, sizeof text - 1);
    qn_dataset *d = open_data(chat, path, &o);
    qn_dataset_info info = info_of(d);
    assert_int_equal(info.texts, 1);
    assert_int_equal(info.cut, 2);
    assert_int_equal(info.left_out, 1);
    assert_int_equal(info.longest, 12);
    assert_int_equal(qn_dataset_batch(d, 4, 0, &b, &err), QN_OK);
    assert_int_equal(b.length, 12);
    assert_true(b.counted > 0 && b.counted < 12);
    qn_dataset_close(d);
    o.max_length = 5;
    assert_int_equal(qn_dataset_open(&d, chat, path, &o, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "nothing is left to learn"));
    qn_batch_free(&b);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

static void test_changed(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    qn_batch b = {0};
    const char *path = write_texts();
    qn_dataset_options o = {.size = sizeof o, .in_order = true};
    qn_dataset *d = open_data(chat, path, &o);
    FILE *f = fopen(path, "r+");
    fseek(f, 10, SEEK_SET); /* another letter in line 1 */
    fputc('z', f);
    fclose(f);
    qn_error err = {0};
    assert_int_equal(qn_dataset_batch(d, 1, 1, &b, &err), QN_OK);
    assert_int_equal(qn_dataset_batch(d, 1, 0, &b, &err), QN_STATE);
    assert_non_null(strstr(err.message, "line 1 has changed"));
    assert_int_equal(truncate(path, 30), 0);
    assert_int_equal(qn_dataset_batch(d, 1, 20, &b, NULL), QN_IO);
    assert_int_equal(qn_dataset_batch(d, 0, 0, &b, NULL), QN_INVALID);
    assert_int_equal(qn_dataset_batch(d, 1, -1, &b, NULL), QN_INVALID);
    qn_batch_free(&b);
    qn_dataset_close(d);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* Wherever memory runs out, that is said, and nothing leaks. */
static void test_memory(void **state)
{
    (void)state;
    static const char text[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
        "\"assistant\", \"content\": \"b\"}]}\n{\"prompt\": \"a\", "
        "\"completion\": \"b\"}\n";
    qn_tokenizer *t = open_demo();
    qn_chat *chat = open_demo_chat(t, NULL);
    const char *path = temp_write("memory.jsonl", text, sizeof text - 1);
    const qn_dataset_options o = {.size = sizeof o, .mask_prompt = true};
    qn_status status = QN_MEMORY;
    for (long n = 0; status != QN_OK; n++) {
        qn_error err = {0};
        qn_batch b = {0};
        qn_dataset *d, *valid = NULL;
        fail_allocation_begin(n);
        status = qn_dataset_open(&d, chat, path, &o, &err);
        if (status == QN_OK)
            status = qn_dataset_split(d, 0.5, &valid, &err);
        if (status == QN_OK)
            status = qn_dataset_batch(d, 2, 0, &b, &err);
        fail_allocation_end();
        if (status != QN_OK && status != QN_MEMORY)
            fail_msg("allocation %ld: %s", n, err.message);
        qn_batch_free(&b);
        qn_dataset_close(valid);
        qn_dataset_close(d);
    }
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlx_lm),  cmocka_unit_test(test_epochs), cmocka_unit_test(test_split),
        cmocka_unit_test(test_lines),   cmocka_unit_test(test_forms),  cmocka_unit_test(test_cut),
        cmocka_unit_test(test_changed), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
