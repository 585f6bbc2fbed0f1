/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of every layout taken apart, over vec_*.h: the codes of four columns, the scale and the
 * bias of a step of columns. One source for all tiers, so they all see the same numbers.
 *
 * A vi holds one word of 16 rows, which is how units lie (quant/layout.h); what a decoder does to
 * the bytes of a block is done here to 16 of them. A quad of codes is [16 rows][4 columns].
 *
 * Where few rows of x meet a unit, quad and step are constants, too, and what remains of
 * unit_code() is a load and a few masks. Taking a unit apart for many rows is a loop, and small.
 */
#include "quant/layout_table.h"

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS vi low_halves(vi w)
{
    return vi_and(w, vi_set(0x0f0f0f0fu));
}

ALWAYS vi high_halves(vi w)
{
    return vi_and(vi_shr(w, 4), vi_set(0x0f0f0f0fu));
}

ALWAYS vi two_bits(vi w, int shift)
{
    return vi_and(vi_shr(w, shift), vi_set(0x03030303u));
}

/* Bit `shift` of each byte. */
ALWAYS vi one_bit(vi w, int shift)
{
    return vi_and(vi_shr(w, shift), vi_set(0x01010101u));
}

/* Bits 4 q .. 4 q + 3 of each word as its four bytes, 0 or 1. */
ALWAYS vi spread_bits(vi w, int q)
{
    vi b = vi_and(vi_shr(w, 4 * q), vi_set(15));
    b = vi_or(vi_or(b, vi_shl(b, 7)), vi_or(vi_shl(b, 14), vi_shl(b, 21)));
    return vi_and(b, vi_set(0x01010101u));
}

/* ---- codes ---- */

/* Of `words` words of halves: the low ones come first. */
ALWAYS vi half_code(const uint8_t *w, int words, int quad)
{
    vi v = vi_load(w + 64 * (quad % words));
    return quad / words % 2 ? high_halves(v) : low_halves(v);
}

/* Blocks of 32, four words of halves each. */
ALWAYS vi block_code(const uint8_t *unit, int quad)
{
    return half_code(unit + 256 * (quad / 8), 4, quad % 8);
}

ALWAYS vi q5_code(const uint8_t *unit, int quad)
{
    vi high = vi_load(unit + 512 + 64 * (quad / 8));
    return vi_or(block_code(unit, quad), vi_shl(spread_bits(high, quad % 8), 4));
}

ALWAYS vi q8_0_code(const uint8_t *unit, int quad)
{
    return vi_xor(vi_load(unit + 64 * quad), vi_set(0x80808080u));
}

/* The values of IQ4_NL's and IQ4_XS's codes, plus 128. */
static const uint8_t iq4_values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                       129, 141, 153, 166, 181, 197, 217, 241};

/* Twice the values of FP4 (E2M1), plus 12. */
static const uint8_t fp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

ALWAYS vi q4_k_code(const uint8_t *unit, int quad)
{
    return half_code(unit + 512 * (quad / 16), 8, quad % 16);
}

ALWAYS vi q5_k_code(const uint8_t *unit, int quad)
{
    vi high = vi_load(unit + 2048 + 64 * (quad % 8));
    return vi_or(q4_k_code(unit, quad), vi_shl(one_bit(high, quad / 8), 4));
}

ALWAYS vi q6_k_code(const uint8_t *unit, int quad)
{
    int half = quad / 32, part = quad % 32 / 8, word = quad % 8;
    vi low = vi_load(unit + 1024 * half + 512 * (part % 2) + 64 * word),
       high = vi_load(unit + 2048 + 512 * half + 64 * word);
    return vi_or(part < 2 ? low_halves(low) : high_halves(low),
                 vi_shl(two_bits(high, 2 * part), 4));
}

ALWAYS vi q2_k_code(const uint8_t *unit, int quad)
{
    return two_bits(vi_load(unit + 512 * (quad / 32) + 64 * (quad % 8)), quad % 32 / 8 * 2);
}

ALWAYS vi q3_k_code(const uint8_t *unit, int quad)
{
    vi high = vi_load(unit + 1024 + 64 * (quad % 8));
    return vi_or(q2_k_code(unit, quad), vi_shl(one_bit(high, quad / 8), 2));
}

