/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear by exact products of bytes, after int8.inl: one panel and up to four rows, or eight
 * straight from units.
 *
 * With many rows of x the codes of a panel lie unpacked in the first cache. With few they never
 * leave the registers: each quad is taken from its unit and meets all rows at once, so reading the
 * weight and multiplying overlap.
 */

/* Loops whose steps differ in constants alone. */
#ifdef VEC_IN_LOOPS
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

#define INT8_EACH_ROW(F) F(0) F(1) F(2) F(3)
#define INT8_ALL_ROWS(F) INT8_EACH_ROW(F) F(4) F(5) F(6) F(7)

/* Where quad q of row r lies behind x, where rows 4 .. 7 are the next block, `next` bytes on. */
#define INT8_AT(q, r)                                                                              \
    (r < 4 ? (size_t)(4 * ((q) * (rows < 4 ? rows : 4) + r))                                       \
           : next + (size_t)(16 * (q) + 4 * r - 16))

/* Where codes come from: an encoding's units, or these. */
enum { INT8_STORED = QN__ENCODING_COUNT, INT8_GROUPS /* + bits */ };

ALWAYS vi int8_code(int from, const uint8_t *at, int quad)
{
    if (from == INT8_STORED)
        return vi_load(at + 64 * quad);
    return from > INT8_GROUPS ? group_code(from - INT8_GROUPS, at, quad)
                              : unit_code(from, at, quad);
}

/* How many quads' products to sum in 16 bits (VEC_PAIRS): a power of two, a step's quads at most.
 * 1: they are summed in 32; 0: codes above 127. */
ALWAYS int int8_run(int quads, int top)
{
    int run = 1;
#ifdef VEC_PAIRS
    run = quads < 8 ? quads : 8;
    while (run > 1 && run * top * 2 * 127 > INT16_MAX)
        run /= 2;
#else
    (void)quads;
#endif
    return top > 127 ? 0 : run;
}

/* Adds the products with quads `first` .. `first` + quads - 1 to c. Integer sums are exact, so
 * their order is free. */
