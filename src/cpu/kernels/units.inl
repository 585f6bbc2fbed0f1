/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of every layout taken apart: into one byte a code, a scale and a bias for each step of
 * columns, over vec_*.h. One source for all tiers, so they all see the same numbers.
 *
 * A vi holds one word of 16 rows, which is how units lie (quant/layout.h); what a decoder does to
 * the bytes of a block is done here to 16 of them. Codes come out as [column / 4][16 rows][4], in
 * order of columns. A layout's words come first, so the stream is asked for in advance from there.
 */

#define ALWAYS static inline __attribute__((always_inline))

enum { UNIT_AHEAD = 4096 };

/* 64 bytes of a unit, and a hint that what lies further on comes soon. */
ALWAYS vi unit_words(const uint8_t *p)
{
    __builtin_prefetch(p + UNIT_AHEAD);
    return vi_load(p);
}

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

ALWAYS void put_codes(uint8_t *codes, int quad, vi v)
{
    vi_store(codes + 64 * quad, v);
}

/* Four words of halves: columns 0 .. 15 low, 16 .. 31 high. */
ALWAYS void put_halves(const uint8_t *w, uint8_t *codes)
{
    for (int q = 0; q < 4; q++) {
        vi v = unit_words(w + 64 * q);
        put_codes(codes, q, low_halves(v));
        put_codes(codes, 4 + q, high_halves(v));
    }
}

/* ---- blocks of 32, two a unit ---- */

static void unpack_q4_0(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l, (void)bias;
    for (int b = 0; b < 2; b++) {
        put_halves(unit + 256 * b, codes + 512 * b);
        v_store(scale + 16 * b, v_load_f16((const uint16_t *)(unit + 512 + 32 * b)));
    }
}

static void unpack_q4_1(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l;
    for (int b = 0; b < 2; b++) {
        put_halves(unit + 256 * b, codes + 512 * b);
        v_store(scale + 16 * b, v_load_f16((const uint16_t *)(unit + 512 + 32 * b)));
        v_store(bias + 16 * b, v_load_f16((const uint16_t *)(unit + 576 + 32 * b)));
    }
}

ALWAYS void put_fives(const uint8_t *w, vi high, uint8_t *codes)
{
    for (int q = 0; q < 4; q++) {
        vi v = unit_words(w + 64 * q);
        put_codes(codes, q, vi_or(low_halves(v), vi_shl(spread_bits(high, q), 4)));
        put_codes(codes, 4 + q, vi_or(high_halves(v), vi_shl(spread_bits(high, 4 + q), 4)));
    }
}

static void unpack_q5_0(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l, (void)bias;
    for (int b = 0; b < 2; b++) {
        put_fives(unit + 256 * b, unit_words(unit + 512 + 64 * b), codes + 512 * b);
        v_store(scale + 16 * b, v_load_f16((const uint16_t *)(unit + 640 + 32 * b)));
    }
}

static void unpack_q5_1(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l;
    for (int b = 0; b < 2; b++) {
        put_fives(unit + 256 * b, unit_words(unit + 512 + 64 * b), codes + 512 * b);
        v_store(scale + 16 * b, v_load_f16((const uint16_t *)(unit + 640 + 32 * b)));
        v_store(bias + 16 * b, v_load_f16((const uint16_t *)(unit + 704 + 32 * b)));
    }
}

static void unpack_q8_0(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l, (void)bias;
    for (int q = 0; q < 16; q++)
        put_codes(codes, q, vi_xor(unit_words(unit + 64 * q), vi_set(0x80808080u)));
    v_store(scale, v_load_f16((const uint16_t *)(unit + 1024)));
    v_store(scale + 16, v_load_f16((const uint16_t *)(unit + 1056)));
}

/* The values of IQ4_NL's and IQ4_XS's codes, plus 128. */
static const uint8_t iq4_values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                       129, 141, 153, 166, 181, 197, 217, 241};

/* Twice the values of FP4 (E2M1), plus 12. */
static const uint8_t fp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

ALWAYS void put_looked_up(const uint8_t *w, const uint8_t *table, uint8_t *codes)
{
    for (int q = 0; q < 4; q++) {
        vi v = unit_words(w + 64 * q);
        put_codes(codes, q, vi_look_up(table, low_halves(v)));
        put_codes(codes, 4 + q, vi_look_up(table, high_halves(v)));
    }
}

static void unpack_iq4_nl(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                          float *bias)
{
    (void)l, (void)bias;
    for (int b = 0; b < 2; b++) {
        put_looked_up(unit + 256 * b, iq4_values, codes + 512 * b);
        v_store(scale + 16 * b, v_load_f16((const uint16_t *)(unit + 512 + 32 * b)));
    }
}

