/* SPDX-License-Identifier: Apache-2.0
 *
 * Products, linear layers on weights that are plain, networks of them.
 */
#include "cases.h"

#include "core/device.h"

/* What weights are, of layers that round x to that. */
static qn_dtype half = QN_BF16;

/* A CPU's products of a weight in f16 are of x as it is, unless it is told. */
static qn_products products_in(const qn_scope *s, qn_products products)
{
    const bool told = half != QN_F16 || (s->device->ops->halves && products != QN_PRODUCTS_F16);
    return told ? products : QN_PRODUCTS_F16;
}

static qn_array *op_matmul(qn_scope *s)
{
    return qn_matmul(s, f32(s, SHAPE(2, 1, 17, 33)), f32(s, SHAPE(5, 33, 9)));
}
static qn_array *op_matmul_views(qn_scope *s)
{
    return qn_matmul(s, qn_swap_axes(s, f32(s, SHAPE(3, 40, 6)), 1, 2),
                     qn_swap_axes(s, f32(s, SHAPE(3, 7, 40)), 1, 2));
}
static qn_array *op_matmul_f64(qn_scope *s)
{
    return qn_matmul(s, noise(s, QN_F64, 1, SHAPE(5, 8)), noise(s, QN_F64, 1, SHAPE(8, 3)));
}
static qn_array *op_matmul_empty(qn_scope *s)
{
    return qn_matmul(s, f32(s, SHAPE(5, 0)), f32(s, SHAPE(0, 3)));
}

/* Tiles of each size and their edges, either operand along memory or across it; few rows or
 * columns, which have a kernel of their own; a batch that shares an operand. */
static qn_array *product(qn_scope *s, int64_t m, int64_t n, int64_t k, bool a_across, bool b_along)
{
    qn_array *a = a_across ? qn_swap_axes(s, f32(s, SHAPE(k, m)), 0, 1) : f32(s, SHAPE(m, k)),
             *b = b_along ? qn_swap_axes(s, f32(s, SHAPE(n, k)), 0, 1) : f32(s, SHAPE(k, n));
    return qn_reshape(s, qn_matmul(s, a, b), SHAPE(m * n));
}
static qn_array *op_matmul_tiles(qn_scope *s)
{
    static const int64_t shapes[][3] = {{2000, 1700, 40}, {500, 388, 200}, {130, 257, 1000},
                                        {40, 50, 301},    {9, 1000, 130},  {129, 9, 4}};
    qn_array *all[24];
    for (int i = 0; i < 24; i++)
        all[i] = product(s, shapes[i / 4][0], shapes[i / 4][1], shapes[i / 4][2], i & 1, i & 2);
    return qn_concatenate(s, all, 24, 0);
}
static qn_array *op_matmul_few(qn_scope *s)
{
    static const int64_t shapes[][3] = {{1, 1000, 520}, {1000, 1, 520}, {8, 129, 4100},
                                        {77, 3, 1030},  {1, 40, 7},     {5, 5, 333}};
    qn_array *all[24];
    for (int i = 0; i < 24; i++)
        all[i] = product(s, shapes[i / 4][0], shapes[i / 4][1], shapes[i / 4][2], i & 1, i & 2);
    return qn_concatenate(s, all, 24, 0);
}
static qn_array *op_matmul_heads(qn_scope *s)
{
    qn_array *q = qn_swap_axes(s, f32(s, SHAPE(2, 70, 6, 64)), 1, 2), /* [B, H, L, D] */
        *k = qn_swap_axes(s, f32(s, SHAPE(1, 90, 6, 64)), 1, 2), *one = qn_slice(s, q, 2, 3, 4, 1);
    k = qn_swap_axes(s, k, 2, 3);
    qn_array *all[] = {qn_matmul(s, q, k), qn_matmul(s, one, k)};
    return qn_concatenate(s, all, 2, 2);
}
static qn_array *op_matmul_odd(qn_scope *s) /* rows that are no vectors, and neighbours nowhere */
{
    qn_array *a = qn_slice(s, f32(s, SHAPE(70, 402)), 1, 1, 402, 2),
             *b = qn_slice(s, f32(s, SHAPE(201, 67)), 1, 1, 67, 1);
    qn_array *all[] = {qn_matmul(s, a, b), qn_matmul(s, qn_slice(s, a, 0, 1, 4, 1), b)};
    return qn_concatenate(s, all, 2, 0);
}
static qn_array *op_matmul_large_f64(qn_scope *s)
{
    qn_array *a = noise(s, QN_F64, 1, SHAPE(150, 300)), *b = noise(s, QN_F64, 1, SHAPE(300, 130));
    qn_array *all[] = {qn_matmul(s, a, b), qn_matmul(s, qn_slice(s, a, 0, 1, 2, 1), b),
                       qn_matmul(s, qn_slice(s, a, 0, 0, 20, 1), b)};
    return qn_concatenate(s, all, 3, 0);
}

