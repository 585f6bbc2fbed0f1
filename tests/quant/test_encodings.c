/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodings against gguf's numpy and MLX (golden/make_encodings.py), and against what must hold of
 * each of them.
 */
#include "test.h"

#include "base/half.h"
#include "quant/encoding.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { WIDTHS = 18, ROWS = 10 };

typedef struct golden {
    uint8_t *data;
    size_t n;
} golden;

/* Of golden/encodings; n is 0 when there is none of that name. */
static golden load_golden(const char *name, const char *suffix)
{
    const char *source = getenv("QUERN_SOURCE");
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/encodings/%s%s", source ? source : ".", name,
             suffix);
    FILE *f = fopen(path, "rb");
    golden g = {malloc(1 << 16), 0};
    assert_non_null(g.data);
    if (f) {
        g.n = fread(g.data, 1, 1 << 16, f);
        fclose(f);
    }
    return g;
}

static void assert_same_values(const float *y, const float *expected, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&y[i], &expected[i], 4) != 0)
            fail_msg("%s: value %zu is %a, not %a", name, i, y[i], expected[i]);
}

static void assert_same_blocks(const uint8_t *y, const uint8_t *expected, size_t n,
                               const qn__encoding *e)
{
    for (size_t i = 0; i < n * e->block_bytes; i++)
        if (y[i] != expected[i])
            fail_msg("%s: block %zu, byte %zu is %d, not %d", e->name, i / e->block_bytes,
                     i % e->block_bytes, y[i], expected[i]);
}

static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < QN__ENCODING_COUNT; i++) {
        const qn__encoding *e = &qn__encodings[i];
        assert_non_null(e->decode);
        assert_int_equal(qn__encoding_named(e->name), i);
        if (e->ggml_type >= 0)
            assert_int_equal(qn__encoding_of_ggml(e->ggml_type), i);
        if (e->bits) {
            assert_int_equal(e->block_bytes,
                             e->bits * e->group / 8 + 2 * qn__encodings[e->scale].block_bytes);
            assert_int_equal(e->block_elements, e->group);
            assert_int_equal((e->zeroed ? qn__encoding_zeroed
                                        : qn__encoding_affine)(e->bits, e->group, e->scale),
                             i);
        }
        assert_true(qn__encoding_row_bytes(e, 0) == 0);
        assert_true(qn__encoding_row_bytes(e, -(int64_t)e->block_elements) == 0);
        assert_true(qn__encoding_row_bytes(e, 3 * e->block_elements) == 3u * e->block_bytes);
        if (e->block_elements > 1) {
            assert_true(qn__encoding_row_bytes(e, 3 * e->block_elements + 1) == 0);
            continue;
        }
        if (e->block_bytes > 2)
            assert_true(qn__encoding_row_bytes(e, INT64_MAX) == 0); /* wraps */
    }
    assert_int_equal(qn__encoding_named("affine4-g64-bf16"), QN__AFFINE4_G64_BF16);
    assert_int_equal(qn__encoding_named("zeroed4-g128-f16"), QN__ZEROED4_G128_F16);
    assert_int_equal(qn__encoding_named("q4_2"), -1);
    assert_int_equal(qn__encoding_of_ggml(-1), -1);
    assert_int_equal(qn__encoding_of_ggml(4), -1);
    assert_int_equal(qn__encoding_of_ggml((int64_t)1 << 32), -1);
    assert_int_equal(qn__encoding_affine(7, 64, QN__F16), -1);
    assert_int_equal(qn__encoding_affine(0, 0, QN__F32), -1);
    assert_int_equal(qn__encoding_affine(4, 64, QN__Q8_0), -1);
    assert_int_equal(qn__encoding_zeroed(5, 64, QN__F16), -1);
}

/* Random blocks, and llama.cpp's of weights, from an address that is not aligned. */
static void test_decode(void **state)
{
    (void)state;
    for (int i = 0; i < QN__ENCODING_COUNT; i++) {
        const qn__encoding *e = &qn__encodings[i];
        if (e->bits)
            continue;
        golden g = load_golden(e->name, ".bin");
        uint32_t n;
        assert_true(g.n > 4);
        memcpy(&n, g.data, 4);
        size_t bytes = (size_t)n * e->block_bytes, count = (size_t)n * e->block_elements;
        assert_true(g.n == 4 + bytes + 4 * count);
        uint8_t *blocks = malloc(bytes + 1);
        float *y = malloc(4 * count), *expected = malloc(4 * count);
        memcpy(blocks + 1, g.data + 4, bytes);
        memcpy(expected, g.data + 4 + bytes, 4 * count);
        e->decode(e, blocks + 1, n, y);
        assert_same_values(y, expected, count, e->name);
        free(blocks), free(y), free(expected), free(g.data);
    }
}