/* The scale is 2^(e - 127), halved since the codes are doubled; below e = 2 that is denormal. */
static void unpack_mxfp4(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                         float *bias)
{
    (void)l, (void)bias;
    for (int b = 0; b < 4; b++) {
        put_looked_up(unit + 256 * b, fp4_values, codes + 512 * b);
        vi e = vi_bytes(unit + 1024 + 16 * b);
        vi normal = vi_shl(vi_sub(e, vi_set(1)), 23);
        vf small =
            v_pick(vi_eq(e, vi_set(0)), v_float(vi_set(0x00200000u)), v_float(vi_set(0x00400000u)));
        vm is_small = v_lt(v_of_int(e), v_set(2.0f));
        v_store(scale + 16 * b, v_pick(is_small, small, v_float(normal)));
    }
}

/* ---- super-blocks of 256 ---- */

/* Scale and minimum j of the twelve bytes that Q4_K and Q5_K pack 8 + 8 six-bit numbers into. */
ALWAYS void packed_scales(vi w0, vi w1, vi w2, int j, vi *s, vi *m)
{
    int at = 8 * (j & 3);
    if (j < 4) {
        *s = vi_and(vi_shr(w0, at), vi_set(63));
        *m = vi_and(vi_shr(w1, at), vi_set(63));
    } else {
        *s = vi_or(vi_and(vi_shr(w2, at), vi_set(15)),
                   vi_shl(vi_and(vi_shr(w0, at + 6), vi_set(3)), 4));
        *m = vi_or(vi_and(vi_shr(w2, at + 4), vi_set(15)),
                   vi_shl(vi_and(vi_shr(w1, at + 6), vi_set(3)), 4));
    }
}

ALWAYS void put_packed_scales(const uint8_t *w, float *scale, float *bias)
{
    vi w0 = vi_load(w), w1 = vi_load(w + 64), w2 = vi_load(w + 128), s, m;
    vf d = v_load_f16((const uint16_t *)(w + 192)), min = v_load_f16((const uint16_t *)(w + 224));
    min = v_sub(v_set(-0.0f), min);
    for (int j = 0; j < 8; j++) {
        packed_scales(w0, w1, w2, j, &s, &m);
        v_store(scale + 16 * j, v_mul(d, v_of_int(s)));
        v_store(bias + 16 * j, v_mul(min, v_of_int(m)));
    }
}

static void unpack_q4_k(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l;
    for (int j = 0; j < 4; j++) /* 64 columns */
        for (int q = 0; q < 8; q++) {
            vi v = unit_words(unit + 512 * j + 64 * q);
            put_codes(codes, 16 * j + q, low_halves(v));
            put_codes(codes, 16 * j + 8 + q, high_halves(v));
        }
    put_packed_scales(unit + 2048, scale, bias);
}

static void unpack_q5_k(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l;
    for (int q = 0; q < 8; q++) {
        vi high = vi_load(unit + 2048 + 64 * q);
        for (int j = 0; j < 4; j++) {
            vi v = unit_words(unit + 512 * j + 64 * q);
            put_codes(codes, 16 * j + q, vi_or(low_halves(v), vi_shl(one_bit(high, 2 * j), 4)));
            put_codes(codes, 16 * j + 8 + q,
                      vi_or(high_halves(v), vi_shl(one_bit(high, 2 * j + 1), 4)));
        }
    }
    put_packed_scales(unit + 2560, scale, bias);
}

static void unpack_q6_k(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l, (void)bias;
    for (int half = 0; half < 2; half++, codes += 2048) /* 128 columns */
        for (int q = 0; q < 8; q++) {
            vi a = unit_words(unit + 1024 * half + 64 * q),
               b = unit_words(unit + 1024 * half + 512 + 64 * q),
               high = unit_words(unit + 2048 + 512 * half + 64 * q);
            put_codes(codes, q, vi_or(low_halves(a), vi_shl(two_bits(high, 0), 4)));
            put_codes(codes, 8 + q, vi_or(low_halves(b), vi_shl(two_bits(high, 2), 4)));
            put_codes(codes, 16 + q, vi_or(high_halves(a), vi_shl(two_bits(high, 4), 4)));
            put_codes(codes, 24 + q, vi_or(high_halves(b), vi_shl(two_bits(high, 6), 4)));
        }
    vf d = v_load_f16((const uint16_t *)(unit + 3328));
    for (int j = 0; j < 16; j++) {
        vi s = vi_sar(vi_shl(vi_bytes(unit + 3072 + 16 * j), 24), 24);
        v_store(scale + 16 * j, v_mul(d, v_of_int(s)));
    }
}