static qn_array *op_linear(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(2, 3, 45)), f32(s, SHAPE(37, 45)), f32(s, SHAPE(37)));
}
static qn_array *op_linear_bf16(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(4, 129)), noise(s, QN_BF16, 1, SHAPE(65, 129)), NULL);
}
/* Three weights with the same x, in rows that stream; so many rows of it, and of the first. */
static qn_array *streamed(qn_scope *s, int64_t rows, int64_t first, int64_t columns)
{
    qn_array *x = f32(s, SHAPE(rows, columns)), *part[4];
    const int64_t n[] = {first, 16, 131, 8};
    for (int i = 0; i < 4; i++)
        part[i] = qn_linear_with(s, x, noise(s, half, 1, SHAPE(n[i], columns)), NULL,
                                 products_in(s, QN_PRODUCTS_AUTO));
    return qn_concatenate(s, part, 4, 1);
}
static qn_array *layer(qn_scope *s, int64_t rows, int64_t n, int64_t columns)
{
    return qn_linear_with(s, f32(s, SHAPE(rows, columns)), noise(s, half, 1, SHAPE(n, columns)),
                          NULL, products_in(s, QN_PRODUCTS_AUTO));
}
static qn_array *op_linear_1(qn_scope *s)
{
    return streamed(s, 1, 40, 2048);
}
static qn_array *op_linear_5(qn_scope *s)
{
    return streamed(s, 5, 40, 264);
}
static qn_array *op_linear_13(qn_scope *s)
{
    return streamed(s, 13, 40, 4504);
}
static qn_array *op_linear_29(qn_scope *s)
{
    return streamed(s, 29, 40, 4504);
}
/* A block has two tiles of the first weight, and one of the others. */
static qn_array *op_linear_29_uneven(qn_scope *s)
{
    return streamed(s, 29, 2100, 576);
}
static qn_array *op_linear_61(qn_scope *s)
{
    return streamed(s, 61, 40, 2312);
}
static qn_array *op_linear_200(qn_scope *s)
{
    return streamed(s, 200, 40, 584);
}
/* So many rows that each of an H200's 132 processors has three tiles of 16, and nine or more in
 * turns; columns that come in whole pieces. */
static qn_array *op_linear_tall(qn_scope *s)
{
    return layer(s, 12, 6330, 512);
}
static qn_array *op_linear_tall_40(qn_scope *s)
{
    return layer(s, 40, 6330, 512);
}
static qn_array *op_linear_taller(qn_scope *s)
{
    return layer(s, 30, 35900, 320);
}
/* One row and weights that are long both ways, or large: they stream with x as a whole beside them.
 * Three at once; in turns, with columns that are no whole span; a network. */
static qn_array *op_linear_long_1(qn_scope *s)
{
    return streamed(s, 1, 4112, 4160);
}
static qn_array *op_linear_large_1(qn_scope *s)
{
    return layer(s, 1, 35900, 960);
}
/* As a model's layers: many rows are summed otherwise than few. Rows of a weight that tiles of 256,
 * 192 or 128 suit best (op_wide.c), rows of x that come in pairs of tiles or do not, three weights,
 * rows that are no vectors. */
