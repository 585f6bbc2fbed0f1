/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of operations share: devices of every tier with 1 and 3 threads, values on the
 * host as doubles, the same values laid out in memory in several ways, comparisons in units of the
 * last place. Rounding to 16 bits is written out here, apart from the library's.
 */
#ifndef QN_TESTS_OPS_TEST_H
#define QN_TESTS_OPS_TEST_H

#include "test.h"

#include "core/device.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ---- devices ----------------------------------------------------------------------------------
 */

typedef struct rig {
    qn_device *device;
    const char *tier;
    int threads;
} rig;

enum { MOST_RIGS = 10 };

/* Every tier of the CPU; or the one device that QUERN_TEST_DEVICE names, such as "cuda:0". */
static inline int open_rigs(rig *rigs)
{
    static const char *const tiers[] = {"ref", "avx2", "avx512", "amx", "neon"};
    const char *name = getenv("QUERN_TEST_DEVICE");
    int n = 0;
    if (name) {
        rigs[0] = (rig){NULL, name, 1};
        assert_int_equal(qn_device_open(&rigs[0].device, name, NULL, NULL), QN_OK);
        return 1;
    }
    for (int t = 0; t < 5; t++)
        for (int threads = 1; threads <= 3; threads += 2) {
            qn_device_options o = {.size = sizeof o, .threads = threads, .tier = tiers[t]};
            rigs[n] = (rig){NULL, tiers[t], threads};
            n += qn_device_open(&rigs[n].device, "cpu", &o, NULL) == QN_OK;
        }
    assert_true(n >= 2);
    return n;
}

static inline void close_rigs(rig *rigs, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(memory_of(rigs[i].device).active, 0); /* nothing is left */
        qn_device_close(rigs[i].device);
    }
}

/* Small steps run on one thread whatever the device has. */
static inline bool uses_threads(const rig *r, size_t n)
{
    return r->threads == 1 || n > 4000;
}

/* ---- values -------------------------------------------------------------------------------------
 */

typedef struct host {
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM];
    size_t n;
    double *v; /* each exact in dtype */
} host;

static inline bool is_float(qn_dtype t)
{
    return t == QN_F16 || t == QN_BF16 || t == QN_F32 || t == QN_F64;
}

static inline bool is_signed(qn_dtype t)
{
    return is_float(t) || (t >= QN_I8 && t <= QN_I64);
}

static inline double round_to_digits(double v, int digits, int least_exponent, double largest)
{
    if (v == 0 || !isfinite(v))
        return v;
    int e = ilogb(v) < least_exponent ? least_exponent : ilogb(v);
    double unit = ldexp(1, e - digits + 1), r = nearbyint(v / unit) * unit;
    return fabs(r) > largest ? copysign(INFINITY, v) : r;
}

/* v as a value of the type: floats to nearest even, integers towards zero, wrapped. */
static inline double round_to(double v, qn_dtype t)
{
    switch (t) {
    case QN_F64: return v;
    case QN_F32: return (float)v;
    case QN_F16: return round_to_digits(v, 11, -14, 65504);
    case QN_BF16: return round_to_digits(v, 8, -126, 0x1.fep127);
    case QN_BOOL: return v != 0;
    default: break;
    }
    int bits = 8 * (int)qn_dtype_size(t);
    int64_t i = (int64_t)v;
    if (bits < 64) {
        i &= ((int64_t)1 << bits) - 1;
        if (is_signed(t) && i >> (bits - 1))
            i -= (int64_t)1 << bits;
    }
    return (double)i;
}

/* Distance between neighbours of v in the type. */
static inline double unit_of(double v, qn_dtype t)
{
    int digits = t == QN_F64 ? 53 : t == QN_F32 ? 24 : t == QN_F16 ? 11 : 8;
    int least = t == QN_F64 ? -1022 : t == QN_F16 ? -14 : -126;
    int e = v == 0 ? least : ilogb(v);
    return ldexp(1, (e < least ? least : e) - digits + 1);
}

static inline void encode(qn_dtype t, double v, void *to)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (t == QN_F64) {
        memcpy(to, &v, 8);
    } else if (t == QN_F32) {
        memcpy(to, &f, 4);
    } else if (t == QN_BF16) {
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(to, &half, 2);
    } else if (t == QN_F16) {
        uint16_t half = (uint16_t)(bits >> 31 << 15);
        double a = fabs(v);
        if (isnan(v))
            half |= 0x7e00;
        else if (isinf(v))
            half |= 0x7c00;
        else if (a < 0x1p-14)
            half |= (uint16_t)(a * 0x1p24);
        else
            half |= (uint16_t)((ilogb(a) + 14) * 1024 + (int)(a / ldexp(1, ilogb(a) - 10)));
        memcpy(to, &half, 2);
    } else {
        int64_t i = (int64_t)v;
        memcpy(to, &i, qn_dtype_size(t)); /* little-endian */
    }
}