static void unpack_q2_k(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l;
    for (int half = 0; half < 2; half++)
        for (int q = 0; q < 8; q++) {
            vi v = unit_words(unit + 512 * half + 64 * q);
            for (int j = 0; j < 4; j++)
                put_codes(codes, 32 * half + 8 * j + q, two_bits(v, 2 * j));
        }
    vf d = v_load_f16((const uint16_t *)(unit + 1280)),
       min = v_sub(v_set(-0.0f), v_load_f16((const uint16_t *)(unit + 1312)));
    for (int j = 0; j < 16; j++) {
        vi s = vi_bytes(unit + 1024 + 16 * j);
        v_store(scale + 16 * j, v_mul(d, v_of_int(vi_and(s, vi_set(15)))));
        v_store(bias + 16 * j, v_mul(min, v_of_int(vi_shr(s, 4))));
    }
}

static void unpack_q3_k(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l, (void)bias;
    for (int q = 0; q < 8; q++) {
        vi high = vi_load(unit + 1024 + 64 * q);
        for (int half = 0; half < 2; half++) {
            vi v = unit_words(unit + 512 * half + 64 * q);
            for (int j = 0; j < 4; j++)
                put_codes(codes, 32 * half + 8 * j + q,
                          vi_or(two_bits(v, 2 * j), vi_shl(one_bit(high, 4 * half + j), 2)));
        }
    }
    const uint8_t *at = unit + 1536;
    vi low[2] = {vi_load(at), vi_load(at + 64)}, high = vi_load(at + 128);
    vf d = v_load_f16((const uint16_t *)(at + 192));
    for (int j = 0; j < 16; j++) { /* low four bits in bytes 0 .. 7, high two in 8 .. 11 */
        vi s = vi_and(vi_shr(low[j / 4 % 2], 8 * (j % 4) + (j < 8 ? 0 : 4)), vi_set(15));
        vi t = vi_and(vi_shr(high, 8 * (j % 4) + 2 * (j / 4)), vi_set(3));
        s = vi_sub(vi_or(s, vi_shl(t, 4)), vi_set(32));
        v_store(scale + 16 * j, v_mul(d, v_of_int(s)));
    }
}

static void unpack_iq4_xs(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                          float *bias)
{
    (void)l, (void)bias;
    for (int j = 0; j < 8; j++)
        put_looked_up(unit + 256 * j, iq4_values, codes + 512 * j);
    vi low = vi_load(unit + 2048), high = vi_halves(unit + 2112);
    vf d = v_load_f16((const uint16_t *)(unit + 2144));
    for (int j = 0; j < 8; j++) {
        vi s = vi_or(vi_and(vi_shr(low, 4 * j), vi_set(15)),
                     vi_shl(vi_and(vi_shr(high, 2 * j), vi_set(3)), 4));
        v_store(scale + 16 * j, v_mul(d, v_of_int(vi_sub(s, vi_set(32)))));
    }
}

/* ---- ternary ---- */

/* 32 bytes of four fields: columns i, i + 32, i + 64, i + 96. */
ALWAYS void put_quarters(const uint8_t *w, uint8_t *codes, int first, int step)
{
    for (int q = 0; q < 8; q++) {
        vi v = unit_words(w + 64 * q);
        for (int j = 0; j < 4; j++)
            put_codes(codes, 8 * j + q, two_bits(v, first + step * j));
    }
}

static void unpack_tq2_0(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                         float *bias)
{
    (void)l, (void)bias;
    put_quarters(unit, codes, 0, 2);
    put_quarters(unit + 512, codes + 2048, 0, 2);
    vf d = v_load_f16((const uint16_t *)(unit + 1024));
    for (int j = 0; j < 4; j++)
        v_store(scale + 16 * j, d);
}

