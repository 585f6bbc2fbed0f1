/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Row kernels, maps, conversions and rope, written over vec_*.h so that every tier gives the same
 * bits.
 *
 * Approach: a reduction keeps 4 x 16 partial results (element i in lane i mod 64), folded as ((a +
 * b) + (c + d)) and then by v_sum's tree, so its order depends on the length alone. Tails go
 * through the same code with neutral lanes.
 */

typedef struct quad {
    vf a, b, c, d;
} quad;

static inline quad quad_set(float f)
{
    return (quad){v_set(f), v_set(f), v_set(f), v_set(f)};
}

static inline size_t quad_left(size_t left, size_t skip)
{
    return left < skip ? 0 : left - skip < 16 ? left - skip : 16;
}

/* Elements i .. i + 63 of a row of n, `fill` past its end. */
static inline quad quad_load(const float *x, size_t i, size_t n, float fill)
{
    if (n - i >= 64)
        return (quad){v_load(x + i), v_load(x + i + 16), v_load(x + i + 32), v_load(x + i + 48)};
    quad q = {v_set(fill), v_set(fill), v_set(fill), v_set(fill)};
    size_t left = n - i;
    q.a = v_load_n(x + i, quad_left(left, 0), fill);
    if (left > 16)
        q.b = v_load_n(x + i + 16, quad_left(left, 16), fill);
    if (left > 32)
        q.c = v_load_n(x + i + 32, quad_left(left, 32), fill);
    if (left > 48)
        q.d = v_load_n(x + i + 48, quad_left(left, 48), fill);
    return q;
}

static inline float quad_sum(quad q)
{
    return v_sum(v_add(v_add(q.a, q.b), v_add(q.c, q.d)));
}

static inline float row_sum_squares(const float *x, size_t n)
{
    quad s = quad_set(0.0f);
    for (size_t i = 0; i < n; i += 64) {
        quad q = quad_load(x, i, n, 0.0f);
        s.a = v_fma(q.a, q.a, s.a);
        s.b = v_fma(q.b, q.b, s.b);
        s.c = v_fma(q.c, q.c, s.c);
        s.d = v_fma(q.d, q.d, s.d);
    }
    return quad_sum(s);
}

static inline float row_sum(const float *x, size_t n)
{
    quad s = quad_set(0.0f);
    for (size_t i = 0; i < n; i += 64) {
        quad q = quad_load(x, i, n, 0.0f);
        s = (quad){v_add(s.a, q.a), v_add(s.b, q.b), v_add(s.c, q.c), v_add(s.d, q.d)};
    }
    return quad_sum(s);
}

/* NaN wins: v_max keeps the second operand when unordered, so a running NaN is put back. */
static inline vf max_keep_nan(vf m, vf x)
{
    return v_pick(v_is_nan(m), m, v_max(m, x));
}

static inline float row_max(const float *x, size_t n)
{
    quad m = quad_set(-INFINITY);
    for (size_t i = 0; i < n; i += 64) {
        quad q = quad_load(x, i, n, -INFINITY);
        m = (quad){max_keep_nan(m.a, q.a), max_keep_nan(m.b, q.b), max_keep_nan(m.c, q.c),
                   max_keep_nan(m.d, q.d)};
    }
    vf all = max_keep_nan(max_keep_nan(m.a, m.b), max_keep_nan(m.c, m.d));
    return v_mask_bits(v_is_nan(all)) ? NAN : v_top(all);
}

/* sum of exp(x - base); when y is given the terms are stored there */
static inline float row_exp_sum(float *y, const float *x, size_t n, float base)
{
    vf b = v_set(base);
    quad s = quad_set(0.0f);
    for (size_t i = 0; i < n; i += 64) {
        quad q = quad_load(x, i, n, -INFINITY); /* exp gives 0 past the end */
        q = (quad){v_exp(v_sub(q.a, b)), v_exp(v_sub(q.b, b)), v_exp(v_sub(q.c, b)),
                   v_exp(v_sub(q.d, b))};
        s = (quad){v_add(s.a, q.a), v_add(s.b, q.b), v_add(s.c, q.c), v_add(s.d, q.d)};
        if (y) {
            v_store_n(y + i, quad_left(n - i, 0), q.a);
            v_store_n(y + i + 16, quad_left(n - i, 16), q.b);
            v_store_n(y + i + 32, quad_left(n - i, 32), q.c);
            v_store_n(y + i + 48, quad_left(n - i, 48), q.d);
        }
    }
    return quad_sum(s);
}