static qn_array *by_rows(qn_scope *s, int64_t rows, int64_t n, int64_t columns)
{
    return qn_linear_with(s, f32(s, SHAPE(rows, columns)), noise(s, half, 1, SHAPE(n, columns)),
                          NULL, products_in(s, QN_PRODUCTS_BY_ROWS));
}
static qn_array *op_by_rows_256(qn_scope *s)
{
    return by_rows(s, 500, 16004, 136);
}
static qn_array *op_by_rows_256_odd(qn_scope *s)
{
    return by_rows(s, 300, 11000, 72);
}
static qn_array *op_by_rows_192(qn_scope *s)
{
    return by_rows(s, 400, 12000, 136);
}
static qn_array *op_by_rows_192_odd(qn_scope *s)
{
    return by_rows(s, 270, 25000, 72);
}
static qn_array *op_by_rows_128(qn_scope *s)
{
    return by_rows(s, 400, 1000, 4504);
}
static qn_array *op_by_rows_128_odd(qn_scope *s)
{
    return by_rows(s, 300, 515, 584);
}
static qn_array *op_by_rows_tall(qn_scope *s) /* three tiles for each of 132 processors */
{
    return by_rows(s, 500, 33000, 72);
}
/* Up to 256 rows, columns split between blocks (split.cu). */
static qn_array *op_by_rows_split_64(qn_scope *s)
{
    return by_rows(s, 65, 515, 584);
}
static qn_array *op_by_rows_split_96(qn_scope *s) /* a turn more than clusters */
{
    return by_rows(s, 100, 8450, 520);
}
static qn_array *op_by_rows_split_96_whole(qn_scope *s)
{
    return by_rows(s, 128, 6144, 1096);
}
static qn_array *op_by_rows_split_128(qn_scope *s)
{
    return by_rows(s, 127, 8448, 264);
}
static qn_array *op_by_rows_split_224(qn_scope *s)
{
    return by_rows(s, 70, 25000, 72);
}
static qn_array *op_by_rows_split_pair_128(qn_scope *s)
{
    return by_rows(s, 200, 6144, 1096);
}
static qn_array *op_by_rows_split_pair_192(qn_scope *s)
{
    return by_rows(s, 129, 5000, 1160);
}
static qn_array *op_by_rows_split_pair_192_tall(qn_scope *s) /* six tiles for each cluster */
{
    return by_rows(s, 255, 33000, 72);
}
static qn_array *op_by_rows_split_pair_224(qn_scope *s)
{
    return by_rows(s, 256, 14000, 584);
}
static qn_array *op_by_rows_joined(qn_scope *s)
{
    qn_array *x = f32(s, SHAPE(150, 584)), *part[4];
    const int64_t n[] = {400, 16, 131, 8};
    for (int i = 0; i < 4; i++)
        part[i] = qn_linear_with(s, x, noise(s, half, 1, SHAPE(n[i], 584)), NULL,
                                 products_in(s, QN_PRODUCTS_BY_ROWS));
    return qn_concatenate(s, part, 4, 1);
}
static qn_array *op_linear_f16(qn_scope *s)
{
    return qn_linear_with(s, f32(s, SHAPE(129)), noise(s, QN_F16, 1, SHAPE(65, 129)), NULL,
                          QN_PRODUCTS_F16);
}
/* What is too large for f16, or nearly, or too small: in rows that stream, few and many, and not.
 */
