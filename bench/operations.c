/* SPDX-License-Identifier: Apache-2.0
 *
 * Times operations alone, as a user's graph has them, at sizes of models and their training:
 *
 *     bench-operations DEVICE [WORD]
 *
 * prints, of each whose name has the word, microseconds, and what bytes and arithmetic come to in a
 * second. TURNS copies of it are one function, each on arrays of its own, so that neither the
 * host nor a second cache takes part of the figure; the median of REPEATS calls.
 */
#include "quern/quern.h"
#include "timing.h"

#include <stdio.h>
#include <string.h>

enum { TURNS = 4, REPEATS = 5, MOST_IN = 4 };

typedef struct row {
    const char *name;
    qn_array *(*make)(qn_scope *s, const struct row *r, qn_array *const *in);
    int64_t shape[MOST_IN][3]; /* of inputs; 0: no more axes */
    int64_t ids;               /* of an input of indices: below so many; the last one is that */
    double bytes, flops;
    qn_dtype weight; /* of the second input; U8, which is 0: f32 */
    int bits;        /* of codes, of which the second input is words */
} row;

static qn_array *product(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_matmul(s, in[0], in[1]);
}
static qn_array *product_turned(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_matmul(s, in[0], qn_swap_axes(s, in[1], -2, -1));
}
static qn_array *layer(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_linear(s, in[0], in[1], NULL);
}
static qn_array *weight_gradient(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_matmul(s, qn_swap_axes(s, in[0], 0, 1), in[1]);
}
static qn_array *sum_last(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_sum(s, in[0], -1, false);
}
static qn_array *sum_first(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_sum(s, in[0], 0, false);
}
static qn_array *max_last(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_max(s, in[0], -1, false);
}
static qn_array *argmax_last(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_argmax(s, in[0], -1, false);
}
static qn_array *logsumexp_last(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_logsumexp(s, in[0], -1, false);
}
static qn_array *softmax_last(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_softmax(s, in[0], -1);
}
static qn_array *norm_last(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_layer_norm(s, in[0], NULL, NULL, 1e-5f);
}
static qn_array *turned(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_contiguous(s, qn_swap_axes(s, in[0], -2, -1));
}
static qn_array *heads_apart(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_contiguous(s, qn_swap_axes(s, in[0], 0, 1));
}
static qn_array *joined(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_concatenate(s, in, 2, -1);
}
static qn_array *sorted_places(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_argsort(s, in[0], -1, true);
}
static qn_array *running_sum(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_cumsum(s, in[0], -1, false, false);
}
static qn_array *taken(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_take(s, in[0], in[1], 0);
}
static qn_array *scattered(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_scatter_add(s, in[0], in[2], in[1]);
}
static qn_array *activation(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_multiply(s, qn_silu(s, in[0]), in[1]);
}
static qn_array *biased(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return qn_add(s, in[0], in[1]);
}

static qn_array *attended(qn_scope *s, qn_array *const *in, bool causal)
{
    qn_attention_options o = {.size = sizeof o, .causal = causal};
    return qn_attention(s, qn_expand_dims(s, in[0], 0), qn_expand_dims(s, in[1], 0),
                        qn_expand_dims(s, in[2], 0), &o);
}
static qn_array *attention(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return attended(s, in, false);
}
static qn_array *causal_attention(qn_scope *s, const row *r, qn_array *const *in)
{
    (void)r;
    return attended(s, in, true);
}

static qn_array *quantized(qn_scope *s, const row *r, qn_array *const *in)
{
    const qn_quantization q = {r->bits, 64};
    return qn_quantized_matmul(s, in[0], in[1], in[2], in[3], true, &q);
}

#define QUANTIZED(m, n, k, width)                                                                  \
    {{m, k}, {n, (k) / 32 * (width)}, {n, (k) / 64}, {n, (k) / 64}},                               \
        .bits = width, .bytes = 4.0 * (m) * ((n) + (k)) + (n) * ((k) / 8.0 * (width) + (k) / 8.0), \
        .flops = 2.0 * (m) * (n) * (k)
#define ATTENTION(h, l, n, d)                                                                      \
    {{h, l, d}, {h, n, d}, {h, n, d}}, .bytes = 8.0 * (h) * ((l) + (n)) * (d),                     \
                                       .flops = 4.0 * (h) * (l) * (n) * (d)
#define PRODUCT(m, n, k)                                                                           \
    {{m, k}, {k, n}}, .bytes = 4.0 * ((double)(m) * (k) + (double)(k) * (n) + (double)(m) * (n)),  \
                      .flops = 2.0 * (m) * (n) * (k)
#define LAYER(m, n, k, type, size)                                                                 \
    {{m, k}, {n, k}}, .weight = type,                                                              \
                      .bytes = 4.0 * (m) * ((n) + (k)) + (double)(size) * (n) * (k),               \
                      .flops = 2.0 * (m) * (n) * (k)