static void unpack_i2_s(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                        float *bias)
{
    (void)l, (void)bias;
    put_quarters(unit, codes, 6, -2);
    v_store(scale, v_set(1.0f));
    v_store(scale + 16, v_set(1.0f));
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

static void unpack_tq1_0(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                         float *bias)
{
    (void)l, (void)bias;
    for (int q = 0; q < 8; q++) { /* 32 bytes of five digits */
        vi v = unit_words(unit + 64 * q);
        for (int n = 0; n < 5; n++)
            put_codes(codes, 8 * n + q, base3_digit(v, n));
    }
    for (int q = 0; q < 4; q++) { /* 16 bytes of five */
        vi v = unit_words(unit + 512 + 64 * q);
        for (int n = 0; n < 5; n++)
            put_codes(codes, 40 + 4 * n + q, base3_digit(v, n));
    }
    vi v = unit_words(unit + 768); /* 4 bytes of four */
    for (int n = 0; n < 4; n++)
        put_codes(codes, 60 + n, base3_digit(v, n));
    vf d = v_load_f16((const uint16_t *)(unit + 832));
    for (int j = 0; j < 4; j++)
        v_store(scale + 16 * j, d);
}

/* ---- affine: planes of 32 codes, then scales, then biases ---- */

ALWAYS void put_planes(int bits, const uint8_t *w, uint8_t *codes)
{
    vi two[2], one = vi_set(0);
    int at = bits & 4 ? 4 : 0, low = at;
    if (bits & 2) {
        two[0] = unit_words(w + 64 * at);
        two[1] = unit_words(w + 64 * at + 64);
        at += 2;
    }
    if (bits & 1)
        one = unit_words(w + 64 * at);
    for (int q = 0; q < 8; q++) {
        vi c = vi_set(0);
        if (bits & 4) {
            vi v = unit_words(w + 64 * (q % 4));
            c = q < 4 ? low_halves(v) : high_halves(v);
        }
        if (bits & 2) {
            vi t = two_bits(two[q % 2], q / 2 * 2);
            c = low ? vi_or(c, vi_shl(t, 4)) : t;
        }
        if (bits & 1)
            c = vi_or(c, vi_shl(one_bit(one, q), bits - 1));
        put_codes(codes, q, c);
    }
}

ALWAYS vf typed_scale(int type, const uint8_t *p)
{
    if (type == QN__F32)
        return v_load((const float *)p);
    return type == QN__F16 ? v_load_f16((const uint16_t *)p) : v_load_bf16((const uint16_t *)p);
}

/* bits and type are constants at every call. */
ALWAYS void unpack_affine(int bits, int type, const qn__layout *l, const uint8_t *unit,
                          uint8_t *codes, float *scale, float *bias)
{
    int group = l->columns / l->blocks, lane_bytes = type == QN__F32 ? 64 : 32;
    for (int c = 0; c < l->columns / 32; c++, unit += 64 * bits, codes += 512) {
        if (bits == 8)
            for (int q = 0; q < 8; q++)
                put_codes(codes, q, unit_words(unit + 64 * q));
        else
            put_planes(bits, unit, codes);
    }
    for (int s = 0; s < l->columns / l->step; s++) {
        int at = s * l->step / group;
        v_store(scale + 16 * s, typed_scale(type, unit + at * lane_bytes));
        v_store(bias + 16 * s, typed_scale(type, unit + (l->blocks + at) * lane_bytes));
    }
}

#define AFFINE_UNPACK(bits, type)                                                                  \
    static void unpack_affine##bits##_##type(const qn__layout *l, const uint8_t *unit,             \
                                             uint8_t *codes, float *scale, float *bias)            \
    {                                                                                              \
        unpack_affine(bits, QN__##type, l, unit, codes, scale, bias);                              \
    }
#define AFFINE_UNPACKS(bits)                                                                       \
    AFFINE_UNPACK(bits, F32) AFFINE_UNPACK(bits, F16) AFFINE_UNPACK(bits, BF16)
AFFINE_UNPACKS(2)
AFFINE_UNPACKS(3)
AFFINE_UNPACKS(4)
AFFINE_UNPACKS(5)
AFFINE_UNPACKS(6)
AFFINE_UNPACKS(8)

static void fill_vec_units(qn__cpu_kernels *t)
{
#define UNPACK(encoding, function) t->unpack[QN__UNITS_OF(QN__##encoding)] = function
    UNPACK(Q4_0, unpack_q4_0);
    UNPACK(Q4_1, unpack_q4_1);
    UNPACK(Q5_0, unpack_q5_0);
    UNPACK(Q5_1, unpack_q5_1);
    UNPACK(Q8_0, unpack_q8_0);
    UNPACK(Q2_K, unpack_q2_k);
    UNPACK(Q3_K, unpack_q3_k);
    UNPACK(Q4_K, unpack_q4_k);
    UNPACK(Q5_K, unpack_q5_k);
    UNPACK(Q6_K, unpack_q6_k);
    UNPACK(IQ4_NL, unpack_iq4_nl);
    UNPACK(IQ4_XS, unpack_iq4_xs);
    UNPACK(TQ1_0, unpack_tq1_0);
    UNPACK(TQ2_0, unpack_tq2_0);
    UNPACK(MXFP4, unpack_mxfp4);
    UNPACK(I2_S, unpack_i2_s);
#define UNPACK_AFFINE(bits, group)                                                                 \
    UNPACK(AFFINE##bits##_G##group##_F32, unpack_affine##bits##_F32);                              \
    UNPACK(AFFINE##bits##_G##group##_F16, unpack_affine##bits##_F16);                              \
    UNPACK(AFFINE##bits##_G##group##_BF16, unpack_affine##bits##_BF16);
    QN__AFFINE_WIDTHS(UNPACK_AFFINE)
#undef UNPACK_AFFINE
#undef UNPACK
}