static qn_array *op_linear_f16_far(qn_scope *s)
{
    static const int64_t shapes[][2] = {{1, 2048}, {1, 264}, {12, 264}, {100, 264}, {5, 129}};
    qn_array *all[10];
    for (int i = 0; i < 10; i++) {
        const int64_t rows = shapes[i / 2][0], k = shapes[i / 2][1];
        qn_array *x = noise(s, QN_F32, i % 2 ? 1e5 : 1e-6, SHAPE(rows, k));
        qn_array *y =
            qn_linear_with(s, x, noise(s, QN_F16, 1, SHAPE(40, k)), NULL, QN_PRODUCTS_F16);
        y = qn_multiply(s, y, qn_scalar(s, QN_F32, i % 2 ? 1e-5 : 1e6));
        all[i] = qn_reshape(s, y, SHAPE(rows * 40));
    }
    return qn_concatenate(s, all, 10, 0);
}
/* Weights of both types with the same x: their launches do not join, and x is rounded twice. */
static qn_array *op_linear_mixed(qn_scope *s)
{
    static const int64_t rows[] = {1, 12, 40, 100, 300};
    qn_array *all[5];
    for (int i = 0; i < 5; i++) {
        qn_array *x = qn_rms_norm(s, f32(s, SHAPE(rows[i], 576)), NULL, 1e-5f), *part[4];
        for (int k = 0; k < 4; k++)
            part[k] = qn_linear_with(s, x, noise(s, k & 1 ? QN_F16 : QN_BF16, 1, SHAPE(40, 576)),
                                     NULL, k & 1 ? QN_PRODUCTS_F16 : QN_PRODUCTS_BF16);
        all[i] = qn_concatenate(s, part, 4, 1);
    }
    return qn_concatenate(s, all, 5, 0);
}
/* So many rows of x by weights in f16 and f32, whose rows are vectors or not; and of gradients. */
static qn_array *plain_layers(qn_scope *s, int64_t rows)
{
    static const qn_dtype types[] = {QN_F16, QN_F32, QN_F16, QN_F32};
    qn_array *all[8];
    for (int i = 0; i < 4; i++) {
        const int64_t k = i < 2 ? 520 : 301;
        qn_array *x = f32(s, SHAPE(rows, k)), *w = noise(s, types[i], 1, SHAPE(136, k)),
                 *in[] = {f32(s, SHAPE(rows, 136)), w};
        qn__linear_params p = {QN_PRODUCTS_F32};
        all[2 * i] = qn_linear_with(s, x, w, NULL, QN_PRODUCTS_F32);
        all[2 * i + 1] = qn__record(s, QN__OP_LINEAR_BACK, QN_F32, SHAPE(rows, k), 2, in, &p);
    }
    return qn_concatenate(s, all, 8, 1);
}
static qn_array *op_linear_plain_1(qn_scope *s)
{
    return plain_layers(s, 1);
}
static qn_array *op_linear_plain_6(qn_scope *s)
{
    return plain_layers(s, 6);
}
static qn_array *op_linear_plain_50(qn_scope *s)
{
    return plain_layers(s, 50);
}
static qn_array *op_linear_plain_300(qn_scope *s)
{
    return plain_layers(s, 300);
}
static qn_array *op_linear_view(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(4, 31)), qn_transpose(s, f32(s, SHAPE(31, 12)), NULL), NULL);
}
static qn_array *op_linear_f64(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(4, 31)), noise(s, QN_F64, 1, SHAPE(12, 31)), NULL);
}

/* Quantised matrices as plain arrays: of few rows of x and of many, of each width and type of
 * scales; rows and columns that are no whole tiles. Sums are in another order. */