/* 32 bytes of four fields: columns i, i + 32, i + 64, i + 96. */
ALWAYS vi quarter_code(const uint8_t *w, int quad, int first, int step)
{
    return two_bits(vi_load(w + 64 * (quad % 8)), first + step * (quad / 8));
}

/* Digit n of each byte, whose value is a fraction in base 3: the byte times 3^n, modulo 256, times
 * 3, above 256. Even and odd bytes apart, since products need 16 bits. */
ALWAYS vi base3_digit(vi w, int n)
{
    static const uint32_t power[5] = {1, 3, 9, 27, 81};
    vi even = vi_and(w, vi_set(0x00ff00ffu)), odd = vi_and(vi_shr(w, 8), vi_set(0x00ff00ffu));
    even = vi_and(vi_mul_small(even, power[n]), vi_set(0x00ff00ffu));
    odd = vi_and(vi_mul_small(odd, power[n]), vi_set(0x00ff00ffu));
    even = vi_and(vi_shr(vi_mul_small(even, 3), 8), vi_set(0x00ff00ffu));
    odd = vi_and(vi_mul_small(odd, 3), vi_set(0xff00ff00u));
    return vi_or(even, odd);
}

/* 32 bytes of five digits, 16 bytes of five, 4 of four. */
ALWAYS vi tq1_0_code(const uint8_t *unit, int quad)
{
    if (quad < 40)
        return base3_digit(vi_load(unit + 64 * (quad % 8)), quad / 8);
    if (quad < 60)
        return base3_digit(vi_load(unit + 512 + 64 * (quad % 4)), (quad - 40) / 4);
    return base3_digit(vi_load(unit + 768), quad - 60);
}

/* Planes of 32 codes. */
ALWAYS vi group_code(int bits, const uint8_t *unit, int quad)
{
    const uint8_t *w = unit + 64 * bits * (quad / 8);
    int q = quad % 8;
    if (bits == 8)
        return vi_load(w + 64 * q);
    vi c = vi_set(0);
    if (bits & 4) {
        c = half_code(w, 4, q);
        w += 256;
    }
    if (bits & 2) {
        vi t = two_bits(vi_load(w + 64 * (q % 2)), q / 2 * 2);
        c = bits & 4 ? vi_or(c, vi_shl(t, 4)) : t;
        w += 128;
    }
    return bits & 1 ? vi_or(c, vi_shl(one_bit(vi_load(w), q), bits - 1)) : c;
}

/* ---- scales and biases ---- */

ALWAYS vf half_at(const uint8_t *p)
{
    return v_load_f16((const uint16_t *)p);
}

ALWAYS vf less_half_at(const uint8_t *p)
{
    return v_sub(v_set(-0.0f), half_at(p));
}

/* The scale is 2^(e - 127), halved since the codes are doubled; below e = 2 that is denormal. */
ALWAYS vf mxfp4_scale(const uint8_t *p)
{
    vi e = vi_bytes(p), normal = vi_shl(vi_sub(e, vi_set(1)), 23);
    vf small =
        v_pick(vi_eq(e, vi_set(0)), v_float(vi_set(0x00200000u)), v_float(vi_set(0x00400000u)));
    return v_pick(v_lt(v_of_int(e), v_set(2.0f)), small, v_float(normal));
}

/* Scale j, or minimum, of the twelve bytes that Q4_K and Q5_K pack 8 + 8 six-bit numbers into: four
 * in the low bits of a word, four from two words. */
ALWAYS vi packed_scale(const uint8_t *w, int j, int minimum)
{
    vi four = vi_load(w + 64 * minimum);
    if (j < 4)
        four = vi_and(four, vi_set(0x3f3f3f3fu));
    else
        four = vi_or(half_code(w + 128, 1, minimum), vi_and(vi_shr(four, 2), vi_set(0x30303030u)));
    return vi_and(vi_shr(four, 8 * (j & 3)), vi_set(255));
}

