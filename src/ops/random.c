/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers from keys and counters: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel
 * random numbers: as easy as 1, 2, 3", 2011). Element i of a draw is the cipher of the number i
 * under the key, so it depends on nothing else: not on threads, on the device, or on what is drawn
 * beside it. Values are those of JAX (jax_threefry_partitionable, its default since 0.5). The
 * cipher is an elementwise operation: it fuses with what uses its bits.
 */
#include "ops/ops.h"

#include <math.h>

/* ---- the cipher
 * ------------------------------------------------------------------------------------ */

static qn__ir_value rotated(qn__ir *ir, qn__ir_value x, int by)
{
    qn__ir_value left = qn__ir_binary(ir, QN__IR_SHL, x, qn__ir_integer(ir, QN_U32, by));
    qn__ir_value right = qn__ir_binary(ir, QN__IR_SHR, x, qn__ir_integer(ir, QN_U32, 32 - by));
    return qn__ir_binary(ir, QN__IR_OR, left, right);
}

/* in: the key's words, the counter's words */
static qn__ir_value emit_threefry(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    static const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    qn__ir_value parity = qn__ir_integer(ir, QN_U32, 0x1BD11BDA);
    qn__ir_value both = qn__ir_binary(ir, QN__IR_XOR, in[0], in[1]);
    qn__ir_value key[] = {in[0], in[1], qn__ir_binary(ir, QN__IR_XOR, both, parity)};
    qn__ir_value x0 = qn__ir_binary(ir, QN__IR_ADD, in[2], key[0]);
    qn__ir_value x1 = qn__ir_binary(ir, QN__IR_ADD, in[3], key[1]);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 4; k++) {
            x0 = qn__ir_binary(ir, QN__IR_ADD, x0, x1);
            x1 = qn__ir_binary(ir, QN__IR_XOR, rotated(ir, x1, turns[i % 2][k]), x0);
        }
        x0 = qn__ir_binary(ir, QN__IR_ADD, x0, key[(i + 1) % 3]);
        x1 = qn__ir_binary(ir, QN__IR_ADD, x1, key[(i + 2) % 3]);
        x1 = qn__ir_binary(ir, QN__IR_ADD, x1, qn__ir_integer(ir, QN_U32, i + 1));
    }
    int word = ((const qn__threefry_params *)params)->word;
    return word == QN__THREEFRY_XOR ? qn__ir_binary(ir, QN__IR_XOR, x0, x1)
           : word == QN__THREEFRY_0 ? x0
                                    : x1;
}

static void vjp_threefry(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                         qn_array **grads)
{
    (void)s, (void)node, (void)ct, (void)want, (void)grads;
}

static qn_array *jvp_threefry(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    (void)s, (void)node, (void)tangents;
    return NULL;
}

const qn__op_def qn__threefry_op = {.name = "threefry",
                                    .class = QN__ELEMENTWISE,
                                    .params_size = sizeof(qn__threefry_params),
                                    .emit = emit_threefry,
                                    .vjp = vjp_threefry,
                                    .jvp = jvp_threefry};

/* ---- bits
 * ------------------------------------------------------------------------------------------ */

typedef struct draw {
    int ndim;
    const int64_t *shape;
    qn_array *key[2]; /* broadcast to the shape */
    qn_array *counter;
} draw;

/* Checks keys [B..., 2] against a shape [B..., rest...]; the elements of a key are numbered from 0.
 */
static bool draw_begin(qn_scope *s, draw *d, const char *name, qn_array *key, int ndim,
                       const int64_t *shape)
{
    key = qn__input(s, key, name);
    if (!key)
        return false;
    int lead = key->ndim - 1;
    bool fits = key->dtype == QN_U32 && lead >= 0 && key->shape[lead] == 2 && ndim >= lead &&
                ndim <= QN_MAX_NDIM;
    int64_t n = 1, narrow[QN_MAX_NDIM], wide[QN_MAX_NDIM];
    for (int i = 0; fits && i < ndim; i++) {
        fits = i < lead ? shape[i] == key->shape[i] : shape[i] >= 0;
        narrow[i] = i < lead ? shape[i] : 1;
        wide[i] = i < lead ? 1 : shape[i];
        fits = fits && !__builtin_mul_overflow(n, wide[i] ? wide[i] : 1, &n) && n <= UINT32_MAX;
    }
    if (!fits) {
        qn__op_fail(
            s, name, key, NULL,
            "keys must be u32 [..., 2], the shape must begin with the keys' and have less than "
            "2^32 elements a key");
        return false;
    }
    for (int i = 0; i < 2; i++)
        d->key[i] = qn_reshape(s, qn_slice(s, key, -1, i, i + 1, 1), ndim, narrow);
    n = 1;
    for (int i = 0; i < ndim; i++)
        n *= wide[i];
    d->counter = qn_reshape(s, qn_arange(s, QN_U32, n), ndim, wide);
    d->ndim = ndim;
    d->shape = shape;
    return s->error.code == QN_OK;
}