/* One code of a group, bit by bit. */
static int code_at(const uint8_t *codes, int bits, int j)
{
    int code = 0;
    for (int k = 0; k < bits; k++) {
        int at = j * bits + k;
        code |= (codes[at / 8] >> at % 8 & 1) << k;
    }
    return code;
}

static float scale_at(const uint8_t *p, int type, int which)
{
    uint32_t bits = 0;
    float f;
    if (type == QN__F32)
        memcpy(&bits, p + 4 * which, 4);
    else
        memcpy(&bits, p + 2 * which, 2);
    if (type == QN__F16)
        return qn__f16_to_f32((uint16_t)bits);
    bits <<= type == QN__BF16 ? 16 : 0;
    memcpy(&f, &bits, 4);
    return f;
}

/* The first encoding of a type of scale, and those of the other widths in order. */
static const qn__encoding *affine_at(int width, int type)
{
    static const int first[] = {QN__AFFINE2_G32_F32, QN__AFFINE2_G32_F16, QN__AFFINE2_G32_BF16};
    return &qn__encodings[first[type == QN__F32 ? 0 : type == QN__F16 ? 1 : 2] + 3 * width];
}

/* The groups of each width in an affine-TYPE.bin, and the values that they were made from. */
static const uint8_t *affine_part(const golden *g, int width, int type, float *values)
{
    size_t element = type == QN__F32 ? 4 : 2, at = ROWS * 128 * element;
    qn__encodings[type].decode(&qn__encodings[type], g->data, ROWS * 128, values);
    for (int w = 0; w < width; w++)
        at += (size_t)(ROWS * 128 / affine_at(w, type)->group) * affine_at(w, type)->block_bytes;
    assert_true(at < g->n);
    return g->data + at;
}

static void test_decode_affine(void **state)
{
    (void)state;
    static const char *const names[] = {"f32", "f16", "bf16"};
    static const int types[] = {QN__F32, QN__F16, QN__BF16};
    golden values = load_golden("affine-values", ".bin");
    float *from = malloc(ROWS * 128 * 4), *y = malloc(ROWS * 128 * 4),
          *mlx = malloc(ROWS * 128 * 4);
    for (int t = 0; t < 3; t++) {
        char name[32];
        snprintf(name, sizeof name, "affine-%s", names[t]);
        golden g = load_golden(name, ".bin");
        for (int w = 0; w < WIDTHS; w++) {
            const qn__encoding *e = affine_at(w, types[t]);
            const uint8_t *blocks = affine_part(&g, w, types[t], from), *b = blocks;
            int n = ROWS * 128 / e->group, codes = e->group * e->bits / 8;
            e->decode(e, blocks, (size_t)n, y);
            for (int i = 0; i < n; i++, b += e->block_bytes)
                for (int j = 0; j < e->group; j++) {
                    float product =
                        scale_at(b + codes, e->scale, 0) * (float)code_at(b, e->bits, j);
                    float sum = product + scale_at(b + codes, e->scale, 1);
                    assert_same_values(&y[i * e->group + j], &sum, 1, e->name);
                }
            if (t == 0 && w % 3 == 0) {
                memcpy(mlx, values.data + (size_t)w / 3 * ROWS * 128 * 4, ROWS * 128 * 4);
                assert_same_values(y, mlx, ROWS * 128, e->name);
            }
        }
        free(g.data);
    }
    free(values.data), free(from), free(y), free(mlx);
}

/* Scale times code minus zero, which is exact where the scale has 16 bits, of the codes that the
 * encoder chose: within half a step of the values, and zero for zero. */