ALWAYS vf packed_scale_of(const uint8_t *w, int j)
{
    return v_mul(half_at(w + 192), v_of_int(packed_scale(w, j, 0)));
}

ALWAYS vf packed_bias_of(const uint8_t *w, int j)
{
    return v_mul(less_half_at(w + 224), v_of_int(packed_scale(w, j, 1)));
}

ALWAYS vf q6_k_scale(const uint8_t *unit, int j)
{
    vi s = vi_sar(vi_shl(vi_bytes(unit + 3072 + 16 * j), 24), 24);
    return v_mul(half_at(unit + 3328), v_of_int(s));
}

/* Low four bits in bytes 0 .. 7 behind the codes, high two in 8 .. 11. */
ALWAYS vf q3_k_scale(const uint8_t *unit, int j)
{
    const uint8_t *w = unit + 1536;
    vi s = vi_shr(vi_load(w + 64 * (j / 4 % 2)), 8 * (j % 4) + (j < 8 ? 0 : 4));
    vi t = vi_and(vi_shr(vi_load(w + 128), 8 * (j % 4) + 2 * (j / 4)), vi_set(3));
    s = vi_sub(vi_or(vi_and(s, vi_set(15)), vi_shl(t, 4)), vi_set(32));
    return v_mul(half_at(w + 192), v_of_int(s));
}

ALWAYS vf iq4_xs_scale(const uint8_t *unit, int j)
{
    vi low = vi_and(vi_shr(vi_load(unit + 2048), 4 * j), vi_set(15)),
       high = vi_and(vi_shr(vi_halves(unit + 2112), 2 * j), vi_set(3));
    return v_mul(half_at(unit + 2144), v_of_int(vi_sub(vi_or(low, vi_shl(high, 4)), vi_set(32))));
}

/* Scales lie behind the codes of affine and zeroed groups, then biases or zeros. */
ALWAYS vf group_number(int type, int second, const qn__layout *l, const uint8_t *unit, int s)
{
    int bytes = type == QN__F32 ? 64 : 32, group = s * l->step / (l->columns / l->blocks);
    const uint8_t *p = unit + l->unit_bytes - bytes * (l->blocks * (2 - second) - group);
    if (type == QN__F32)
        return v_load((const float *)p);
    return type == QN__F16 ? half_at(p) : v_load_bf16((const uint16_t *)p);
}

ALWAYS vf group_scale(int type, const qn__layout *l, const uint8_t *unit, int s)
{
    return group_number(type, 0, l, unit, s);
}

ALWAYS vf group_bias(int type, int zeroed, const qn__layout *l, const uint8_t *unit, int s)
{
    vf m = group_number(type, 1, l, unit, s);
    return zeroed ? v_sub(v_set(-0.0f), v_mul(group_scale(type, l, unit, s), m)) : m;
}

/* ---- by layout of blocks; groups go by bits and type ---- */

/* Columns 4 quad .. 4 quad + 3. */
ALWAYS vi unit_code(int id, const uint8_t *unit, int quad)
{
    switch (id) {
    case QN__Q4_0:
    case QN__Q4_1: return block_code(unit, quad);
    case QN__Q5_0:
    case QN__Q5_1: return q5_code(unit, quad);
    case QN__Q8_0: return q8_0_code(unit, quad);
    case QN__IQ4_NL:
    case QN__IQ4_XS: return vi_look_up(iq4_values, block_code(unit, quad));
    case QN__MXFP4: return vi_look_up(fp4_values, block_code(unit, quad));
    case QN__Q2_K: return q2_k_code(unit, quad);
    case QN__Q3_K: return q3_k_code(unit, quad);
    case QN__Q4_K: return q4_k_code(unit, quad);
    case QN__Q5_K: return q5_k_code(unit, quad);
    case QN__Q6_K: return q6_k_code(unit, quad);
    case QN__TQ1_0: return tq1_0_code(unit, quad);
    case QN__TQ2_0: return quarter_code(unit + 512 * (quad / 32), quad % 32, 0, 2);
    case QN__I2_S: return quarter_code(unit, quad, 6, -2);
    default: return vi_set(0);
    }
}