static qn_array *word_of(qn_scope *s, const draw *d, qn__threefry_word word)
{
    qn__threefry_params params = {word};
    qn_array *in[] = {d->key[0], d->key[1], qn_scalar(s, QN_U32, 0), d->counter};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__record(s, QN__OP_THREEFRY, QN_U32, d->ndim,
                      d->ndim ? d->shape : (const int64_t[]){0}, 4, in, &params);
}

static qn_array *bits_of(qn_scope *s, const draw *d, qn_dtype dtype)
{
    if (dtype != QN_U64)
        return qn_cast(s, word_of(s, d, QN__THREEFRY_XOR), dtype);
    qn_array *high = qn_cast(s, word_of(s, d, QN__THREEFRY_0), QN_U64);
    qn_array *low = qn_cast(s, word_of(s, d, QN__THREEFRY_1), QN_U64);
    return qn_bitwise_or(s, qn_left_shift(s, high, qn_scalar(s, QN_U64, 32)), low);
}

qn_array *qn_random_key(qn_scope *s, uint64_t seed)
{
    const uint32_t words[] = {(uint32_t)(seed >> 32), (uint32_t)seed};
    return qn_from(s, QN_U32, 1, (const int64_t[]){2}, words);
}

/* Both words of the ciphers of 0 .. n - 1 */
qn_array *qn_random_split(qn_scope *s, qn_array *key, int64_t n)
{
    draw d;
    key = qn__input(s, key, "random_split");
    if (key && key->ndim != 1)
        return qn__op_fail(s, "random_split", key, NULL, "one key is wanted, u32 [2]");
    if (!key || !draw_begin(s, &d, "random_split", key, 1, &n))
        return qn__poison(s);
    qn_array *words[] = {qn_expand_dims(s, word_of(s, &d, QN__THREEFRY_0), 1),
                         qn_expand_dims(s, word_of(s, &d, QN__THREEFRY_1), 1)};
    return qn_concatenate(s, words, 2, 1);
}

qn_array *qn_random_fold_in(qn_scope *s, qn_array *key, qn_array *number)
{
    draw d;
    key = qn__input(s, key, "random_fold_in");
    number = key ? qn__input(s, number, "random_fold_in") : NULL;
    if (!number)
        return qn__poison(s);
    if (key->ndim != 1 || number->ndim > 1 || qn__elements(number) != 1 ||
        qn__is_float((qn_dtype)number->dtype))
        return qn__op_fail(s, "random_fold_in", key, number, "one key and one integer are wanted");
    if (!draw_begin(s, &d, "random_fold_in", key, 1, (const int64_t[]){1}))
        return qn__poison(s);
    d.shape = (const int64_t[]){1};
    d.counter = qn_reshape(s, qn_cast(s, number, QN_U32), 1, d.shape);
    qn_array *words[] = {word_of(s, &d, QN__THREEFRY_0), word_of(s, &d, QN__THREEFRY_1)};
    return qn_concatenate(s, words, 2, 0);
}

qn_array *qn_random_bits(qn_scope *s, qn_array *key, qn_dtype dtype, int ndim, const int64_t *shape)
{
    draw d;
    if (qn__dtype_kind(dtype) != QN__UNSIGNED)
        return qn__scope_fail(s, QN_INVALID, "random_bits: %s, should be u8, u16, u32 or u64",
                              qn_dtype_name(dtype));
    return draw_begin(s, &d, "random_bits", key, ndim, shape) ? bits_of(s, &d, dtype)
                                                              : qn__poison(s);
}

/* ---- distributions
 * --------------------------------------------------------------------------------- */