static inline int64_t decode_integer(qn_dtype t, const void *from)
{
    uint64_t u = 0;
    int bits = 8 * (int)qn_dtype_size(t);
    memcpy(&u, from, qn_dtype_size(t));
    if (bits < 64 && is_signed(t) && u >> (bits - 1))
        u -= (uint64_t)1 << bits;
    return (int64_t)u;
}

static inline double decode(qn_dtype t, const void *from)
{
    float f;
    double d;
    uint16_t half;
    uint32_t bits;
    switch (t) {
    case QN_F64: memcpy(&d, from, 8); return d;
    case QN_F32: memcpy(&f, from, 4); return f;
    case QN_BF16:
        memcpy(&half, from, 2);
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, 4);
        return f;
    case QN_F16:
        memcpy(&half, from, 2);
        d = half & 1023;
        if ((half >> 10 & 31) == 31)
            d = half & 1023 ? NAN : INFINITY;
        else
            d = (half >> 10 & 31) ? ldexp(1024 + d, (half >> 10 & 31) - 25) : ldexp(d, -24);
        return half >> 15 ? -d : d;
    default: return (double)decode_integer(t, from);
    }
}

static inline host new_host(qn_dtype dtype, int ndim, const int64_t *shape)
{
    host h = {.dtype = dtype, .ndim = ndim, .n = 1};
    for (int i = 0; i < ndim; i++) {
        h.shape[i] = shape[i];
        h.n *= (size_t)shape[i];
    }
    h.v = calloc(h.n + 1, sizeof *h.v);
    return h;
}

/* Random values in (-scale, scale) + centre, rounded to the type. */
static inline host random_host(qn_dtype dtype, int ndim, const int64_t *shape, double scale,
                               double centre, uint64_t *state)
{
    host h = new_host(dtype, ndim, shape);
    for (size_t i = 0; i < h.n; i++)
        h.v[i] = round_to(scale * test_random(state) + centre, dtype);
    return h;
}

/* ---- layouts
 * ------------------------------------------------------------------------------------- */

typedef enum layout { PLAIN, TRANSPOSED, STRIDED, OFFSET, PADDED, N_LAYOUTS } layout;

/* The element index of row-major index i of `shape` when each axis is walked in reverse order. */
static inline size_t reversed_index(const host *h, size_t i)
{
    size_t at = 0, step = 1;
    int64_t index[QN_MAX_NDIM];
    for (int d = h->ndim - 1; d >= 0; d--) {
        index[d] = (int64_t)(i % (size_t)h->shape[d]);
        i /= (size_t)h->shape[d];
    }
    for (int d = 0; d < h->ndim; d++) { /* axis 0 is the innermost in memory */
        at += (size_t)index[d] * step;
        step *= (size_t)h->shape[d];
    }
    return at;
}

/* The values as an array of the scope whose storage is plain, transposed, every second element of a
 * larger one, the middle of one, or columns of a wider one; what lies around is garbage. */
static inline qn_array *put(qn_scope *s, const host *h, layout how)
{
    size_t size = qn_dtype_size(h->dtype), room = 2 * h->n + 1;
    int64_t shape[QN_MAX_NDIM];
    memcpy(shape, h->shape, sizeof shape);
    if (h->ndim == 0)
        how = PLAIN;
    size_t before = 0;
    if (how == OFFSET) {
        size_t row = 1;
        for (int d = 1; d < h->ndim; d++)
            row *= (size_t)h->shape[d];
        before = row;
        room = h->n + 3 * row + 1;
    }
    size_t columns = h->ndim ? (size_t)h->shape[h->ndim - 1] : 1;
    if (how == PADDED) {
        size_t rows = 1;
        for (int d = 0; d + 1 < h->ndim; d++)
            rows *= (size_t)h->shape[d];
        before = 1;
        room = rows * (columns + 3) + 1;
    }
    char *bytes = malloc(room * size);
    for (size_t i = 0; i < room; i++)
        encode(h->dtype, is_float(h->dtype) ? NAN : 1, bytes + i * size);
    for (size_t i = 0; i < h->n; i++) {
        size_t at = how == TRANSPOSED ? reversed_index(h, i) : how == STRIDED ? 2 * i + 1 : i;
        if (how == PADDED)
            at += i / columns * 3;
        encode(h->dtype, h->v[i], bytes + (at + before) * size);
    }
    qn_array *a;
    if (how == TRANSPOSED) {
        for (int d = 0; d < h->ndim; d++)
            shape[d] = h->shape[h->ndim - 1 - d];
        a = qn_transpose(s, qn_from(s, h->dtype, h->ndim, shape, bytes), NULL);
    } else if (how == STRIDED) {
        shape[h->ndim - 1] *= 2;
        a = qn_from(s, h->dtype, h->ndim, shape, bytes);
        a = qn_slice(s, a, -1, 1, INT64_MAX, 2);
    } else if (how == OFFSET) {
        shape[0] += 3;
        a = qn_from(s, h->dtype, h->ndim, shape, bytes);
        a = qn_slice(s, a, 0, 1, 1 + h->shape[0], 1);
    } else if (how == PADDED) {
        shape[h->ndim - 1] += 3;
        a = qn_from(s, h->dtype, h->ndim, shape, bytes);
        a = qn_slice(s, a, -1, 1, 1 + h->shape[h->ndim - 1], 1);
    } else {
        a = qn_from(s, h->dtype, h->ndim, shape, bytes);
    }
    free(bytes);
    return a;
}