static qn_array *quantized(qn_scope *s, int bits, int group, qn_dtype type, int64_t rows)
{
    qn_quantization q = {bits, group};
    qn_array *part[3], *w = noise(s, type, 1, SHAPE(300, 1536 + 128));
    qn_quantize(s, w, &q, &part[0], &part[1], &part[2]);
    for (int i = 0; i < 3; i++)
        part[i] = qn_slice(s, part[i], 0, 3, 280, 1);
    return qn_quantized_matmul(s, f32(s, SHAPE(rows, 1536 + 128)), part[0], part[1], part[2], true,
                               &q);
}
static qn_array *quantized_widths(qn_scope *s, int64_t rows)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128, 64, 32, 128};
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    qn_array *all[6];
    for (int i = 0; i < 6; i++)
        all[i] = quantized(s, bits[i], groups[i], types[i % 3], rows);
    for (int i = 0; i < 6; i++)
        all[i] = qn_cast(s, all[i], QN_F32);
    return qn_concatenate(s, all, 6, 1);
}
static qn_array *op_quantized_1(qn_scope *s)
{
    return quantized_widths(s, 1);
}
static qn_array *op_quantized_40(qn_scope *s)
{
    return quantized_widths(s, 40);
}
static qn_array *op_quantized_75(qn_scope *s)
{
    return quantized_widths(s, 75);
}
/* Experts by index, one of which there is not; as many matrices as of x; and a gradient. */
static qn_array *op_quantized_experts(qn_scope *s)
{
    qn_quantization q = {4, 64};
    qn_array *words, *scales, *biases, *x = f32(s, SHAPE(6, 3, 192)), *grad = NULL;
    qn_quantize(s, noise(s, QN_F32, 1, SHAPE(4, 50, 192)), &q, &words, &scales, &biases);
    qn_array *chosen = qn_from_i32(s, (const int32_t[]){3, 0, 0, 7, 2, 1}, 6);
    qn_array *y = qn_gather_qmm(s, x, words, scales, biases, NULL, chosen, true, &q);
    qn_array *each =
        qn_quantized_matmul(s, qn_slice(s, x, 0, 0, 4, 1), words, scales, biases, true, &q);
    qn_vjp(s, y, f32(s, SHAPE(6, 3, 50)), &x, 1, &grad);
    qn_array *all[] = {qn_reshape(s, y, SHAPE(6 * 3 * 50)), qn_reshape(s, each, SHAPE(4 * 3 * 50)),
                       qn_reshape(s, grad, SHAPE(6 * 3 * 192))};
    return qn_concatenate(s, all, 3, 0);
}

/* A packed weight: read by linear and take. */
static qn_array *packed(qn_scope *s, qn_dtype type)
{
    qn_array *w = qn_pack(s, noise(s, type, 1, SHAPE(48, 70)));
    if (!w)
        return qn__poison(s);
    qn_array *y = qn_linear_with(s, f32(s, SHAPE(3, 70)), w, NULL,
                                 type == QN_F16 ? QN_PRODUCTS_F16 : QN_PRODUCTS_AUTO);
    qn_array *rows = qn_cast(s, qn_take(s, w, indices(s, 48, false, SHAPE(4)), 0), QN_F32);
    y = qn_matmul(s, y, qn_slice(s, qn_matmul(s, f32(s, SHAPE(48, 4)), rows), 1, 0, 9, 1));
    qn_release(w);
    return y;
}
static qn_array *op_packed(qn_scope *s)
{
    return packed(s, QN_F32);
}
static qn_array *op_packed_bf16(qn_scope *s)
{
    return packed(s, QN_BF16);
}
static qn_array *op_packed_f16(qn_scope *s)
{
    return packed(s, QN_F16);
}

/* The operation of a linear layer's gradient, recorded itself: the result of g w. */
static qn_array *linear_back(qn_scope *s, qn_dtype type)
{
    qn_array *in[] = {f32(s, SHAPE(5, 23)), noise(s, type, 1, SHAPE(23, 40))};
    qn__linear_params p = {type == QN_BF16 ? QN_PRODUCTS_BF16 : QN_PRODUCTS_F32};
    return qn__record(s, QN__OP_LINEAR_BACK, QN_F32, SHAPE(5, 40), 2, in, &p);
}
static qn_array *op_linear_back(qn_scope *s)
{
    return linear_back(s, QN_F32);
}
static qn_array *op_linear_back_bf16(qn_scope *s)
{
    return linear_back(s, QN_BF16);
}
static qn_array *op_linear_gradient(qn_scope *s)
{
    qn_array *x = f32(s, SHAPE(5, 40)), *w = f32(s, SHAPE(23, 40)), *grad[] = {NULL, NULL};
    qn_vjp(s, qn_linear(s, x, w, NULL), f32(s, SHAPE(5, 23)), (qn_array *[]){x, w}, 2, grad);
    return qn_concatenate(s, grad, 2, 0);
}