static void test_zeroed(void **state)
{
    (void)state;
    float x[512], y[512];
    uint8_t blocks[512 * 9];
    uint64_t seed = 3;
    for (int j = 0; j < 512; j++)
        x[j] = j % 7 ? (float)test_random(&seed) * (j < 256 ? 1 : 0.01f) + (j < 128) : 0;
    for (int i = QN__ZEROED2_G32_F32; i < QN__ENCODING_COUNT; i++) {
        const qn__encoding *e = &qn__encodings[i];
        int codes = e->group * e->bits / 8;
        assert_true(e->zeroed);
        e->encode(e, x, NULL, (size_t)(512 / e->group), blocks);
        e->decode(e, blocks, (size_t)(512 / e->group), y);
        for (int j = 0; j < 512; j++) {
            const uint8_t *b = blocks + j / e->group * e->block_bytes;
            double scale = scale_at(b + codes, e->scale, 0),
                   zero = scale_at(b + codes, e->scale, 1),
                   value = scale * (code_at(b, e->bits, j % e->group) - zero);
            assert_true(zero == floor(zero) && zero >= 0 && zero < 1 << e->bits);
            if (fabs(y[j] - value) > (e->scale == QN__F32 ? 3e-7 : 0))
                fail_msg("%s: value %d is %a, not %a", e->name, j, y[j], value);
            assert_true(x[j] != 0 || y[j] == 0);
            assert_true(fabs(y[j] - x[j]) <= (e->scale == QN__BF16 ? 1.6 : 1.1) * scale);
        }
    }
}

/* What gguf's numpy makes of the same rows. */
static void test_encode(void **state)
{
    (void)state;
    static const int ids[] = {QN__Q4_0, QN__Q4_1,  QN__Q5_0, QN__Q5_1,
                              QN__Q8_0, QN__TQ1_0, QN__TQ2_0};
    golden from = load_golden("weights", ".bin");
    float *values = malloc(from.n);
    memcpy(values, from.data, from.n);
    assert_true(from.n == ROWS * 256 * 4);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const qn__encoding *e = &qn__encodings[ids[i]];
        golden g = load_golden(e->name, ".enc");
        size_t n = (size_t)(ROWS * 256 / e->block_elements);
        assert_true(g.n == n * e->block_bytes);
        uint8_t *y = malloc(g.n + 1);
        e->encode(e, values, NULL, n, y + 1);
        assert_same_blocks(y + 1, g.data, n, e);
        free(y), free(g.data);
    }
    free(values), free(from.data);
}

/* What mx.quantize makes of the same rows in their type. */
static void test_encode_affine(void **state)
{
    (void)state;
    static const char *const names[] = {"affine-f32", "affine-f16", "affine-bf16"};
    static const int types[] = {QN__F32, QN__F16, QN__BF16};
    float *values = malloc(ROWS * 128 * 4);
    uint8_t *y = malloc(ROWS * 128 * 4);
    for (int t = 0; t < 3; t++) {
        golden g = load_golden(names[t], ".bin");
        for (int w = 0; w < WIDTHS; w++) {
            const qn__encoding *e = affine_at(w, types[t]);
            const uint8_t *expected = affine_part(&g, w, types[t], values);
            size_t n = (size_t)(ROWS * 128 / e->group);
            e->encode(e, values, NULL, n, y);
            assert_same_blocks(y, expected, n, e);
        }
        free(g.data);
    }
    free(values), free(y);
}

/* What mx.quantize makes in mode mxfp4, of groups in f32, bf16 and f16; and back from words. */
static void test_mxfp4_of_mlx(void **state)
{
    (void)state;
    static const int groups[] = {280, 280, 220};
    const qn__encoding *e = &qn__encodings[QN__MXFP4];
    const char *source = getenv("QUERN_SOURCE");
    char path[512];
    size_t all = 780 * (128 + 17), differs = 0;
    snprintf(path, sizeof path, "%s/tests/golden/encodings/mxfp4-mlx.bin", source ? source : ".");
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(all + 1), *from = data;
    assert_non_null(f);
    assert_int_equal(fread(data, 1, all + 1, f), all);
    fclose(f);
    for (int type = 0; type < 3; from += (size_t)groups[type++] * 145)
        for (size_t i = 0; i < (size_t)groups[type]; i++) {
            const uint8_t *scales = from + groups[type] * 128, *words = scales + groups[type];
            float values[32];
            uint8_t block[17], again[17], codes[16], scale;
            memcpy(values, from + i * 128, 128);
            (type == 2 ? qn__encode_mxfp4_as_mlx_f16 : qn__encode_mxfp4_as_mlx)(e, values, NULL, 1,
                                                                                block);
            qn__encoding_unzip(e, block, codes, &scale, NULL);
            if (scale != scales[i] || memcmp(codes, words + i * 16, 16) != 0)
                fail_msg("type %d, group %zu of %a: scale %d, not %d", type, i, values[0], scale,
                         scales[i]);
            qn__encoding_zip(e, 1, codes, &scale, NULL, again);
            assert_memory_equal(again, block, 17);
            e->encode(e, values, NULL, 1, again);
            differs += memcmp(again, block, 17) != 0;
        }
    assert_true(differs > 200); /* GGUF's rule is another */
    free(data);
}