/* Of step s of the unit's. */
ALWAYS vf unit_scale(int id, const uint8_t *unit, int s)
{
    switch (id) {
    case QN__Q4_0:
    case QN__Q4_1:
    case QN__IQ4_NL: return half_at(unit + 512 + 32 * s);
    case QN__Q5_0:
    case QN__Q5_1: return half_at(unit + 640 + 32 * s);
    case QN__Q8_0: return half_at(unit + 1024 + 32 * s);
    case QN__IQ4_XS: return iq4_xs_scale(unit, s);
    case QN__MXFP4: return mxfp4_scale(unit + 1024 + 16 * s);
    case QN__Q2_K:
        return v_mul(half_at(unit + 1280),
                     v_of_int(vi_and(vi_bytes(unit + 1024 + 16 * s), vi_set(15))));
    case QN__Q3_K: return q3_k_scale(unit, s);
    case QN__Q4_K: return packed_scale_of(unit + 2048, s);
    case QN__Q5_K: return packed_scale_of(unit + 2560, s);
    case QN__Q6_K: return q6_k_scale(unit, s);
    case QN__TQ1_0: return half_at(unit + 832);
    case QN__TQ2_0: return half_at(unit + 1024);
    case QN__I2_S: return v_set(1.0f);
    default: return v_set(0.0f);
    }
}

/* For layouts that have biases. */
ALWAYS vf unit_bias(int id, const uint8_t *unit, int s)
{
    switch (id) {
    case QN__Q4_1: return half_at(unit + 576 + 32 * s);
    case QN__Q5_1: return half_at(unit + 704 + 32 * s);
    case QN__Q2_K:
        return v_mul(less_half_at(unit + 1312),
                     v_of_int(vi_shr(vi_bytes(unit + 1024 + 16 * s), 4)));
    case QN__Q4_K: return packed_bias_of(unit + 2048, s);
    case QN__Q5_K: return packed_bias_of(unit + 2560, s);
    default: return v_set(0.0f);
    }
}

/* How far ahead units are asked for, in bytes, and large ones that are not read in the order in
 * which they lie (their scales, at the end, come first): sooner. Those come into the second cache
 * where loads are whole lines: loads that wait and hints into the first share a few places (Zen 4:
 * one row of Q6_K 12 GB/s, and 21). */
#ifdef VEC_LINES
enum { UNIT_AHEAD = 4096, LARGE_UNIT_AHEAD = 6144, LARGE_UNIT_CACHE = 2 };
#else
enum { UNIT_AHEAD = 4096, LARGE_UNIT_AHEAD = 8192, LARGE_UNIT_CACHE = 3 };
#endif

/* A hint that what lies further on comes soon: step s of the unit asks for its share. No access to
 * memory moves past it: compilers gather the hints of unrolled steps, and 36 at once wait for each
 * other. */
ALWAYS void unit_ahead(const qn__layout *l, const uint8_t *unit, int s, int in_order)
{
    __asm__ volatile("" ::: "memory");
    int steps = l->columns / l->step, lines = l->unit_bytes / 64;
    for (int i = lines * s / steps; i < lines * (s + 1) / steps; i++)
        if (in_order || l->unit_bytes <= UNIT_AHEAD / 2)
            __builtin_prefetch(unit + UNIT_AHEAD + 64 * i);
        else
            __builtin_prefetch(unit + LARGE_UNIT_AHEAD + 64 * i, 0, LARGE_UNIT_CACHE);
}

/* ---- whole units ---- */

ALWAYS void unpack_blocks(int id, const uint8_t *unit, uint8_t *codes, float *scale, float *bias)
{
    const qn__layout *l = &qn__layouts[id];
    int steps = l->columns / l->step, quads = l->step / 4;
    for (int s = 0; s < steps; s++) {
        unit_ahead(l, unit, s, 0);
        for (int q = s * quads; q < (s + 1) * quads; q++)
            vi_store(codes + 64 * q, unit_code(id, unit, q));
        v_store(scale + 16 * s, unit_scale(id, unit, s));
        if (l->biased)
            v_store(bias + 16 * s, unit_bias(id, unit, s));
    }
}