static const row rows[] = {
    {"matmul 4096 4096 4096", product, PRODUCT(4096, 4096, 4096)},
    {"matmul 1 4096 4096", product, PRODUCT(1, 4096, 4096)},
    {"matmul 4096 1 4096", product, PRODUCT(4096, 1, 4096)},
    {"matmul 16 4096 4096", product, PRODUCT(16, 4096, 4096)},
    {"matmul 257 129 1000", product, PRODUCT(257, 129, 1000)},
    {"scores 32x 512 512 64",
     product_turned,
     {{32, 512, 64}, {32, 512, 64}},
     .bytes = 4 * (32 * 512 * 128.0 + 32 * 512 * 512),
     .flops = 2.0 * 32 * 512 * 512 * 64},
    {"values 32x 512 64 512",
     product,
     {{32, 512, 512}, {32, 512, 64}},
     .bytes = 4 * (32 * 512 * 128.0 + 32 * 512 * 512),
     .flops = 2.0 * 32 * 512 * 512 * 64},
    {"attention 32x 512 512 64", attention, ATTENTION(32, 512, 512, 64)},
    {"attention 32x 2048 2048 128", attention, ATTENTION(32, 2048, 2048, 128)},
    {"attention causal 32x 2048 128", causal_attention, ATTENTION(32, 2048, 2048, 128)},
    {"attention 32x 16 2048 128", attention, ATTENTION(32, 16, 2048, 128)},
    {"attention 32x 1 2048 128", attention, ATTENTION(32, 1, 2048, 128)},
    {"weight gradient 4096 4096 512",
     weight_gradient,
     {{512, 4096}, {512, 4096}},
     .bytes = 4 * (2 * 512 * 4096.0 + 4096.0 * 4096),
     .flops = 2.0 * 512 * 4096 * 4096},
    {"linear f32 1 14336 4096", layer, LAYER(1, 14336, 4096, QN_F32, 4)},
    {"linear f32 8 14336 4096", layer, LAYER(8, 14336, 4096, QN_F32, 4)},
    {"linear f32 512 14336 4096", layer, LAYER(512, 14336, 4096, QN_F32, 4)},
    {"linear f16 1 14336 4096", layer, LAYER(1, 14336, 4096, QN_F16, 2)},
    {"linear f16 8 14336 4096", layer, LAYER(8, 14336, 4096, QN_F16, 2)},
    {"linear f16 512 14336 4096", layer, LAYER(512, 14336, 4096, QN_F16, 2)},
    {"quantized 4 1 14336 4096", quantized, QUANTIZED(1, 14336, 4096, 4)},
    {"quantized 4 8 14336 4096", quantized, QUANTIZED(8, 14336, 4096, 4)},
    {"quantized 4 64 14336 4096", quantized, QUANTIZED(64, 14336, 4096, 4)},
    {"quantized 4 512 14336 4096", quantized, QUANTIZED(512, 14336, 4096, 4)},
    {"quantized 8 1 14336 4096", quantized, QUANTIZED(1, 14336, 4096, 8)},
    {"quantized 4 1 4096 14336", quantized, QUANTIZED(1, 4096, 14336, 4)},
    {"silu gate 2048 14336",
     activation,
     {{2048, 14336}, {2048, 14336}},
     .bytes = 12.0 * 2048 * 14336},
    {"bias 4096 4096", biased, {{4096, 4096}, {4096}}, .bytes = 8.0 * 4096 * 4096},
    {"sum last 4096 4096", sum_last, {{4096, 4096}}, .bytes = 4.0 * 4096 * 4096},
    {"sum last 1000000 16", sum_last, {{1000000, 16}}, .bytes = 4.0 * 17000000},
    {"sum last 100000 128", sum_last, {{100000, 128}}, .bytes = 4.0 * 12900000},
    {"sum all 16777216", sum_last, {{16777216}}, .bytes = 4.0 * 16777216},
    {"sum first 4096 4096", sum_first, {{4096, 4096}}, .bytes = 4.0 * 4096 * 4096},
    {"sum first 8 1000000", sum_first, {{8, 1000000}}, .bytes = 4.0 * 9000000},
    {"max last 1000000 16", max_last, {{1000000, 16}}, .bytes = 4.0 * 17000000},
    {"argmax 8 128256", argmax_last, {{8, 128256}}, .bytes = 4.0 * 8 * 128256},
    {"argmax 100000 128", argmax_last, {{100000, 128}}, .bytes = 4.0 * 12900000},
    {"logsumexp 512 128256", logsumexp_last, {{512, 128256}}, .bytes = 4.0 * 512 * 128256},
    {"softmax 16384 512", softmax_last, {{16384, 512}}, .bytes = 8.0 * 16384 * 512},
    {"softmax 200000 64", softmax_last, {{200000, 64}}, .bytes = 8.0 * 200000 * 64},
    {"softmax 8 128256", softmax_last, {{8, 128256}}, .bytes = 8.0 * 8 * 128256},
    {"layer norm 4096 4096", norm_last, {{4096, 4096}}, .bytes = 8.0 * 4096 * 4096},
    {"transpose 4096 4096", turned, {{4096, 4096}}, .bytes = 8.0 * 4096 * 4096},
    {"heads 512 32 128", heads_apart, {{2048, 32, 128}}, .bytes = 8.0 * 2048 * 4096},
    {"concatenate 2048 4096", joined, {{2048, 4096}, {2048, 4096}}, .bytes = 16.0 * 2048 * 4096},
    {"take 4096 of 128256 4096",
     taken,
     {{128256, 1024}, {4096}},
     .ids = 128256,
     .bytes = 8.0 * 4096 * 1024},
    {"scatter add 2048 of 32000 4096",
     scattered,
     {{32000, 1024}, {2048, 1024}, {2048}},
     .ids = 32000,
     .bytes = 8.0 * 32000 * 1024 + 12.0 * 2048 * 1024},
    {"scatter add 65536 of 1000000",
     scattered,
     {{1000000}, {65536}, {65536}},
     .ids = 1000000,
     .bytes = 8.0 * 1000000 + 12.0 * 65536},
    {"argsort 1 128256", sorted_places, {{128256}}, .bytes = 8.0 * 128256},
    {"argsort 4096 256", sorted_places, {{4096, 256}}, .bytes = 8.0 * 4096 * 256},
    {"cumsum 64 128256", running_sum, {{64, 128256}}, .bytes = 8.0 * 64 * 128256},
};