static const int searched[] = {QN__Q2_K, QN__Q3_K,   QN__Q4_K,   QN__Q5_K,
                               QN__Q6_K, QN__IQ4_NL, QN__IQ4_XS, QN__MXFP4};

enum { SEARCHED = sizeof searched / sizeof *searched };

/* Sum of w * (y - x)^2 over n values of blocks. */
static double error_of(const qn__encoding *e, const uint8_t *blocks, const float *x, const float *w,
                       size_t n)
{
    float *y = malloc(n * 4);
    double sum = 0;
    e->decode(e, blocks, n / e->block_elements, y);
    for (size_t i = 0; i < n; i++)
        sum += (w ? w[i] : 1) * ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
    free(y);
    return sum;
}

/* No row is farther from its values than llama.cpp's reference encoder leaves it. */
static void test_search(void **state)
{
    (void)state;
    golden from = load_golden("weights", ".bin");
    float *values = malloc(from.n);
    memcpy(values, from.data, from.n);
    for (size_t i = 0; i < SEARCHED; i++) {
        const qn__encoding *e = &qn__encodings[searched[i]];
        golden g = load_golden(e->name, ".enc");
        size_t n = (size_t)(256 / e->block_elements), bytes = n * e->block_bytes;
        assert_true(g.n == ROWS * bytes);
        uint8_t *y = malloc(bytes);
        for (int row = 0; row < ROWS; row++) {
            const float *x = values + 256 * row;
            e->encode(e, x, NULL, n, y);
            double ours = error_of(e, y, x, NULL, 256);
            double theirs = error_of(e, g.data + (size_t)row * bytes, x, NULL, 256);
            for (int j = 0; j < 256; j++) /* where little is left, f16 scales decide */
                theirs += 2e-7 * x[j] * x[j];
            if (!(ours <= theirs))
                fail_msg("%s: row %d: error %g, llama.cpp's %g", e->name, row, ours, theirs);
        }
        free(y), free(g.data);
    }
    free(values), free(from.data);
}

static uint64_t test_state;

static float next_normal(void)
{
    double sum = 0;
    for (int k = 0; k < 6; k++)
        sum += test_random(&test_state);
    return (float)sum * 0.014f;
}

/* Of 16 blocks of 256: where errors have weights, the weighted error goes down. */
static void test_importance(void **state)
{
    (void)state;
    static const int ids[] = {QN__Q4_0, QN__Q4_1, QN__Q5_0, QN__Q5_1,   QN__Q2_K,   QN__Q3_K,
                              QN__Q4_K, QN__Q5_K, QN__Q6_K, QN__IQ4_NL, QN__IQ4_XS, QN__MXFP4};
    enum { N = 16 * 256 };
    float *x = malloc(N * 4), *w = malloc(N * 4);
    uint8_t *y = malloc(N * 4);
    test_state = 1;
    for (int i = 0; i < N; i++) {
        x[i] = next_normal();
        w[i] = expf(100 * next_normal());
    }
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const qn__encoding *e = &qn__encodings[ids[i]];
        e->encode(e, x, NULL, N / e->block_elements, y);
        double without = error_of(e, y, x, w, N);
        e->encode(e, x, w, N / e->block_elements, y);
        double limit =
            ids[i] == QN__MXFP4 ? 1.0 : 0.85; /* mxfp4 has but two scales to choose from */
        if (!(error_of(e, y, x, w, N) < limit * without))
            fail_msg("%s: %g with importance, %g without", e->name, error_of(e, y, x, w, N),
                     without);
        for (int k = 0; k < N; k++) /* the same weight for all is none */
            w[k] *= 0x1p-60f;
        uint8_t *scaled = malloc(N * 4);
        e->encode(e, x, w, N / e->block_elements, scaled);
        assert_memory_equal(y, scaled, (size_t)(N / e->block_elements) * e->block_bytes);
        for (int k = 0; k < N; k++)
            w[k] *= 0x1p60f;
        free(scaled);
    }
    free(x), free(w), free(y);
}

/* A file is the same bytes on every machine and from every compiler. Who changes the search on
 * purpose writes down the new number. */
