/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodings against gguf's numpy and MLX (golden/make_encodings.py), and against what must hold of
 * each of them.
 */
#include "test.h"

#include "base/half.h"
#include "quant/encoding.h"

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
            assert_int_equal(qn__encoding_affine(e->bits, e->group, e->scale), i);
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
    assert_int_equal(qn__encoding_named("q4_2"), -1);
    assert_int_equal(qn__encoding_of_ggml(-1), -1);
    assert_int_equal(qn__encoding_of_ggml(4), -1);
    assert_int_equal(qn__encoding_of_ggml((int64_t)1 << 32), -1);
    assert_int_equal(qn__encoding_affine(7, 64, QN__F16), -1);
    assert_int_equal(qn__encoding_affine(0, 0, QN__F32), -1);
    assert_int_equal(qn__encoding_affine(4, 64, QN__Q8_0), -1);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_decode),
        cmocka_unit_test(test_decode_affine), cmocka_unit_test(test_encode),
        cmocka_unit_test(test_encode_affine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