static int ndim_of(const int64_t *shape)
{
    return !shape[0] ? 0 : !shape[1] ? 1 : !shape[2] ? 2 : 3;
}

static int inputs_of(const row *r)
{
    int n = 0;
    while (n < MOST_IN && r->shape[n][0])
        n++;
    return n;
}

static qn_array *input(qn_scope *s, const row *r, int i, int turn)
{
    const int64_t *shape = r->shape[i];
    qn_array *key = qn_random_key(s, (uint64_t)(turn * MOST_IN + i));
    qn_array *a = r->ids && i + 1 == inputs_of(r)
                      ? qn_random_integers(s, key, QN_I32, 0, r->ids, ndim_of(shape), shape)
                      : qn_random_uniform(s, key, QN_F32, -1, 1, ndim_of(shape), shape);
    if (i == 1 && r->bits)
        a = qn_random_bits(s, key, QN_U32, ndim_of(shape), shape);
    if (i == 1 && r->weight)
        a = qn_cast(s, a, r->weight);
    return qn_eval(s, a) == QN_OK ? qn_retain(a) : NULL;
}

static void record(void *user, qn_scope *s, qn_array *const *in, qn_array **out)
{
    const row *r = user;
    for (int i = 0; i < TURNS; i++)
        out[i] = r->make(s, r, in + i * inputs_of(r));
}

static int time_row(qn_device *device, const row *r, qn_error *err)
{
    qn_array *in[TURNS * MOST_IN] = {NULL}, *out[TURNS];
    double seconds[REPEATS];
    qn_function *f = NULL;
    int n = inputs_of(r);
    qn_status status = QN_OK;
    for (int i = 0; i < TURNS * n && status == QN_OK; i++) {
        qn_scope *s = qn_scope_begin(device);
        in[i] = input(s, r, i % n, i / n);
        status = in[i] ? QN_OK : QN_MEMORY;
        if (!in[i])
            fprintf(stderr, "%s\n", qn_scope_error(s));
        qn_scope_end(s);
    }
    if (status == QN_OK)
        status = qn_compile(&f, device, record, (void *)r, TURNS * n, NULL, TURNS, err);
    for (int i = -2; i < REPEATS && status == QN_OK; i++) {
        double begun = now();
        status = qn_call(f, in, out, err);
        if (i >= 0)
            seconds[i] = (now() - begun) / TURNS;
        for (int k = 0; k < TURNS && status == QN_OK; k++)
            qn_release(out[k]);
    }
    qn_function_close(f);
    for (int i = 0; i < TURNS * n; i++)
        qn_release(in[i]);
    if (status != QN_OK)
        return printf("%-31s %s\n", r->name, err->message), 1;
    double t = median(seconds, REPEATS);
    printf("%-31s %9.1f us %7.1f GB/s %8.2f TFLOP/s\n", r->name, t * 1e6, r->bytes / t / 1e9,
           r->flops / t / 1e12);
    return 0;
}

int main(int argc, char **argv)
{
    qn_error err = {0};
    qn_device *device;
    int failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2)
        return fprintf(stderr, "usage: bench-operations DEVICE [WORD]\n"), 2;
    if (qn_device_open(&device, argv[1], NULL, &err) != QN_OK)
        return fprintf(stderr, "bench-operations: %s\n", err.message), 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (argc < 3 || strstr(rows[i].name, argv[2]))
            failed += time_row(device, &rows[i], &err);
    qn_device_close(device);
    return failed != 0;
}