/* A fraction's binary digits as an integer, and how many there are, as JAX draws them. */
static qn_array *digits_of(qn_scope *s, const draw *d, qn_dtype dtype, int *used)
{
    static const struct {
        qn_dtype bits;
        int drawn, used;
    } kinds[] = {[QN_F16] = {QN_U16, 16, 10},
                 [QN_BF16] = {QN_U8, 8, 7},
                 [QN_F32] = {QN_U32, 32, 23},
                 [QN_F64] = {QN_U64, 64, 52}};
    qn_dtype bits = kinds[dtype].bits;
    *used = kinds[dtype].used;
    qn_array *shift = qn_scalar(s, bits, kinds[dtype].drawn - *used);
    return qn_right_shift(s, bits_of(s, d, bits), shift);
}

static qn_array *fraction(qn_scope *s, const draw *d, qn_dtype dtype)
{
    int used;
    qn_array *top = digits_of(s, d, dtype, &used);
    return qn_multiply(s, qn_cast(s, top, dtype), qn_scalar(s, dtype, ldexp(1, -used)));
}

static qn_array *uniform(qn_scope *s, const char *name, qn_array *key, qn_dtype dtype, double low,
                         double high, int ndim, const int64_t *shape)
{
    draw d;
    if ((unsigned)dtype >= QN_DTYPE_COUNT || !qn__is_float(dtype))
        return qn__scope_fail(s, QN_INVALID, "%s: %s, should be a float", name,
                              qn_dtype_name(dtype));
    if (!draw_begin(s, &d, name, key, ndim, shape))
        return qn__poison(s);
    qn_array *from = qn_scalar(s, dtype, low), *to = qn_scalar(s, dtype, high);
    qn_array *x = qn_multiply(s, fraction(s, &d, dtype), qn_subtract(s, to, from));
    return qn_maximum(s, from, qn_add(s, x, from));
}

qn_array *qn_random_uniform(qn_scope *s, qn_array *key, qn_dtype dtype, double low, double high,
                            int ndim, const int64_t *shape)
{
    return uniform(s, "random_uniform", key, dtype, low, high, ndim, shape);
}

qn_array *qn_random_normal(qn_scope *s, qn_array *key, qn_dtype dtype, int ndim,
                           const int64_t *shape)
{
    int digits = dtype == QN_F64 ? 53 : dtype == QN_F32 ? 24 : dtype == QN_F16 ? 11 : 8;
    double low = -1 + ldexp(1, -digits); /* the one above -1: erfinv stays finite */
    qn_array *u = uniform(s, "random_normal", key, dtype, low, 1, ndim, shape);
    return qn_multiply(s, qn_erfinv(s, u), qn__scalar_like(s, u, 1.4142135623730951));
}

qn_array *qn_random_bernoulli(qn_scope *s, qn_array *key, qn_array *p, int ndim,
                              const int64_t *shape)
{
    p = qn__input(s, p, "random_bernoulli");
    if (!p)
        return qn__poison(s);
    if (!qn__is_float((qn_dtype)p->dtype))
        p = qn_cast(s, p, QN_F32);
    qn_array *u = uniform(s, "random_bernoulli", key, (qn_dtype)p->dtype, 0, 1, ndim, shape);
    return qn_less(s, u, p);
}

/* Where qn_random_bernoulli(share) would be true, without its numbers: their digits are compared.
 */
static qn_array *kept(qn_scope *s, qn_array *key, float share, int ndim, const int64_t *shape)
{
    draw d;
    int used;
    if (!draw_begin(s, &d, "dropout", key, ndim, shape))
        return qn__poison(s);
    qn_array *digits = digits_of(s, &d, QN_F32, &used);
    return qn_less(s, digits, qn_scalar(s, QN_U32, ceil(ldexp(share, used))));
}

qn_array *qn_dropout(qn_scope *s, qn_array *x, qn_array *key, double p)
{
    x = qn__input(s, x, "dropout");
    if (!x)
        return qn__poison(s);
    if (!qn__is_float((qn_dtype)x->dtype) || !(p >= 0 && p < 1))
        return qn__op_fail(s, "dropout", x, NULL, "floats and a probability below 1 are wanted");
    qn_array *keep = kept(s, key, (float)(1 - p), x->ndim, x->shape);
    qn_array *larger = qn_multiply(s, x, qn__scalar_like(s, x, 1 / (1 - p)));
    return qn_where(s, keep, larger, qn__scalar_like(s, x, 0));
}

