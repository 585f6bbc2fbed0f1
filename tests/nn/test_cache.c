/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache and batches by themselves: page numbers, what is refused, whose window counts, that
 * a commit which fails loses nothing, and that a sequence gets the same bits alone and in any mix
 * of steps with others, going back and starting again. That sessions get the right ones is in
 * tests/generate.
 */
#include "nn/batch.h"
#include "test.h"

#include "base/fail_alloc.h"

#include <math.h>
#include <string.h>

enum { QUERIES = 4, HEADS = 2, WIDTH = 32, ROW = QUERIES * WIDTH, LAYERS = 4, PIECE = 8 };

/* Tests that change the encodings of keys and values put them back. */
static qn__cache_shape shape = {.n_layers = LAYERS,
                                .queries = QUERIES,
                                .heads = HEADS,
                                .key_dim = WIDTH,
                                .value_dim = WIDTH,
                                .keys = QN__F32,
                                .values = QN__F32};

static void begin_cache(qn__cache *cache, const qn__cache_window *windows, int64_t sequences,
                        int64_t positions)
{
    qn_error err = {0};
    if (qn__cache_begin(
            cache, &shape, windows,
            &(qn__cache_room){.sequences = sequences, .positions = positions, .reach = PIECE},
            &err) != QN_OK)
        fail_msg("%s", err.message);
}

static uint64_t random_bits(uint64_t *seed)
{
    return (uint64_t)((test_random(seed) + 1) * (double)(1 << 30));
}

/* ---- page numbers ---------------------------------------------------------------------------- */