/* bits, type and zeroed are constants at every call. */
ALWAYS void unpack_groups(int bits, int type, int zeroed, const qn__layout *l, const uint8_t *unit,
                          uint8_t *codes, float *scale, float *bias)
{
    for (int c = 0; c < l->columns / 32; c++, codes += 512)
        for (int q = 0; q < 8; q++)
            vi_store(codes + 64 * q, group_code(bits, unit + 64 * bits * c, q));
    for (int s = 0; s < l->columns / l->step; s++) {
        unit_ahead(l, unit, s, 0);
        v_store(scale + 16 * s, group_scale(type, l, unit, s));
        v_store(bias + 16 * s, group_bias(type, zeroed, l, unit, s));
    }
}

#define UNITS_OF_BLOCKS(F)                                                                         \
    F(Q4_0)                                                                                        \
    F(Q4_1)                                                                                        \
    F(Q5_0)                                                                                        \
    F(Q5_1)                                                                                        \
    F(Q8_0)                                                                                        \
    F(Q2_K)                                                                                        \
    F(Q3_K)                                                                                        \
    F(Q4_K)                                                                                        \
    F(Q5_K)                                                                                        \
    F(Q6_K)                                                                                        \
    F(IQ4_NL)                                                                                      \
    F(IQ4_XS)                                                                                      \
    F(TQ1_0)                                                                                       \
    F(TQ2_0)                                                                                       \
    F(MXFP4)                                                                                       \
    F(I2_S)

#define UNPACK(id)                                                                                 \
    static void unpack_##id(const qn__layout *l, const uint8_t *unit, uint8_t *codes,              \
                            float *scale, float *bias)                                             \
    {                                                                                              \
        (void)l;                                                                                   \
        unpack_blocks(QN__##id, unit, codes, scale, bias);                                         \
    }
UNITS_OF_BLOCKS(UNPACK)
#undef UNPACK

#define UNPACK_OF(kind, zeroed, bits, type)                                                        \
    static void unpack_##kind##bits##_##type(const qn__layout *l, const uint8_t *unit,             \
                                             uint8_t *codes, float *scale, float *bias)            \
    {                                                                                              \
        unpack_groups(bits, QN__##type, zeroed, l, unit, codes, scale, bias);                      \
    }
#define UNPACK(kind, zeroed, bits)                                                                 \
    UNPACK_OF(kind, zeroed, bits, F32)                                                             \
    UNPACK_OF(kind, zeroed, bits, F16) UNPACK_OF(kind, zeroed, bits, BF16)
UNPACK(affine, 0, 2)
UNPACK(affine, 0, 3)
UNPACK(affine, 0, 4)
UNPACK(affine, 0, 5)
UNPACK(affine, 0, 6)
UNPACK(affine, 0, 8)
UNPACK(zeroed, 1, 2)
UNPACK(zeroed, 1, 3)
UNPACK(zeroed, 1, 4)
UNPACK(zeroed, 1, 8)
#undef UNPACK
#undef UNPACK_OF

static void fill_vec_units(qn__cpu_kernels *t)
{
#define UNPACK(id) t->unpack[QN__UNITS_OF(QN__##id)] = unpack_##id;
    UNITS_OF_BLOCKS(UNPACK)
#undef UNPACK
#define UNPACK_OF(KIND, kind, bits, group, type)                                                   \
    t->unpack[QN__UNITS_OF(QN__##KIND##bits##_G##group##_##type)] = unpack_##kind##bits##_##type;
#define UNPACK(KIND, kind, bits, group)                                                            \
    UNPACK_OF(KIND, kind, bits, group, F32)                                                        \
    UNPACK_OF(KIND, kind, bits, group, F16) UNPACK_OF(KIND, kind, bits, group, BF16)
#define AFFINE(bits, group) UNPACK(AFFINE, affine, bits, group)
#define ZEROED(bits, group) UNPACK(ZEROED, zeroed, bits, group)
    QN__AFFINE_WIDTHS(AFFINE)
    QN__ZEROED_WIDTHS(ZEROED)
#undef AFFINE
#undef ZEROED
#undef UNPACK
#undef UNPACK_OF
}
