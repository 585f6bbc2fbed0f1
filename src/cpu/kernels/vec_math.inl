/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementary functions on sixteen f32 lanes, written over vec_*.h so that every tier gives the same
 * bits.
 *
 * Approach: range reduction, then a minimax polynomial in Horner form with fma (coefficients from
 * our own Remez fits, scripts in tests/cpu/fit_math.py). A lane's value depends on that lane's
 * input alone. Denormals are kept. Rounding of a float to an integer adds 1.5 * 2^23 and reads the
 * low bits, which needs no conversion instruction. Largest errors seen over dense sweeps are
 * checked in tests/cpu/test_kernels.c.
 */

#define MAGIC 12582912.0f /* 1.5 * 2^23 */

/* 2^n for integer lanes n in -126 .. 127 */
static inline vf v_exp2i(vi n)
{
    return v_float(vi_shl(vi_add(n, vi_set(127)), 23));
}

/*
 * exp(x) = result * *scale, for x not NaN; |r| <= ln 2 / 2. The scale is a power of two split in
 * halves, so that multiplying by the second rounds once when the result is denormal.
 */
static inline vf v_exp_parts(vf x, vf *scale)
{
    vf c = v_pick(v_lt(x, v_set(-150.0f)), v_set(-150.0f), x);
    c = v_pick(v_lt(v_set(90.0f), c), v_set(90.0f), c);
    vf t = v_fma(c, v_set(0x1.715476p+0f), v_set(MAGIC));
    vi n = vi_sub(v_bits(t), v_bits(v_set(MAGIC)));
    vf k = v_sub(t, v_set(MAGIC));
    vf r = v_fnma(k, v_set(0x1.62e4p-1f),
                  c); /* ln 2 in 24 bits and the rest: the first step is exact */
    r = v_fnma(k, v_set(0x1.7f7d1cp-20f), r);
    vf q = v_set(0.00138131478782f);
    q = v_fma(q, r, v_set(0.00836941904684f));
    q = v_fma(q, r, v_set(0.0416684567352f));
    q = v_fma(q, r, v_set(0.166665147891f));
    q = v_fma(q, r, v_set(0.499999930509f));
    vf p = v_add(v_fma(v_mul(r, r), q, r), v_set(1.0f));
    vi half = vi_sar(n, 1);
    *scale = v_exp2i(vi_sub(n, half));
    return v_mul(p, v_exp2i(half));
}

static inline vf v_exp(vf x)
{
    vf scale, p = v_exp_parts(x, &scale);
    return v_pick(v_is_nan(x), v_add(x, x), v_mul(p, scale));
}

static inline vf v_log(vf x)
{
    vm tiny = v_lt(x, v_set(0x1p-126f));
    vf s = v_pick(tiny, v_mul(x, v_set(0x1p+24f)), x);
    vi b = vi_sub(v_bits(s), vi_set(0x3f3504f3)); /* sqrt(1/2) */
    vi e = vi_sar(b, 23);
    vf m = v_float(vi_add(vi_and(b, vi_set(0x7fffff)), vi_set(0x3f3504f3)));
    vf k = v_sub(v_of_int(e), v_pick(tiny, v_set(24.0f), v_set(0.0f)));
    vf f = v_sub(m, v_set(1.0f)), z = v_mul(f, f);
    vf q = v_set(0.067575718347f);
    q = v_fma(q, f, v_set(-0.1169433592f));
    q = v_fma(q, f, v_set(0.118935117264f));
    q = v_fma(q, f, v_set(-0.124030837671f));
    q = v_fma(q, f, v_set(0.142185546642f));
    q = v_fma(q, f, v_set(-0.166680903492f));
    q = v_fma(q, f, v_set(0.200021670344f));
    q = v_fma(q, f, v_set(-0.250000087117f));
    q = v_fma(q, f, v_set(0.333333119677f));
    vf y = v_mul(v_mul(z, f), q);
    y = v_fma(k, v_set(0x1.7f7d1cp-20f), y);
    y = v_fma(z, v_set(-0.5f), y);
    y = v_fma(k, v_set(0x1.62e4p-1f), v_add(y, f));
    y = v_pick(v_eq(x, v_set(INFINITY)), x, y);
    y = v_pick(v_eq(x, v_set(0.0f)), v_set(-INFINITY), y);
    y = v_pick(v_lt(x, v_set(0.0f)), v_set(NAN), y);
    return v_pick(v_is_nan(x), v_add(x, x), y);
}

static inline vf v_abs(vf x)
{
    return v_float(vi_and(v_bits(x), vi_set(0x7fffffff)));
}

/* |a| with the sign of b, for a >= 0 */
static inline vf v_with_sign(vf a, vf b)
{
    return v_float(vi_or(v_bits(a), vi_and(v_bits(b), vi_set(0x80000000u))));
}