static void test_pages(void **state)
{
    (void)state;
    enum { MOST = 200 };
    qn__pages pages;
    qn_error err = {0};
    int refs[MOST] = {0}, in_use = 0;
    uint64_t seed = 5;
    qn__pages_begin(&pages, MOST);
    for (int i = 0; i < 20000; i++) {
        int32_t page, p = (int32_t)(random_bits(&seed) % MOST), lowest = 0;
        while (lowest < MOST && refs[lowest])
            lowest++;
        if (i / 500 % 3 != 1 && random_bits(&seed) % 3) {
            qn_status status = qn__pages_take(&pages, &page, &err);
            assert_int_equal(status, lowest < MOST ? QN_OK : QN_LIMIT);
            if (status == QN_OK) {
                assert_int_equal(page, lowest);
                refs[page] = 1;
                in_use++;
            }
        } else if (refs[p] && random_bits(&seed) % 3 == 0) {
            qn__pages_share(&pages, p);
            refs[p]++;
        } else if (refs[p]) {
            qn__pages_give_back(&pages, p);
            in_use -= --refs[p] == 0;
        }
        assert_int_equal(pages.in_use, in_use);
        int32_t top = MOST;
        while (top && !refs[top - 1])
            top--;
        assert_int_equal(pages.top, top);
    }
    qn__pages_end(&pages);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A sequence, and what each of its tokens is. */
typedef struct stream {
    qn__sequence sequence;
    int number;
} stream;

/* What runs in a step: n tokens of a stream, whose results go to y, [n, ROW]. */
typedef struct portion {
    stream *of;
    int64_t n;
    float *y;
} portion;

static int poison = -1; /* the stream whose numbers are none */

/* Queries of all portions' tokens, [1, QUERIES, T, WIDTH]; of fewer heads, the first ones. */
static qn_array *tokens_of(qn_scope *s, const portion *p, int n_portions, int64_t total)
{
    float *x = malloc((size_t)(total * ROW) * sizeof *x);
    int64_t at = 0;
    for (int k = 0; k < n_portions; k++)
        for (int64_t i = 0; i < p[k].n; i++)
            for (int j = 0; j < ROW; j++)
                x[at++] = sinf((float)((p[k].of->number * 7 + 3) *
                                       (p[k].of->sequence.length + i + 1) * (j + 5)) *
                               0.37f) +
                          (p[k].of->number == poison ? NAN : 0);
    qn_array *a = qn_from(s, QN_F32, 4, (const int64_t[]){1, total, QUERIES, WIDTH}, x);
    free(x);
    return qn_transpose(s, a, (const int[]){0, 2, 1, 3});
}

/* fail_commit: which of the commit's allocations fails; -1: none. give_up: before it has run. */
static qn_status step(qn_device *device, qn__cache *cache, const portion *p, int n_portions,
                      int64_t own_window, long fail_commit, bool give_up)
{
    qn__batch batch = {0};
    qn_error err = {0};
    int64_t total = 0;
    int32_t ids[1000] = {0};
    qn_scope *s = qn_scope_begin(device);
    qn__batch_begin(&batch, cache);
    for (int k = 0; k < n_portions; total += p[k++].n) {
        qn_status status = qn__batch_add(&batch, &p[k].of->sequence, ids, p[k].n, 0, &err);
        if (status != QN_OK || give_up) {
            qn__batch_end(NULL, &batch);
            qn__batch_free(&batch);
            qn_scope_end(s);
            return status;
        }
    }
    qn_array *x = tokens_of(s, p, n_portions, total);
    qn_attention_options o = {.size = sizeof o, .window = own_window};
    qn__batch_record(s, &batch);
    for (int i = 0; i < LAYERS; i++) {
        qn_array *kv = qn_slice(s, x, 1, 0, HEADS, 1);
        x = qn_add(s, x, qn__batch_attend(s, &batch, i, x, kv, kv, &o));
    }
    int count;
    qn_array *const *targets = qn__batch_targets(&batch, &count);
    qn_array *all[2 * LAYERS + 1], *y = qn_transpose(s, x, (const int[]){0, 2, 1, 3});
    memcpy(all, targets, (size_t)count * sizeof *all);
    all[count] = x;
    qn_eval_many(s, all, count + 1);
    for (int64_t k = 0, at = 0; k < n_portions; at += p[k++].n)
        qn_read_f32(s, qn_slice(s, y, 1, at, at + p[k].n, 1), p[k].y, (size_t)(p[k].n * ROW));
    if (fail_commit >= 0)
        fail_allocation_begin(fail_commit);
    qn__batch_end(s, &batch);
    if (fail_commit >= 0)
        assert_true(fail_allocation_end());
    qn_status status = qn_scope_status(s);
    qn__batch_free(&batch);
    qn_scope_end(s);
    return status;
}

static qn_status step_one(qn_device *device, stream *of, int64_t n, int64_t own_window, float *y,
                          long fail_commit)
{
    return step(device, of->sequence.cache, &(portion){of, n, y}, 1, own_window, fail_commit,
                false);
}

/* A cache that is full refuses, and what is given back can be taken by others. */
static void test_full(void **state)
{
    qn_device *device = open_cpu(state);
    qn__cache cache;
    stream a = {.number = 1}, b = {.number = 2};
    float *y = malloc(200 * ROW * sizeof *y);
    begin_cache(&cache, NULL, 1, 130);
    qn__sequence_begin(&a.sequence, &cache);
    qn__sequence_begin(&b.sequence, &cache);
    assert_int_equal(step_one(device, &a, 65, 0, y, -1), QN_OK);
    assert_int_equal(step_one(device, &b, 65, 0, y, -1), QN_LIMIT);
    assert_int_equal(b.sequence.length, 0);
    assert_int_equal(step_one(device, &b, 64, 0, y, -1), QN_OK);
    assert_int_equal(step_one(device, &a, 63, 0, y, -1), QN_OK);
    const portion both[] = {{&a, 1, y}, {&b, 1, y}};
    assert_int_equal(step(device, &cache, both, 2, 0, -1, false), QN_LIMIT);
    assert_int_equal(a.sequence.length, 128);
    assert_int_equal(cache.kind[0].pages.in_use, 3);
    qn__sequence_end(&a.sequence);
    assert_int_equal(step_one(device, &b, 100, 0, y, -1), QN_OK);
    qn__sequence_end(&b.sequence);
    assert_int_equal(qn__cache_bytes(&cache), 0);
    qn__cache_end(&cache);
    assert_int_equal(memory_of(device).active, 0);
    free(y);
    qn_device_close(device);
}

/* Of the layer's window and the options' the narrower counts. */
static void test_windows(void **state)
{
    static const int64_t windows[][2] = {{5, 0}, {0, 5}, {5, 7}, {7, 5}, {5, 300}};
    qn_device *device = open_cpu(state);
    enum { STEPS = 12, SIZE = STEPS * PIECE * ROW };
    static float first[SIZE], y[SIZE];
    for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
        qn__cache cache;
        stream a = {.number = 3};
        qn__cache_window w[LAYERS] = {{0}};
        for (int i = 0; i < LAYERS; i++)
            w[i].window = windows[k][0];
        begin_cache(&cache, w, 1, STEPS * PIECE);
        qn__sequence_begin(&a.sequence, &cache);
        for (int i = 0; i < STEPS; i++)
            assert_int_equal(step_one(device, &a, PIECE, windows[k][1], y + i * PIECE * ROW, -1),
                             QN_OK);
        if (k == 0)
            memcpy(first, y, sizeof y);
        assert_memory_equal(y, first, sizeof y);
        if (windows[k][0])
            assert_int_equal(cache.kind[0].pages.in_use, 1);
        qn__sequence_end(&a.sequence);
        qn__cache_end(&cache);
    }
    qn_device_close(device);
}

