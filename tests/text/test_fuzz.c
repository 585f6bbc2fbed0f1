/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile tokenizer files: small valid ones are changed at random, and whatever comes out has to
 * be refused or to work. The seed is fixed; QUERN_FUZZ_SECONDS sets another time than five seconds,
 * and QUERN_FUZZ_SEED another seed. Worth most under AddressSanitizer (make check-asan).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SAMPLES = 64, MAX_SAMPLE = 1 << 18 };

typedef struct sample {
    char *data;
    size_t n;
    bool is_model; /* a SentencePiece model, not JSON */
} sample;

static sample samples[MAX_SAMPLES];
static size_t n_samples;
static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % below);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add_sample(const char *data, size_t n, bool is_model)
{
    if (n_samples == MAX_SAMPLES || n > MAX_SAMPLE)
        return;
    char *copy = malloc(n);
    memcpy(copy, data, n);
    samples[n_samples++] = (sample){copy, n, is_model};
}

static size_t decode_model(const qn__json_text *text, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    size_t n = 0;
    for (size_t i = 0; i < text->size && text->data[i] != '='; i++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, text->data[i]) - digits);
        if (i % 4 > 0)
            out[n++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return n;
}

/* The "tokenizer" or "model" of each line. */
static void read_samples(const char *name)
{
    char path[4096], *data;
    const char *root = getenv("QUERN_SOURCE");
    size_t size;
    snprintf(path, sizeof path, "%s/tests/text/%s", root ? root : ".", name);
    assert_int_equal(qn__file_read(path, 1 << 24, &data, &size, NULL), QN_OK);
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1) {
        qn__json_scan scan;
        qn__json_text key, value;
        qn__json_scan_begin(&scan, name, line, (size_t)(end - line), NULL);
        scan.allow_nul = true;
        assert_true(qn__json_enter_object(&scan));
        while (qn__json_next_key(&scan, &key)) {
            bool json = key.size == 9 && memcmp(key.data, "tokenizer", 9) == 0;
            if (key.size == 5 && memcmp(key.data, "model", 5) == 0) {
                assert_true(qn__json_read_string(&scan, &value));
                char *model = malloc(value.size);
                add_sample(model, decode_model(&value, model), true);
                free(model);
            } else if (qn__json_skip(&scan, &value) && json) {
                add_sample(value.data, value.size, false);
            }
        }
        assert_int_equal(qn__json_scan_end(&scan), QN_OK);
    }
    free(data);
}

/* One change: a byte, a few of them, a piece gone, doubled, or taken from another sample. */
static size_t change(char *data, size_t n, size_t capacity)
{
    static const char interesting[] = "\"{}[]:,\\0129-eE.tfn\xff\x80\x7f\x01 \xe2";
    size_t at = draw((uint32_t)n), m = 1 + draw(draw(4) ? 8 : 400);
    const sample *other = &samples[draw((uint32_t)n_samples)];
    m = m < n - at ? m : n - at;
    switch (draw(6)) {
    case 0: data[at] = (char)draw(256); break;
    case 1: data[at] = interesting[draw(sizeof interesting - 1)]; break;
    case 2: data[at] ^= (char)(1u << draw(8)); break;
    case 3: /* gone */ memmove(data + at, data + at + m, n - at - m); return n - m > 0 ? n - m : 1;
    case 4: /* twice */
        if (n + m > capacity)
            break;
        memmove(data + at + m, data + at, n - at);
        return n + m;
    case 5: {
        size_t from = draw((uint32_t)other->n);
        m = m < other->n - from ? m : other->n - from;
        memcpy(data + at, other->data + from, m);
    }
    }
    return n;
}

/* Opens it; if that works, texts have to encode and decode, streamed as in one go. */
static bool try_file(const char *data, size_t n, bool is_model)
{
    static const char text[] =
        "The mill  turns, l\xc3\xa9ger;\n1234 \xf0\x9f\xa6\x80 <s><tool>word "
        "\xe2\x96\x81 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    qn_error err = {0};
    qn_tokenizer *t = calloc(1, sizeof *t);
    t->bos = t->eos = -1;
    qn_status status = is_model ? qn__spm_parse(t, "fuzzed", data, n, &err)
                                : qn__tokenizer_parse(t, "fuzzed", data, n, &err);
    bool opened = status == QN_OK;
    if (!opened) {
        assert_true(err.message[0] != '\0' && err.code == status);
        assert_null(strchr(err.message, '\n'));
    }
    for (unsigned flags = 0; opened && flags < 4; flags++) {
        qn_tokens ids = {0};
        qn_text whole = {0}, streamed = {0};
        qn_decoder *decoder = qn_decoder_new(t, flags & 2 ? QN_SKIP_SPECIAL : 0);
        status = qn_tokenizer_encode(t, text, sizeof text - 1, flags, &ids, &err);
        assert_true(status == QN_OK || status == QN_LIMIT);
        qn_tokenizer_decode(t, ids.ids, ids.n, flags & 2 ? QN_SKIP_SPECIAL : 0, &whole, &err);
        for (size_t i = 0; i < ids.n; i++)
            qn_decoder_push(decoder, ids.ids[i], &streamed, &err);
        qn_decoder_flush(decoder, &streamed, &err);
        assert_int_equal(whole.n, streamed.n);
        assert_memory_equal(whole.data, streamed.data, whole.n);
        assert_int_equal(qn__utf8_check(whole.data, whole.n), whole.n);
        qn_decoder_free(decoder);
        qn_tokens_free(&ids);
        qn_text_free(&whole);
        qn_text_free(&streamed);
    }
    qn_tokenizer_close(t);
    return opened;
}

static void test_changed_files(void **state)
{
    (void)state;
    const char *seconds = getenv("QUERN_FUZZ_SECONDS"), *seed = getenv("QUERN_FUZZ_SEED");
    double begun = seconds_now(), end = begun + (seconds ? atof(seconds) : 5);
    char *data = malloc(2 * MAX_SAMPLE);
    long files = 0, opened = 0;
    random_state = seed ? strtoull(seed, NULL, 10) : 1;
    read_samples("variants.jsonl");
    read_samples("chars.jsonl");
    read_samples("spm.jsonl");
    assert_true(n_samples > 40);
    for (size_t i = 0; i < n_samples; i++)
        assert_true(try_file(samples[i].data, samples[i].n, samples[i].is_model));
    for (; seconds_now() < end; files++) {
        const sample *s = &samples[files % 3 ? draw((uint32_t)n_samples)
                                             : n_samples - 1 - draw(9)]; /* models are the last */
        size_t n = s->n;
        memcpy(data, s->data, n);
        for (uint32_t i = 1 + draw(6); i > 0; i--)
            n = change(data, n, 2 * MAX_SAMPLE);
        double start = seconds_now();
        char *exact = malloc(n); /* so that a read behind its end is seen */
        memcpy(exact, data, n);
        opened += try_file(exact, n, s->is_model);
        free(exact);
        if (seconds_now() - start > 20)
            fail_msg("file %ld took %.0f s", files, seconds_now() - start);
    }
    print_message("%ld changed files, %ld of them opened\n", files, opened);
    assert_true(files > 10 && opened > 0);
    for (size_t i = 0; i < n_samples; i++)
        free(samples[i].data);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changed_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