ALWAYS void int8_dots(int rows, int run, int from, const uint8_t *at, int first, int quads,
                      const uint8_t *x, size_t next, vi *c)
{
#define BEGIN(r) vi c##r = c[r], d##r = vi_set(0);
    INT8_ALL_ROWS(BEGIN)
#undef BEGIN
#ifdef VEC_PAIRS
    UNROLL
    for (int q = 0; run > 1 && q < quads; q += run) {
#define CLEAR(r) vi h##r = vi_set(0);
        INT8_ALL_ROWS(CLEAR)
#undef CLEAR
        UNROLL
        for (int i = q; i < q + run; i++) {
            vi w = int8_code(from, at, first + i);
#define DOT(r)                                                                                     \
    if (rows > r)                                                                                  \
        h##r = vi_add_pairs(h##r, vi_pairs(w, x + INT8_AT(i, r)));
            INT8_ALL_ROWS(DOT)
#undef DOT
        }
#define SUM(r)                                                                                     \
    if (rows > r)                                                                                  \
        c##r = vi_sum_pairs(c##r, h##r);
        INT8_ALL_ROWS(SUM)
#undef SUM
    }
#endif
    UNROLL
    for (int q = 0; run < 2 && q < quads; q++) {
        vi w = int8_code(from, at, first + q);
#ifdef VEC_SIGNED
        if (!run)
            w = vi_xor(w, vi_set(0x80808080u));
#define DOT_OF(c, r)                                                                               \
    c = run ? vi_dot(c, w, x + INT8_AT(q, r)) : vi_dot_signed(c, w, x + INT8_AT(q, r))
#else
#define DOT_OF(c, r) c = vi_dot(c, w, x + INT8_AT(q, r))
#endif
            /* Two chains while rows are few: one would wait for itself. */
#define DOT(r)                                                                                     \
    if (rows > r) {                                                                                \
        if (rows < 3 && q % 2)                                                                     \
            DOT_OF(d##r, r);                                                                       \
        else                                                                                       \
            DOT_OF(c##r, r);                                                                       \
    }
        INT8_ALL_ROWS(DOT)
#undef DOT
#undef DOT_OF
    }
#define END(r)                                                                                     \
    if (rows > r)                                                                                  \
        c[r] = rows < 3 ? vi_add(c##r, d##r) : c##r;
    INT8_ALL_ROWS(END)
#undef END
}

/* Adds a step's sums to f. */
ALWAYS void int8_add(int rows, int biased, const vi *c, vf scale, vf bias, const uint8_t *meta,
                     size_t next, vf *f)
{
#define ADD(r)                                                                                     \
    if (rows > r) {                                                                                \
        float of_x[2];                                                                             \
        memcpy(of_x, meta + INT8_AT(0, r), 4);                                                     \
        memcpy(of_x + 1, meta + INT8_AT(2, r), 4);                                                 \
        f[r] = v_fma(v_of_int(c[r]), v_mul(scale, v_set(of_x[0])), f[r]);                          \
        if (biased)                                                                                \
            f[r] = v_fma(bias, v_set(of_x[1]), f[r]);                                              \
    }
    INT8_ALL_ROWS(ADD)
#undef ADD
}

/* What a step's sums begin with. */
ALWAYS void int8_begin(int rows, const uint8_t *meta, size_t next, vi *c)
{
#define BEGIN(r)                                                                                   \
    c[r] = vi_set(0);                                                                              \
    if (rows > r) {                                                                                \
        uint32_t begin;                                                                            \
        memcpy(&begin, meta + INT8_AT(1, r), 4);                                                   \
        c[r] = vi_set(begin);                                                                      \
    }
    INT8_ALL_ROWS(BEGIN)
#undef BEGIN
}

#define INT8_LOAD(r)                                                                               \
    f[r] = rows > r && a->resume ? v_load_n(a->y + (r)*a->ldy, a->last, 0.0f) : v_set(0.0f);
#define INT8_SAVE(r)                                                                               \
    if (rows > r)                                                                                  \
        v_store_n(a->y + (r)*a->ldy, a->last, f[r]);

/* ---- codes that were unpacked ---- */

/* A step is a number of these; of as many as sums of pairs hold, where it can be. */
enum { INT8_QUADS = 4, INT8_MORE_QUADS = 8 };

ALWAYS void int8_vec_tile(int rows, int quads, int run, int biased, const int8_args *a)
{
    const uint8_t *codes = a->codes, *x = a->x, *meta = a->meta;
    const float *scale = a->scale, *bias = a->bias;
    vf f[4];
    INT8_EACH_ROW(INT8_LOAD)
    for (size_t s = 0; s < a->steps; s++) {
        vi c[8];
        int8_begin(rows, meta, 0, c);
        for (size_t q = 0; q < a->quads; q += (size_t)quads) {
            int8_dots(rows, run, INT8_STORED, codes, 0, quads, x, 0, c);
            codes += 64 * quads;
            x += 4 * quads * rows;
        }
        vf of_w = v_load(scale);
        int8_add(rows, biased, c, of_w, biased ? v_load(bias) : of_w, meta, 0, f);
        meta += 12 * rows;
        scale += 16;
        bias += 16;
    }
    INT8_EACH_ROW(INT8_SAVE)
}

ALWAYS void int8_vec_rows(int quads, int run, int biased, size_t rows, const int8_args *a)
{
    switch (rows) {
#define SHAPE(r)                                                                                   \
    case r + 1: int8_vec_tile(r + 1, quads, run, biased, a); break;
        INT8_EACH_ROW(SHAPE)
#undef SHAPE
    default: break;
    }
}

static void int8_vec(size_t rows, size_t panels, const int8_args *a)
{
    (void)panels;
    int more = a->quads % INT8_MORE_QUADS == 0, run = int8_run(INT8_QUADS, a->top);
    if (more && int8_run(INT8_MORE_QUADS, a->top) > INT8_QUADS)
        run = INT8_MORE_QUADS;
    switch (run * 2 + a->biased) {
#define RUN(quads, n)                                                                              \
    case 2 * n: int8_vec_rows(quads, n, 0, rows, a); break;                                        \
    case 2 * n + 1: int8_vec_rows(quads, n, 1, rows, a); break;
        RUN(INT8_QUADS, 0)
        RUN(INT8_QUADS, 1)
#ifdef VEC_PAIRS
        RUN(INT8_QUADS, 2)
        RUN(INT8_QUADS, 4)
        RUN(INT8_MORE_QUADS, 8)
#endif
#undef RUN
    default: break;
    }
}

/* ---- straight from units ---- */

/* Two steps of Q4_K share their words, the low halves and the high. One row takes both at once, and
 * so reads a unit in the order in which it lies, each word once: hardware sees where that goes. */
ALWAYS int int8_together(int rows, int id)
{
#ifdef VEC_LINES
    return rows == 1 && id == QN__Q4_K ? 2 : 1;
#else
    (void)rows;
    (void)id;
    return 1;
#endif
}

/* Two steps of 8 quads, from quad `first` on, meet one row. */
ALWAYS void int8_two_steps(int id, const uint8_t *unit, int first, const uint8_t *x, vi *c0, vi *c1)
{
    UNROLL
    for (int q = 0; q < 8; q++) {
        *c0 = vi_dot(*c0, unit_code(id, unit, first + q), x + 4 * q);
        *c1 = vi_dot(*c1, unit_code(id, unit, first + 8 + q), x + 4 * (8 + q));
    }
}

/* a->codes: the first unit. */
ALWAYS void int8_blocks(int rows, int id, const int8_args *a)
{
    const qn__layout *l = &qn__layouts[id];
    const int quads = l->step / 4, steps = l->columns / l->step, run = int8_run(quads, l->top);
    const int lie = rows < 4 ? rows : 4; /* in a block of x */
    const int together = int8_together(rows, id);
    const uint8_t *unit = a->codes, *x = a->x, *meta = a->meta;
    vf f[8];
    INT8_ALL_ROWS(INT8_LOAD)
    for (size_t u = 0; u < a->units; u++) {
        UNROLL
        for (int s = 0; s < steps; s += together) {
            vi c[2][8];
            for (int t = 0; t < together; t++) {
                unit_ahead(l, unit, s + t, together > 1);
                int8_begin(rows, meta + 12 * lie * t, a->next_meta, c[t]);
            }
            if (together > 1)
                int8_two_steps(id, unit, s * quads, x, c[0], c[1]);
            else
                int8_dots(rows, run, id, unit, s * quads, quads, x, a->next_x, c[0]);
            for (int t = 0; t < together; t++) {
                vf scale = unit_scale(id, unit, s + t),
                   bias = l->biased ? unit_bias(id, unit, s + t) : scale;
                int8_add(rows, l->biased, c[t], scale, bias, meta, a->next_meta, f);
                x += 4 * quads * lie;
                meta += 12 * lie;
            }
        }
        unit += l->unit_bytes;
    }
    INT8_ALL_ROWS(INT8_SAVE)
}

/* Groups of 32, 64 or 128 columns; a step is one or two planes of 32. */
ALWAYS void int8_group_steps(int rows, int bits, int type, int zeroed, int quads,
                             const int8_args *a)
{
    const qn__layout *l = a->layout;
    const int run = int8_run(quads, (1 << bits) - 1), steps = l->columns / l->step;
    const int lie = rows < 4 ? rows : 4; /* in a block of x */
    const uint8_t *unit = a->codes, *x = a->x, *meta = a->meta;
    vf f[8];
    INT8_ALL_ROWS(INT8_LOAD)
    for (size_t u = 0; u < a->units; u++) {
        for (int s = 0; s < steps; s++) {
            unit_ahead(l, unit, s, 1);
            vf scale = group_scale(type, l, unit, s), bias = group_bias(type, zeroed, l, unit, s);
            vi c[8];
            int8_begin(rows, meta, a->next_meta, c);
            int8_dots(rows, run, INT8_GROUPS + bits, unit + 8 * bits * quads * s, 0, quads, x,
                      a->next_x, c);
            int8_add(rows, 1, c, scale, bias, meta, a->next_meta, f);
            x += 4 * quads * lie;
            meta += 12 * lie;
        }
        unit += l->unit_bytes;
    }
    INT8_ALL_ROWS(INT8_SAVE)
}

ALWAYS void int8_groups(int rows, int bits, int type, int zeroed, const int8_args *a)
{
    if (a->layout->step == 32)
        int8_group_steps(rows, bits, type, zeroed, 8, a);
    else
        int8_group_steps(rows, bits, type, zeroed, 16, a);
}

/* Formats that models come in, with 1, 2, 4 or 8 rows as far as the tier has registers; the rest is
 * unpacked first. */
#define INT8_DIRECT_BLOCKS(F)                                                                      \
    F(Q4_0) F(Q4_1) F(Q5_0) F(Q5_1) F(Q8_0) F(Q4_K) F(Q5_K) F(Q6_K) F(TQ2_0) F(I2_S) F(MXFP4)
#define INT8_DIRECT_GROUPS(F)                                                                      \
    F(AFFINE, 0, 4, F16)                                                                           \
    F(AFFINE, 0, 4, BF16)                                                                          \
    F(AFFINE, 0, 8, F16)                                                                           \
    F(AFFINE, 0, 8, BF16)                                                                          \
    F(ZEROED, 1, 4, F16)                                                                           \
    F(ZEROED, 1, 4, BF16)

#if INT8_DIRECT_ROWS
#define DIRECT_OF(name, function, ...)                                                             \
    static void name(size_t rows, const int8_args *a)                                              \
    {                                                                                              \
        if (rows == 1)                                                                             \
            function(1, __VA_ARGS__, a);                                                           \
        else if (INT8_DIRECT_ROWS > 1 && rows == 2)                                                \
            function(2, __VA_ARGS__, a);                                                           \
        else if (INT8_DIRECT_ROWS > 2 && rows == 4)                                                \
            function(4, __VA_ARGS__, a);                                                           \
        else if (INT8_DIRECT_ROWS > 4)                                                             \
            function(8, __VA_ARGS__, a);                                                           \
    }
#define DIRECT(id) DIRECT_OF(direct_##id, int8_blocks, QN__##id)
INT8_DIRECT_BLOCKS(DIRECT)
#undef DIRECT
#define DIRECT(KIND, zeroed, bits, type)                                                           \
    DIRECT_OF(direct_##KIND##bits##_##type, int8_groups, bits, QN__##type, zeroed)
INT8_DIRECT_GROUPS(DIRECT)
#undef DIRECT
#undef DIRECT_OF
#endif

/* NULL: the format is unpacked first. */
static int8_direct *int8_direct_of(const qn__layout *l)
{
#if INT8_DIRECT_ROWS
    static int8_direct *const direct[QN__ENCODING_COUNT] = {
#define DIRECT(id) [QN__##id] = direct_##id,
        INT8_DIRECT_BLOCKS(DIRECT)
#undef DIRECT
#define DIRECT(KIND, zeroed, bits, type)                                                           \
    [QN__##KIND##bits##_G32_##type] = direct_##KIND##bits##_##type,                                \
    [QN__##KIND##bits##_G64_##type] = direct_##KIND##bits##_##type,                                \
    [QN__##KIND##bits##_G128_##type] = direct_##KIND##bits##_##type,
            INT8_DIRECT_GROUPS(DIRECT)
#undef DIRECT
    };
    return direct[l->encoding - qn__encodings];
#else
    (void)l;
    return NULL;
#endif
}

static void fill_vec_int8(qn__cpu_kernels *t)
{
    fill_vec_units(t);
    t->prepare[QN__CPU_INT8] = prepare_int8;
    t->linear[QN__CPU_INT8] = linear_int8;
    t->cut[QN__CPU_INT8] = (qn__cpu_cut){INT8_ROWS, 3, 96};
    t->prepare[QN__CPU_INT8_ROWS] = prepare_int8_rows;
    t->linear[QN__CPU_INT8_ROWS] = linear_int8;
    t->cut[QN__CPU_INT8_ROWS] = t->cut[QN__CPU_INT8];
}