/* How far back a sequence can go: as its windows' pages reach, or to what stays. */
static void test_rewind(void **state)
{
    static const struct {
        qn__cache_window sees;
        int64_t to, length;
    } cases[] = {{{0, 0}, 50, 50},  {{20, 0}, 299, 299}, {{20, 0}, 100, 0},  {{40, 64}, 50, 50},
                 {{40, 64}, 70, 0}, {{40, 64}, 0, 0},    {{90, 5}, 290, 290}};
    qn_device *device = open_cpu(state);
    float *y = malloc(PIECE * ROW * sizeof *y);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        qn__cache cache;
        stream a = {.number = 1};
        const qn__cache_window w[LAYERS] = {cases[k].sees, cases[k].sees, cases[k].sees,
                                            cases[k].sees};
        begin_cache(&cache, w, 1, 400);
        qn__sequence_begin(&a.sequence, &cache);
        while (a.sequence.length < 304)
            assert_int_equal(step_one(device, &a, PIECE, 0, y, -1), QN_OK);
        assert_int_equal(qn__sequence_rewind(&a.sequence, cases[k].to), cases[k].length);
        if (!cases[k].length)
            assert_int_equal(cache.kind[0].pages.in_use, 0);
        qn__sequence_end(&a.sequence);
        qn__cache_end(&cache);
    }
    free(y);
    qn_device_close(device);
}

/* Each allocation of a commit fails: the step can be done again. */
static void test_failed_commit(void **state)
{
    qn_device *device = open_cpu(state);
    float want[PIECE * ROW], y[PIECE * ROW];
    for (long n = 0; n < 2 * LAYERS; n++) {
        qn__cache cache;
        stream a = {.number = 1};
        begin_cache(&cache, NULL, 1, 100);
        qn__sequence_begin(&a.sequence, &cache);
        assert_int_equal(step_one(device, &a, PIECE, 0, y, -1), QN_OK);
        step_one(device, &a, PIECE, 0, want, n);
        assert_int_equal(a.sequence.length, PIECE);
        assert_int_equal(step_one(device, &a, PIECE, 0, y, -1), QN_OK);
        assert_int_equal(a.sequence.length, 2 * PIECE);
        assert_memory_equal(y, want, sizeof y);
        qn__sequence_end(&a.sequence);
        qn__cache_end(&cache);
        assert_int_equal(memory_of(device).active, 0); /* nothing is left */
    }
    qn_device_close(device);
}

/* ---- mixes ----------------------------------------------------------------------------------- */