/* A feed-forward network with what stands around it: its launches do parts of each other. */
static qn_array *network_of(qn_scope *s, int64_t rows, int64_t wide, int64_t inner,
                            qn_products products, bool gelu)
{
    qn_array *h = f32(s, SHAPE(rows, wide)), *gate = noise(s, half, 1, SHAPE(inner, wide)),
             *up = noise(s, half, 1, SHAPE(inner, wide)),
             *down = noise(s, half, 1, SHAPE(wide, inner));
    products = products_in(s, products);
    qn_array *x = qn_rms_norm(s, h, f32(s, SHAPE(wide)), 1e-5f),
             *g = qn_linear_with(s, x, gate, NULL, products);
    g = gelu ? qn_gelu_tanh(s, g) : qn_silu(s, g);
    g = qn_multiply(s, g, qn_linear_with(s, x, up, NULL, products));
    return qn_add(s, h, qn_linear_with(s, g, down, NULL, products));
}
static qn_array *network(qn_scope *s, int64_t rows, int64_t wide, int64_t inner)
{
    return network_of(s, rows, wide, inner, QN_PRODUCTS_AUTO, false);
}
static qn_array *op_network_by_rows(qn_scope *s)
{
    return network_of(s, 300, 96, 232, QN_PRODUCTS_BY_ROWS, false);
}
static qn_array *op_network_by_rows_tall(qn_scope *s)
{
    return network_of(s, 512, 1024, 9000, QN_PRODUCTS_BY_ROWS, false);
}
static qn_array *op_network_by_rows_split(qn_scope *s)
{
    return network_of(s, 128, 1024, 8200, QN_PRODUCTS_BY_ROWS, false);
}
static qn_array *op_network_by_rows_split_odd(qn_scope *s)
{
    return network_of(s, 71, 96, 232, QN_PRODUCTS_BY_ROWS, true);
}
static qn_array *op_network_by_rows_split_224(qn_scope *s)
{
    return network_of(s, 128, 136, 14336, QN_PRODUCTS_BY_ROWS, false);
}
static qn_array *op_network_by_rows_split_pair(qn_scope *s)
{
    return network_of(s, 250, 1024, 9000, QN_PRODUCTS_BY_ROWS, false);
}
static qn_array *op_network_by_rows_split_pair_224(qn_scope *s)
{
    return network_of(s, 256, 136, 14336, QN_PRODUCTS_BY_ROWS, false);
}
static qn_array *op_network_by_rows_gelu(qn_scope *s)
{
    return network_of(s, 300, 96, 232, QN_PRODUCTS_BY_ROWS, true);
}
static qn_array *op_network_gelu_1(qn_scope *s)
{
    return network_of(s, 1, 96, 232, QN_PRODUCTS_AUTO, true);
}
static qn_array *op_network_gelu_40(qn_scope *s)
{
    return network_of(s, 40, 96, 232, QN_PRODUCTS_AUTO, true);
}
static qn_array *op_network_1(qn_scope *s)
{
    return network(s, 1, 96, 232);
}
static qn_array *op_network_long_1(qn_scope *s)
{
    return network(s, 1, 4160, 9024);
}
static qn_array *op_network_40(qn_scope *s)
{
    return network(s, 40, 96, 232);
}
static qn_array *op_network_300(qn_scope *s)
{
    return network(s, 300, 96, 232);
}
static qn_array *op_network_tall(qn_scope *s) /* seven pairs of tiles for each of 132 processors */
{
    return network(s, 20, 128, 14720);
}

/* Layers with a norm before and a norm behind each, whose sum the next norm takes. */
static qn_array *sandwich(qn_scope *s, int64_t rows)
{
    enum { WIDE = 1152 };
    qn_array *h = f32(s, SHAPE(rows, WIDE));
    for (int i = 0; i < 3; i++) {
        qn_array *x = qn_rms_norm(s, h, f32(s, SHAPE(WIDE)), 1e-6f);
        x = qn_linear_with(s, x, noise(s, half, 1, SHAPE(WIDE, WIDE)), NULL,
                           products_in(s, QN_PRODUCTS_AUTO));
        h = qn_add(s, h, qn_rms_norm(s, x, f32(s, SHAPE(WIDE)), 1e-5f));
    }
    return h;
}
static qn_array *op_sandwich_1(qn_scope *s)
{
    return sandwich(s, 1);
}
static qn_array *op_sandwich_70(qn_scope *s)
{
    return sandwich(s, 70);
}