static void test_same_bytes(void **state)
{
    (void)state;
    golden from = load_golden("weights", ".bin");
    float *values = malloc(from.n), *w = malloc(from.n);
    uint8_t *y = malloc(from.n);
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    memcpy(values, from.data, from.n);
    for (size_t i = 0; i < ROWS * 256; i++)
        w[i] = (float)(1 + i % 37);
    for (int i = QN__Q4_0; i <= QN__MXFP4; i++)
        for (int weighted = 0; weighted < 2; weighted++) {
            const qn__encoding *e = &qn__encodings[i];
            size_t n = ROWS * 256 / e->block_elements;
            e->encode(e, values, weighted ? w : NULL, n, y);
            for (size_t k = 0; k < n * e->block_bytes; k++)
                hash = (hash ^ y[k]) * 1099511628211u;
        }
    if (hash != UINT64_C(0x6c2d3dc806399d87))
        fail_msg("the bytes have changed: 0x%016llx", (unsigned long long)hash);
    free(values), free(w), free(y), free(from.data);
}

/* What is no weight of any model: still blocks of finite values, and never undefined behaviour.
 * Affine groups with the range of f32 have no room for the rounding of a scale near its end. */
static void test_hostile_values(void **state)
{
    (void)state;
    static const float odd[] = {0,        -0.0f, FLT_MAX, -FLT_MAX, FLT_MIN, 1e-45f,
                                -1e-45f,  65504, -65520,  1e9f,     -1e9f,   1e-8f,
                                6e-8f,    1,     -1,      1e30f,    2e-38f,  -3e-39f,
                                0x1p127f, 7e4f,  4e6f,    -3e7f,    1e-30f,  0.5f};
    enum { N = 1024, ODD = sizeof odd / sizeof *odd };
    float x[N], w[N], y[N];
    uint8_t blocks[N * 4];
    test_state = 5;
    for (int round = 0; round < 200; round++) {
        float most = 0;
        for (int j = 0; j < N; j++) { /* one kind throughout, one among weights, or any */
            double r = test_random(&test_state);
            int any = (int)((r + 1) * ODD / 2);
            x[j] = round < ODD       ? odd[round]
                   : round < 2 * ODD ? j % 41 ? next_normal() : odd[round - ODD]
                   : round < 3 * ODD ? j % 5 ? odd[round - 2 * ODD] : odd[any]
                                     : odd[any];
            most = fabsf(x[j]) > most ? fabsf(x[j]) : most;
            w[j] = round % 3 == 0 ? fabsf(odd[any]) : (float)fabs(r);
        }
        for (int i = 0; i < QN__ENCODING_COUNT; i++) {
            const qn__encoding *e = &qn__encodings[i];
            e->encode(e, x, round % 2 ? w : NULL, N / e->block_elements, blocks);
            e->decode(e, blocks, N / e->block_elements, y);
            if (i == QN__F16 || i == QN__BF16) /* these round to infinity, as everywhere */
                continue;
            if (e->bits && e->scale != QN__F16 && most > 0x1p120f)
                continue;
            for (int j = 0; j < N; j++)
                if (!isfinite(y[j]) || (round == 0 && y[j] != 0))
                    fail_msg("%s: round %d: %g became %g", e->name, round, x[j], y[j]);
        }
    }
}

/* Any bytes are blocks: scales that are NaN or infinite, too. */
static void test_hostile_blocks(void **state)
{
    (void)state;
    float values[8 * 256 + 1];
    test_state = 7;
    for (int round = 0; round < 200; round++)
        for (int i = 0; i < QN__ENCODING_COUNT; i++) {
            const qn__encoding *e = &qn__encodings[i];
            size_t bytes = 8u * e->block_bytes, count = 8u * e->block_elements;
            uint8_t *blocks = malloc(bytes); /* a sanitizer sees a byte too many */
            for (size_t j = 0; j < bytes; j++)
                blocks[j] =
                    (uint8_t)(round % 4 == 0 ? 0xff : (int)(test_random(&test_state) * 4096));
            values[count] = 42;
            e->decode(e, blocks, 8, values);
            assert_true(values[count] == 42);
            e->decode(e, blocks, 0, NULL);
            free(blocks);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),          cmocka_unit_test(test_decode),
        cmocka_unit_test(test_decode_affine),  cmocka_unit_test(test_zeroed),
        cmocka_unit_test(test_mxfp4_of_mlx),   cmocka_unit_test(test_encode),
        cmocka_unit_test(test_encode_affine),  cmocka_unit_test(test_search),
        cmocka_unit_test(test_importance),     cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_hostile_values), cmocka_unit_test(test_hostile_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