/* The largest logit after Gumbel noise: -log(-log(u)). Of 16-bit logits in f32. */
qn_array *qn_random_categorical(qn_scope *s, qn_array *key, qn_array *logits, int axis)
{
    logits = qn__input(s, logits, "random_categorical");
    axis = logits ? qn__axis(s, "random_categorical", logits, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    qn_dtype type = (qn_dtype)logits->dtype == QN_F64 ? QN_F64 : QN_F32;
    double tiny = type == QN_F64 ? 0x1p-1022 : 0x1p-126;
    qn_array *u = uniform(s, "random_categorical", key, type, tiny, 1, logits->ndim, logits->shape);
    qn_array *gumbel = qn_negative(s, qn_log(s, qn_negative(s, qn_log(s, u))));
    return qn_argmax(s, qn_add(s, gumbel, qn_cast(s, logits, type)), axis, false);
}

/* (high bits * 2^bits + low bits) mod span, in the unsigned type of the same width */
qn_array *qn_random_integers(qn_scope *s, qn_array *key, qn_dtype dtype, int64_t low, int64_t high,
                             int ndim, const int64_t *shape)
{
    qn__kind kind = (unsigned)dtype < QN_DTYPE_COUNT ? qn__dtype_kind(dtype) : QN__BOOL;
    if ((kind != QN__UNSIGNED && kind != QN__SIGNED) || low >= high)
        return qn__scope_fail(s, QN_INVALID, "random_integers: %s from %lld to below %lld",
                              qn_dtype_name(dtype), (long long)low, (long long)high);
    int n_bits = 8 * (int)qn__dtype_size(dtype);
    int64_t least = kind == QN__UNSIGNED ? 0
                    : n_bits == 64       ? INT64_MIN
                                         : -((int64_t)1 << (n_bits - 1));
    int64_t most = n_bits == 64           ? INT64_MAX
                   : kind == QN__UNSIGNED ? ((int64_t)1 << n_bits) - 1
                                          : -(least + 1);
    if (low < least || high - 1 > most)
        return qn__scope_fail(s, QN_INVALID, "random_integers: %lld to below %lld is not in %s",
                              (long long)low, (long long)high, qn_dtype_name(dtype));
    if (n_bits < 32) /* from 32 bits: less uneven */
        return qn_cast(s, qn_random_integers(s, key, QN_I32, low, high, ndim, shape), dtype);
    qn_dtype bits = kind == QN__UNSIGNED ? dtype : (qn_dtype)(QN_U8 + (dtype - QN_I8));
    uint64_t mask = n_bits == 64 ? UINT64_MAX : ((uint64_t)1 << n_bits) - 1;
    uint64_t span = ((uint64_t)high - (uint64_t)low) & mask, times = 0;
    if (span) {
        times = ((uint64_t)1 << n_bits / 2) % span;
        times = (times * times & mask) % span;
    }
    qn_array *keys = qn_random_split(s, key, 2), *draws[2];
    for (int i = 0; i < 2; i++) {
        qn_array *one = qn_reshape(s, qn_slice(s, keys, 0, i, i + 1, 1), 1, (const int64_t[]){2});
        draws[i] = qn_random_bits(s, one, bits, ndim, shape);
    }
    qn_array *k[3];
    const uint64_t values[] = {span, times, (uint64_t)low};
    for (int i = 0; i < 3; i++) /* little-endian: the low bytes are the value */
        k[i] = qn_from(s, bits, 0, NULL, &values[i]);
    qn_array *y = draws[1];
    if (span) {
        y = qn_add(s, qn_multiply(s, qn_remainder(s, draws[0], k[0]), k[1]),
                   qn_remainder(s, draws[1], k[0]));
        y = qn_remainder(s, y, k[0]);
    }
    return qn_cast(s, qn_add(s, y, k[2]), dtype);
}

/* Sorted by random keys, often enough that equal ones do not matter. */
qn_array *qn_random_permutation(qn_scope *s, qn_array *key, int64_t n)
{
    qn_array *order = qn_arange(s, QN_I32, n);
    int rounds = (int)ceil(3 * log(n > 1 ? (double)n : 1) / log(UINT32_MAX));
    key = qn__input(s, key, "random_permutation");
    for (int i = 0; i < rounds && key; i++) {
        qn_array *keys = qn_random_split(s, key, 2);
        qn_array *own = qn_reshape(s, qn_slice(s, keys, 0, 1, 2, 1), 1, (const int64_t[]){2});
        key = qn_reshape(s, qn_slice(s, keys, 0, 0, 1, 1), 1, (const int64_t[]){2});
        qn_array *bits = qn_random_bits(s, own, QN_U32, 1, &n);
        order = qn_take(s, order, qn_argsort(s, bits, 0, false), 0);
    }
    return key ? order : qn__poison(s);
}