static void rms_norm_rows(float *y, size_t ldy, const float *x, size_t ldx, const float *w,
                          float eps, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        const float *in = x + r * ldx;
        float *out = y + r * ldy;
        vf s = v_set(1.0f / sqrtf(row_sum_squares(in, n) / (float)n + eps));
        for (size_t i = 0; i < n; i += 16) {
            size_t left = quad_left(n - i, 0);
            vf v = v_mul(v_load_n(in + i, left, 0.0f), s);
            v_store_n(out + i, left, w ? v_mul(v, v_load_n(w + i, left, 0.0f)) : v);
        }
    }
}

static void softmax_rows(float *y, size_t ldy, const float *x, size_t ldx, size_t n, size_t r0,
                         size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        float *out = y + r * ldy;
        vf total = v_set(row_exp_sum(out, x + r * ldx, n, row_max(x + r * ldx, n)));
        for (size_t i = 0; i < n; i += 16) {
            size_t left = quad_left(n - i, 0);
            v_store_n(out + i, left, v_div(v_load_n(out + i, left, 0.0f), total));
        }
    }
}

/* Sums and differences of elements `apart` from each other. */
static inline void add_and_subtract(float *y, size_t n, size_t apart)
{
    for (size_t i = 0; i < n; i += 2 * apart)
        for (size_t k = i; k < i + apart; k++) {
            float low = y[k], high = y[k + apart];
            y[k] = low + high;
            y[k + apart] = low - high;
        }
}

static void hadamard_rows(float *y, size_t ldy, const float *x, size_t ldx, float scale, size_t n,
                          size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        float *out = y + r * ldy;
        memmove(out, x + r * ldx, n * sizeof *out);
        for (size_t i = 0; i + 16 <= n; i += 16)
            for (size_t apart = 1; apart < 16; apart *= 2)
                add_and_subtract(out + i, 16, apart);
        for (size_t apart = 1; n < 16 && apart < n; apart *= 2)
            add_and_subtract(out, n, apart);
        for (size_t apart = 16; apart < n; apart *= 2)
            for (size_t i = 0; i < n; i += 2 * apart)
                for (size_t k = i; k < i + apart; k += 16) {
                    vf low = v_load(out + k), high = v_load(out + k + apart);
                    v_store(out + k, v_add(low, high));
                    v_store(out + k + apart, v_sub(low, high));
                }
        for (size_t i = 0; i < n; i++)
            out[i] *= scale;
    }
}

static void logsumexp_rows(float *out, const float *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        float top = row_max(x + r * ldx, n), part[16];
        if (top == INFINITY || top == -INFINITY) {
            out[r] = top;
            continue;
        }
        v_store(part, v_log(v_set(row_exp_sum(NULL, x + r * ldx, n, top))));
        out[r] = top + part[0];
    }
}

static void sum_rows(float *out, const float *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++)
        out[r] = row_sum(x + r * ldx, n);
}

static void max_rows(float *out, const float *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++)
        out[r] = row_max(x + r * ldx, n);
}

static void argmax_rows(int64_t *out, const float *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        const float *in = x + r * ldx;
        float top = row_max(in, n);
        vf t = v_set(top);
        int64_t at = 0;
        for (size_t i = 0; i < n;
             i += 16) { /* past the end NaN and infinity could match: cut the mask */
            size_t left = quad_left(n - i, 0);
            vf v = v_load_n(in + i, left, 0.0f);
            unsigned hit =
                v_mask_bits(top != top ? v_is_nan(v) : v_eq(v, t)) & (unsigned)((1ul << left) - 1);
            if (hit) {
                while (!(hit & 1)) {
                    hit >>= 1;
                    at++;
                }
                at += (int64_t)i;
                break;
            }
        }
        out[r] = at;
    }
}

/* One head: pairs (i, i + half) or (2i, 2i + 1). In place is safe: a step reads what it writes
 * first. */