/* Odd polynomial below 0.625, else 1 - 2 / (exp(2 |x|) + 1). */
static inline vf v_tanh(vf x)
{
    vf a = v_abs(x), z = v_mul(x, x);
    vf q = v_set(-0.00571704337794f);
    q = v_fma(q, z, v_set(0.020650586102f));
    q = v_fma(q, z, v_set(-0.0537434978693f));
    q = v_fma(q, z, v_set(0.133314912873f));
    q = v_fma(q, z, v_set(-0.333332839254f));
    vf near = v_fma(v_mul(z, q), x, x);
    vf e = v_exp(v_add(a, a));
    vf far = v_sub(v_set(1.0f), v_div(v_set(2.0f), v_add(e, v_set(1.0f))));
    vf y = v_pick(v_lt(a, v_set(0.625f)), near, v_with_sign(far, x));
    return v_pick(v_is_nan(x), v_add(x, x), y);
}

/* 1 / (1 + exp(-x)): with e = exp(-|x|), (x >= 0 ? 1 : e) / (1 + e) */
static inline vf v_sigmoid(vf x)
{
    vf one = v_set(1.0f), scale;
    vf p = v_exp_parts(v_float(vi_or(v_bits(x), vi_set(0x80000000u))), &scale);
    vf up = v_pick(v_lt(x, v_set(0.0f)), v_mul(p, scale), one);
    vf y = v_div(up, v_fma(p, scale, one));
    return v_pick(v_is_nan(x), v_add(x, x), y);
}

/* Odd polynomial below 0.92, else 1 - exp(polynomial that fits log erfc), constant from 4 up. */
static inline vf v_erf(vf x)
{
    vf a = v_abs(x), z = v_mul(x, x);
    vf q = v_set(8.21543383705e-5f);
    q = v_fma(q, z, v_set(-0.000810596808332f));
    q = v_fma(q, z, v_set(0.00519779749165f));
    q = v_fma(q, z, v_set(-0.0268581044523f));
    q = v_fma(q, z, v_set(0.112836725493f));
    q = v_fma(q, z, v_set(-0.37612632286f));
    q = v_fma(q, z, v_set(0.128379166495f));
    vf near = v_fma(q, x, x);
    vf t = v_min(a, v_set(4.0f));
    vf g = v_set(-2.09094704977e-5f);
    g = v_fma(g, t, v_set(0.000432302026547f));
    g = v_fma(g, t, v_set(-0.00416052230074f));
    g = v_fma(g, t, v_set(0.0250914846109f));
    g = v_fma(g, t, v_set(-0.108236600878f));
    g = v_fma(g, t, v_set(-0.633386662949f));
    g = v_fma(g, t, v_set(-1.12949515116f));
    g = v_fma(g, t, v_set(0.000170550433316f));
    vf far = v_sub(v_set(1.0f), v_exp(g));
    vf y = v_pick(v_lt(a, v_set(0.92f)), near, v_with_sign(far, x));
    return v_pick(v_is_nan(x), v_add(x, x), y);
}

/*
 * sin(x + turn * pi / 2) for turn 0 or 1. pi / 2 in three parts, good to |x| = 65536; lanes beyond
 * (rare) go through the C library one by one, also a function of the lane alone.
 */
static inline vf v_sin_turned(vf x, uint32_t turn)
{
    vf t = v_fma(x, v_set(0x1.45f306p-1f), v_set(MAGIC));
    vi n = vi_add(vi_sub(v_bits(t), v_bits(v_set(MAGIC))), vi_set(turn));
    vf k = v_sub(t, v_set(MAGIC));
    vf r = v_fnma(k, v_set(0x1.921fb6p+0f), x);
    r = v_fnma(k, v_set(-0x1.777a5cp-25f), r);
    r = v_fnma(k, v_set(-0x1.ee59dap-50f), r);
    vf z = v_mul(r, r);
    vf s = v_set(2.7175645392e-6f);
    s = v_fma(s, z, v_set(-0.000198392566457f));
    s = v_fma(s, z, v_set(0.00833332914397f));
    s = v_fma(s, z, v_set(-0.166666666396f));
    s = v_fma(v_mul(s, z), r, r);
    vf c = v_set(2.44312058601e-5f);
    c = v_fma(c, z, v_set(-0.00138873060521f));
    c = v_fma(c, z, v_set(0.0416666456531f));
    c = v_fma(v_mul(z, z), c, v_fma(z, v_set(-0.5f), v_set(1.0f)));
    vm even = vi_eq(vi_and(n, vi_set(1)), vi_set(0));
    vf y = v_pick(even, s, c);
    y = v_float(vi_xor(v_bits(y), vi_shl(vi_and(n, vi_set(2)), 30)));
    unsigned far =
        v_mask_bits(v_lt(v_abs(x), v_set(65536.0f))) ^ 0xffffu; /* also NaN and infinity */
    if (far) {
        float in[16], out[16];
        v_store(in, x);
        v_store(out, y);
        for (int i = 0; i < 16; i++)
            if (far >> i & 1)
                out[i] = (float)(turn ? cos((double)in[i]) : sin((double)in[i]));
        y = v_load(out);
    }
    return y;
}

static inline vf v_sin(vf x)
{
    vf y = v_sin_turned(x, 0); /* -0 stays -0 */
    return v_pick(v_eq(x, v_set(0.0f)), x, y);
}

static inline vf v_cos(vf x)
{
    return v_sin_turned(x, 1);
}

static inline vf v_rsqrt(vf x)
{
    return v_div(v_set(1.0f), v_sqrt(x));
}

#undef MAGIC