/* Columns at which a pair's sums leave room for fewer warps than one layer's, and which the copy
 * engine does not take: of an H100 with more than 32 rows, of a GPU with 99 KiB a block. */
static qn_array *op_network_narrow(qn_scope *s)
{
    return network(s, 40, 10472, 72);
}
static qn_array *op_network_2304(qn_scope *s)
{
    return network(s, 40, 2304, 200);
}

/* Layers whose weights are bf16, and the same of f16. */
static void compare_halves(qn_device *cpu, qn_device *cuda)
{
    static const op_case cases[] = {
        CLOSE(linear_1),
        CLOSE(linear_5),
        CLOSE(linear_13),
        CLOSE(linear_29),
        CLOSE(linear_29_uneven),
        CLOSE(linear_61),
        CLOSE(linear_200),
        CLOSE(linear_tall),
        CLOSE(linear_tall_40),
        CLOSE(linear_taller),
        CLOSE(linear_long_1),
        CLOSE(linear_large_1),
        ROUNDED(network_1),
        ROUNDED(network_long_1),
        ROUNDED(network_40),
        ROUNDED(network_300),
        ROUNDED(network_tall),
        ROUNDED(sandwich_1),
        ROUNDED(sandwich_70),
        ROUNDED(network_narrow),
        ROUNDED(network_2304),
        SUMMED(by_rows_256),
        SUMMED(by_rows_256_odd),
        SUMMED(by_rows_192),
        SUMMED(by_rows_192_odd),
        SUMMED(by_rows_128),
        SUMMED(by_rows_128_odd),
        SUMMED(by_rows_tall),
        SUMMED(by_rows_split_64),
        SUMMED(by_rows_split_96),
        SUMMED(by_rows_split_96_whole),
        SUMMED(by_rows_split_128),
        SUMMED(by_rows_split_224),
        SUMMED(by_rows_split_pair_128),
        SUMMED(by_rows_split_pair_192),
        SUMMED(by_rows_split_pair_192_tall),
        SUMMED(by_rows_split_pair_224),
        SUMMED(by_rows_joined),
        ROUNDED(network_by_rows),
        ROUNDED(network_by_rows_tall),
        ROUNDED(network_by_rows_split),
        ROUNDED(network_by_rows_split_odd),
        ROUNDED(network_by_rows_split_224),
        ROUNDED(network_by_rows_split_pair),
        ROUNDED(network_by_rows_split_pair_224),
        ROUNDED(network_by_rows_gelu),
        ROUNDED(network_gelu_1),
        ROUNDED(network_gelu_40),
    };
    compare_list(cases, sizeof cases / sizeof *cases, cpu, cuda);
}

void compare_products(qn_device *cpu, qn_device *cuda)
{
    static const op_case cases[] = {
        CLOSE(matmul),           CLOSE(matmul_views),    CLOSE(matmul_f64),
        EXACT(matmul_empty),     CLOSE(matmul_tiles),    CLOSE(matmul_few),
        CLOSE(matmul_heads),     CLOSE(matmul_odd),      CLOSE(matmul_large_f64),
        CLOSE(linear),           CLOSE(linear_bf16),     CLOSE(linear_f16),
        CLOSE(linear_f16_far),   CLOSE(linear_mixed),    CLOSE(linear_plain_1),
        CLOSE(linear_plain_6),   CLOSE(linear_plain_50), CLOSE(linear_plain_300),
        CLOSE(linear_view),      CLOSE(linear_f64),      CLOSE(linear_back),
        CLOSE(linear_back_bf16), CLOSE(linear_gradient), CLOSE(packed),
        CLOSE(packed_bf16),      CLOSE(packed_f16),      CLOSE(quantized_1),
        CLOSE(quantized_40),     CLOSE(quantized_75),    CLOSE(quantized_experts),
    };
    compare_list(cases, sizeof cases / sizeof *cases, cpu, cuda);
    for (int i = 0; i < 2; i++) {
        half = i ? QN_F16 : QN_BF16;
        compare_halves(cpu, cuda);
    }
    half = QN_BF16;
}