enum { STREAMS = 6, LONGEST = 300, MIXED_STEPS = FEWER ? 400 : 4000 };

static const qn__cache_window mixed[LAYERS] = {{0, 0}, {20, 0}, {90, 5}, {40, 64}};

/* Each stream alone, all at once. */
static void run_alone(qn_device *device, float *want)
{
    for (int i = 0; i < STREAMS; i++) {
        qn__cache cache;
        stream a = {.number = i};
        qn_error err = {0};
        assert_int_equal(
            qn__cache_begin(
                &cache, &shape, mixed,
                &(qn__cache_room){.sequences = 1, .positions = LONGEST, .reach = LONGEST}, &err),
            QN_OK);
        qn__sequence_begin(&a.sequence, &cache);
        assert_int_equal(step_one(device, &a, LONGEST, 0, want + (size_t)i * LONGEST * ROW, -1),
                         QN_OK);
        qn__sequence_end(&a.sequence);
        qn__cache_end(&cache);
    }
}

/* One step of some streams; now and then one that is given up, or a stream goes back. */
static void random_step(qn_device *device, qn__cache *cache, stream *streams, const float *want,
                        float *y, uint64_t *seed)
{
    portion p[STREAMS];
    int n = 0;
    for (int i = 0; i < STREAMS; i++) {
        stream *a = &streams[i];
        int64_t left = LONGEST - a->sequence.length;
        int64_t most = random_bits(seed) % 2 ? 1 : PIECE;
        if (random_bits(seed) % 40 == 0)
            qn__sequence_rewind(&a->sequence,
                                (int64_t)(random_bits(seed) % (uint64_t)(LONGEST + 1 - left)));
        else if (left && random_bits(seed) % 3)
            p[n++] = (portion){a, left < most ? left : most, y + i * PIECE * ROW};
    }
    if (!n)
        return;
    bool give_up = random_bits(seed) % 10 == 0;
    int64_t before[STREAMS];
    for (int k = 0; k < n; k++)
        before[k] = p[k].of->sequence.length;
    assert_int_equal(step(device, cache, p, n, 0, -1, give_up), QN_OK);
    for (int k = 0; k < n; k++) {
        assert_int_equal(p[k].of->sequence.length, before[k] + (give_up ? 0 : p[k].n));
        const float *w = want + (p[k].of->number * LONGEST + before[k]) * ROW;
        if (!give_up)
            assert_memory_equal(p[k].y, w, (size_t)(p[k].n * ROW) * sizeof *w);
    }
}