static void rope_head(const qn__cpu_rope *a, float *y, const float *x, const float *cs,
                      const float *sn)
{
    size_t h = a->half;
    if (a->interleaved) {
        for (size_t i = 0; i < h; i++) {
            float u = x[2 * i], v = x[2 * i + 1];
            y[2 * i] = u * cs[i] - v * sn[i];
            y[2 * i + 1] = v * cs[i] + u * sn[i];
        }
    } else {
        for (size_t i = 0; i < h; i += 16) {
            size_t left = quad_left(h - i, 0);
            vf u = v_load_n(x + i, left, 0.0f), v = v_load_n(x + h + i, left, 0.0f);
            vf c = v_load_n(cs + i, left, 0.0f), s = v_load_n(sn + i, left, 0.0f);
            v_store_n(y + i, left, v_sub(v_mul(u, c), v_mul(v, s)));
            v_store_n(y + h + i, left, v_add(v_mul(v, c), v_mul(u, s)));
        }
    }
    for (size_t i = 2 * h; y != x && i < a->d; i++)
        y[i] = x[i];
}

static void rope_rows(const qn__cpu_rope *a, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++)
        for (size_t h = 0; h < a->heads; h++)
            rope_head(a, a->y + r * a->y_row + h * a->y_head, a->x + r * a->x_row + h * a->x_head,
                      a->cos + r * a->cs_row, a->sin + r * a->cs_row);
}

/* --- maps --- */

static inline __attribute__((always_inline)) void map_with(vf (*f)(vf), float *y, const float *x,
                                                           size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, f(v_load(x + i)));
    if (i < n)
        v_store_n(y + i, n - i, f(v_load_n(x + i, n - i, 1.0f)));
}

static void map_exp(float *y, const float *x, size_t n)
{
    map_with(v_exp, y, x, n);
}

static void map_log(float *y, const float *x, size_t n)
{
    map_with(v_log, y, x, n);
}

static void map_tanh(float *y, const float *x, size_t n)
{
    map_with(v_tanh, y, x, n);
}

static void map_sigmoid(float *y, const float *x, size_t n)
{
    map_with(v_sigmoid, y, x, n);
}

static void map_sin(float *y, const float *x, size_t n)
{
    map_with(v_sin, y, x, n);
}

static void map_cos(float *y, const float *x, size_t n)
{
    map_with(v_cos, y, x, n);
}

static void map_erf(float *y, const float *x, size_t n)
{
    map_with(v_erf, y, x, n);
}

static void map_rsqrt(float *y, const float *x, size_t n)
{
    map_with(v_rsqrt, y, x, n);
}

static void map_sqrt(float *y, const float *x, size_t n)
{
    map_with(v_sqrt, y, x, n);
}

/* --- conversions --- */

static void convert_f32_from_bf16(float *y, const uint16_t *x, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_load_bf16(x + i));
    for (; i < n; i++)
        y[i] = qn__cpu_f32_of_bf16(x[i]);
}

static void convert_bf16_from_f32(uint16_t *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store_bf16(y + i, v_load(x + i));
    for (; i < n; i++)
        y[i] = qn__cpu_bf16_of_f32(x[i]);
}

static void convert_f32_from_f16(float *y, const uint16_t *x, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_load_f16(x + i));
    for (; i < n; i++)
        y[i] = qn__cpu_f32_of_f16(x[i]);
}

static void convert_f16_from_f32(uint16_t *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store_f16(y + i, v_load(x + i));
    for (; i < n; i++)
        y[i] = qn__cpu_f16_of_f32(x[i]);
}

static void fill_vec_rows(qn__cpu_kernels *t)
{
    t->rms_norm = rms_norm_rows;
    t->softmax = softmax_rows;
    t->hadamard = hadamard_rows;
    t->logsumexp = logsumexp_rows;
    t->sum = sum_rows;
    t->max = max_rows;
    t->argmax = argmax_rows;
    t->rope = rope_rows;
    t->map[QN__CPU_EXP] = map_exp;
    t->map[QN__CPU_LOG] = map_log;
    t->map[QN__CPU_TANH] = map_tanh;
    t->map[QN__CPU_SIGMOID] = map_sigmoid;
    t->map[QN__CPU_SIN] = map_sin;
    t->map[QN__CPU_COS] = map_cos;
    t->map[QN__CPU_ERF] = map_erf;
    t->map[QN__CPU_RSQRT] = map_rsqrt;
    t->map[QN__CPU_SQRT] = map_sqrt;
    t->f32_from_bf16 = convert_f32_from_bf16;
    t->bf16_from_f32 = convert_bf16_from_f32;
    t->f32_from_f16 = convert_f32_from_f16;
    t->f16_from_f32 = convert_f16_from_f32;
}
