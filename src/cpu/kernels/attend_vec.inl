/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of attend.inl over vec_*.h: 4 rows x 16 lanes, bf16 widened on the way in. Every
 * chain is the one that attend.inl states.
 */

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS vf cache_load_vec(int bf16, const void *p, size_t i)
{
    return bf16 ? v_load_bf16((const uint16_t *)p + i) : v_load((const float *)p + i);
}

/* Sixteen keys; rows is a constant at every call, dead rows repeat the last. */
ALWAYS void scores_vec(int bf16, int rows, const float *const *q, size_t d, const void *k, size_t j,
                       float *const *p)
{
    const float *q0 = q[0], *q1 = q[rows > 1 ? 1 : 0], *q2 = q[rows > 2 ? 2 : 0],
                *q3 = q[rows > 3 ? 3 : 0];
    vf c0 = v_set(0.0f), c1 = c0, c2 = c0, c3 = c0;
    for (size_t i = 0; i < d; i++) {
        vf x = cache_load_vec(bf16, k, (j * d + i) * 16);
        c0 = v_fma(v_set(q0[i]), x, c0);
        if (rows > 1)
            c1 = v_fma(v_set(q1[i]), x, c1);
        if (rows > 2)
            c2 = v_fma(v_set(q2[i]), x, c2);
        if (rows > 3)
            c3 = v_fma(v_set(q3[i]), x, c3);
    }
    v_store(p[0] + 16 * j, c0);
    if (rows > 1)
        v_store(p[1] + 16 * j, c1);
    if (rows > 2)
        v_store(p[2] + 16 * j, c2);
    if (rows > 3)
        v_store(p[3] + 16 * j, c3);
}

/* Sixteen dimensions from i on (acc is padded); lanes past n of v do not exist. */
ALWAYS void values_vec(int bf16, int rows, float *const *acc, const float *fade,
                       const float *const *p, const void *v, size_t ldv, size_t s0, size_t s1,
                       size_t i, size_t n)
{
    vf c[4];
    for (int r = 0; r < rows; r++)
        c[r] = v_mul(v_set(fade[r]), v_load(acc[r] + i));
    vf c0 = c[0], c1 = c[rows > 1 ? 1 : 0], c2 = c[rows > 2 ? 2 : 0], c3 = c[rows > 3 ? 3 : 0];
    for (size_t s = s0; s < s1; s++) {
        vf x;
        if (n >= 16) {
            x = cache_load_vec(bf16, v, s * ldv + i);
        } else if (!bf16) {
            x = v_load_n((const float *)v + s * ldv + i, n, 0.0f);
        } else {
            uint16_t h[16] = {0};
            memcpy(h, (const uint16_t *)v + s * ldv + i, 2 * n);
            x = v_load_bf16(h);
        }
        c0 = v_fma(v_set(p[0][s]), x, c0);
        if (rows > 1)
            c1 = v_fma(v_set(p[1][s]), x, c1);
        if (rows > 2)
            c2 = v_fma(v_set(p[2][s]), x, c2);
        if (rows > 3)
            c3 = v_fma(v_set(p[3][s]), x, c3);
    }
    v_store(acc[0] + i, c0);
    if (rows > 1)
        v_store(acc[1] + i, c1);
    if (rows > 2)
        v_store(acc[2] + i, c2);
    if (rows > 3)
        v_store(acc[3] + i, c3);
}

ALWAYS void scores_groups_vec(int bf16, int rows, const float *const *q, size_t d, const void *k,
                              size_t j0, size_t j1, float *const *p)
{
    for (size_t j = j0; j < j1; j++)
        scores_vec(bf16, rows, q, d, k, j, p);
}

ALWAYS void values_parts_vec(int bf16, int rows, float *const *acc, const float *fade,
                             const float *const *p, const void *v, size_t ldv, size_t s0, size_t s1,
                             size_t dv)
{
    for (size_t i = 0; i < dv; i += 16)
        values_vec(bf16, rows, acc, fade, p, v, ldv, s0, s1, i, dv - i);
}

#define SHAPES(F) F(1) F(2) F(3) F(4)

static void attend_scores(int rows, qn__cpu_type type, const float *const *q, size_t d,
                          const void *k, size_t j0, size_t j1, float *const *p, const void *ahead)
{
    (void)ahead;
    switch (rows + (type == QN__CPU_BF16 ? 4 : 0)) {
#define SHAPE(r)                                                                                   \
    case r: scores_groups_vec(0, r, q, d, k, j0, j1, p); break;                                    \
    case r + 4: scores_groups_vec(1, r, q, d, k, j0, j1, p); break;
        SHAPES(SHAPE)
#undef SHAPE
    default: break;
    }
}

static void attend_values(int rows, qn__cpu_type type, float *const *acc, const float *fade,
                          const float *const *p, const void *v, size_t ldv, size_t s0, size_t s1,
                          size_t dv, const void *ahead)
{
    (void)ahead;
    switch (rows + (type == QN__CPU_BF16 ? 4 : 0)) {
#define SHAPE(r)                                                                                   \
    case r: values_parts_vec(0, r, acc, fade, p, v, ldv, s0, s1, dv); break;                       \
    case r + 4: values_parts_vec(1, r, acc, fade, p, v, ldv, s0, s1, dv); break;
        SHAPES(SHAPE)
#undef SHAPE
    default: break;
    }
}