/* Random steps with so many threads, until each stream is done. */
static void run_mix(int threads, const float *want, float *y)
{
    qn_device *device = open_cpu_threads(threads);
    uint64_t seed = 77 + (uint64_t)threads;
    qn__cache cache;
    stream streams[STREAMS];
    begin_cache(&cache, mixed, STREAMS, LONGEST);
    for (int i = 0; i < STREAMS; i++) {
        streams[i].number = i;
        qn__sequence_begin(&streams[i].sequence, &cache);
    }
    for (int i = 0, done = 0; done < STREAMS && i < MIXED_STEPS; i++) {
        random_step(device, &cache, streams, want, y, &seed);
        done = 0;
        for (int k = 0; k < STREAMS; k++)
            done += streams[k].sequence.length == LONGEST;
    }
    for (int i = 0; i < STREAMS; i++)
        qn__sequence_end(&streams[i].sequence);
    assert_int_equal(qn__cache_bytes(&cache), 0);
    qn__cache_end(&cache);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* How far, in squares, keys and values of 32 numbers kept so are from those that are not. */
static const struct {
    qn__encoding_id keys, values;
    double far;
    size_t page; /* bytes of a layer's */
} kept[] = {{QN__F32, QN__F32, 0, HEADS * 64 * 2 * WIDTH * 4},
            {QN__BF16, QN__F16, 1e-4, HEADS * 64 * 2 * WIDTH * 2},
            {QN__F16, QN__F16, 1e-6, HEADS * 64 * 2 * WIDTH * 2},
            {QN__Q8_0, QN__Q8_0, 4e-4, HEADS * 64 * 2 * 2 * 34}, /* units are 64 columns wide */
            {QN__Q4_0, QN__F32, 6e-2, HEADS * 64 * (2 * 18 + WIDTH * 4)},
            {QN__F32, QN__Q4_1, 3e-2, HEADS * 64 * (2 * 20 + WIDTH * 4)}};

static void test_mixes(void **state)
{
    (void)state;
    size_t n = (size_t)STREAMS * LONGEST * ROW;
    float *exact = malloc(n * sizeof *exact), *want = malloc(n * sizeof *want),
          y[STREAMS * PIECE * ROW];
    for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) {
        shape.keys = kept[k].keys;
        shape.values = kept[k].values;
        qn_device *device = open_cpu_threads(1);
        run_alone(device, want);
        qn_device_close(device);
        if (k == 0)
            memcpy(exact, want, n * sizeof *want);
        double error = 0, square = 0;
        for (size_t i = 0; i < n; i++) {
            error += ((double)want[i] - exact[i]) * ((double)want[i] - exact[i]);
            square += (double)exact[i] * exact[i];
        }
        if (error > kept[k].far * square)
            fail_msg("%s %s: %g", qn__encodings[shape.keys].name, qn__encodings[shape.values].name,
                     error / square);
        assert_true(k == 0 || error > 0);
        for (int threads = k ? 3 : 1; threads < (k ? 4 : 6); threads += 2)
            run_mix(threads, want, y);
    }
    shape.keys = shape.values = QN__F32;
    free(want);
    free(exact);
}

/* What a page takes is what is counted. */
static void test_bytes(void **state)
{
    qn_device *device = open_cpu(state);
    float *y = malloc(PIECE * ROW * sizeof *y);
    for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) {
        qn__cache cache;
        stream a = {.number = 1};
        shape.keys = kept[k].keys;
        shape.values = kept[k].values;
        begin_cache(&cache, NULL, 1, 100);
        qn__sequence_begin(&a.sequence, &cache);
        assert_int_equal(step_one(device, &a, PIECE, 0, y, -1), QN_OK);
        assert_int_equal(qn__cache_bytes(&cache), LAYERS * kept[k].page);
        qn__sequence_end(&a.sequence);
        qn__cache_end(&cache);
    }
    shape.keys = shape.values = QN__F32;
    free(y);
    qn_device_close(device);
}

/* A key that is not finite stays so, in blocks too, and harms no other sequence. */
static void test_not_finite(void **state)
{
    qn_device *device = open_cpu(state);
    float bad[ROW], good[ROW], want[ROW];
    shape.keys = shape.values = QN__Q8_0;
    qn__cache cache;
    stream a = {.number = 1}, b = {.number = 2};
    begin_cache(&cache, NULL, 2, 100);
    qn__sequence_begin(&a.sequence, &cache);
    qn__sequence_begin(&b.sequence, &cache);
    assert_int_equal(step_one(device, &b, 1, 0, want, -1), QN_OK);
    qn__sequence_rewind(&b.sequence, 0);
    poison = 1;
    const portion both[] = {{&a, 1, bad}, {&b, 1, good}};
    assert_int_equal(step(device, &cache, both, 2, 0, -1, false), QN_OK);
    poison = -1;
    assert_int_equal(step_one(device, &a, 1, 0, bad, -1), QN_OK); /* which sees that key */
    assert_true(isnan(bad[0]));
    assert_memory_equal(good, want, sizeof good);
    qn__sequence_end(&a.sequence);
    qn__sequence_end(&b.sequence);
    qn__cache_end(&cache);
    shape.keys = shape.values = QN__F32;
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),   cmocka_unit_test(test_full),
        cmocka_unit_test(test_windows), cmocka_unit_test(test_failed_commit),
        cmocka_unit_test(test_rewind),  cmocka_unit_test(test_mixes),
        cmocka_unit_test(test_bytes),   cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