/* ---- results
 * ------------------------------------------------------------------------------------- */

/* The values of an array, raw; its type and shape must be those wanted. Fails the test with the
 * scope's error otherwise. */
static inline void *get(qn_scope *s, qn_array *a, qn_dtype dtype, int ndim, const int64_t *shape,
                        const char *what)
{
    if (qn_scope_status(s) != QN_OK)
        fail_msg("%s: %s", what, qn_scope_error(s));
    if (qn_array_dtype(a) != dtype)
        fail_msg("%s: is %s, should be %s", what, qn_dtype_name(qn_array_dtype(a)),
                 qn_dtype_name(dtype));
    bool fits = qn_array_ndim(a) == ndim;
    for (int i = 0; fits && i < ndim; i++)
        fits = qn_array_dim(a, i) == shape[i];
    if (!fits)
        fail_msg("%s: has %d axes, first %lld; should have %d, first %lld", what, qn_array_ndim(a),
                 (long long)qn_array_dim(a, 0), ndim, ndim ? (long long)shape[0] : 0);
    size_t bytes = (size_t)qn_array_elements(a) * qn_dtype_size(dtype);
    void *raw = malloc(bytes + 1);
    if (qn_read(s, a, raw, bytes) != QN_OK)
        fail_msg("%s: %s", what, qn_scope_error(s));
    return raw;
}

/* How far a device's functions may be off, in terms of the CPU's: CUDA promises 4 units for tan. */
static inline double units_of_device(void)
{
    return getenv("QUERN_TEST_DEVICE") ? 4.0 : 1.0;
}

/* raw[i] is want[i] within `units` of the last place (of the type, at want's size) or `absolute`.
 */
static inline void check_values(const void *raw, qn_dtype dtype, const double *want, size_t n,
                                double units, double absolute, const char *what)
{
    units *= units_of_device();
    for (size_t i = 0; i < n; i++) {
        double got = decode(dtype, (const char *)raw + i * qn_dtype_size(dtype)), w = want[i];
        bool ok =
            isnan(w) ? isnan(got)
            : isinf(w) || isinf(got)
                ? got == w || (units > 0 && isfinite(w) && fabs(w) > 3.4e38)
                : fabs(got - w) <= fmax(is_float(dtype) ? units * unit_of(w, dtype) : 0, absolute);
        if (!ok)
            fail_msg("%s: element %zu is %.17g, should be %.17g", what, i, got, w);
    }
}

/* The first call keeps the bytes, later ones compare with them. Bits of NaN are not compared. */
typedef struct same_bits {
    void *first;
    size_t bytes;
} same_bits;

static inline void check_same(same_bits *same, void *raw, qn_dtype dtype, size_t n,
                              const char *what)
{
    size_t size = qn_dtype_size(dtype), bytes = n * size;
    if (!same->first) {
        same->first = raw;
        same->bytes = bytes;
        return;
    }
    assert_int_equal(same->bytes, bytes);
    for (size_t i = 0; memcmp(same->first, raw, bytes) && i < n; i++) {
        const char *a = (const char *)same->first + i * size, *b = (const char *)raw + i * size;
        if (memcmp(a, b, size) && !(isnan(decode(dtype, a)) && isnan(decode(dtype, b))))
            fail_msg("%s: element %zu is %.17g here and %.17g there", what, i, decode(dtype, b),
                     decode(dtype, a));
    }
    free(raw);
}

#endif
