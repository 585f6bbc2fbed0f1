/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages as f32, over vec_*.h: keys transposed as in the cache, [64 / 16][d][16], values [64][dv16].
 * What attend.inl reads of a page that is neither f32 nor bf16, and of a bf16 one with many rows.
 */

enum { PAGES_PANEL = 128 * 16 }; /* floats of a unit, at most */

static inline vf pages_load(qn__cpu_type type, const uint16_t *p)
{
    return type == QN__CPU_BF16 ? v_load_bf16(p) : v_load_f16(p);
}

static inline float pages_element(qn__cpu_type type, uint16_t h)
{
    return type == QN__CPU_BF16 ? qn__cpu_f32_of_bf16(h) : qn__cpu_f32_of_f16(h);
}

/* Groups j0 .. j1 - 1. */
static void widen_keys(const qn__cpu_pages *p, const void *page, size_t d, size_t j0, size_t j1,
                       float *to)
{
    if (!p->layout) {
        for (size_t i = j0 * d; i < j1 * d; i++)
            v_store(to + 16 * i, pages_load(p->type, (const uint16_t *)page + 16 * i));
        return;
    }
    size_t columns = p->layout->columns;
    for (size_t j = j0; j < j1; j++) {
        size_t whole = d / columns, rest = d % columns;
        float *group = to + j * d * 16, panel[PAGES_PANEL];
        widen_panel(p->layout, p->unpack, page, d, j, 0, whole, group);
        if (rest) {
            widen_panel(p->layout, p->unpack, page, d, j, whole, 1, panel);
            memcpy(group + whole * columns * 16, panel, rest * 16 * sizeof *panel);
        }
    }
}

/* Rows s0 .. s1 - 1 of a unit's columns from i on, from its panel. */
static void turn_panel(const float *panel, size_t columns, size_t s0, size_t s1, float *to,
                       size_t ld)
{
    for (size_t s = s0; s < s1; s++)
        for (size_t i = 0; i < columns; i++)
            to[s * ld + i] = panel[16 * i + s % 16];
}

/* Rows s0 .. s1 - 1. */
static void widen_values(const qn__cpu_pages *p, const void *page, size_t d, size_t ld, size_t s0,
                         size_t s1, float *to)
{
    if (!p->layout) {
        const uint16_t *h = page;
        for (size_t s = s0; s < s1; s++) {
            size_t i = 0;
            for (; i + 16 <= d; i += 16)
                v_store(to + s * ld + i, pages_load(p->type, h + s * d + i));
            for (; i < d; i++)
                to[s * ld + i] = pages_element(p->type, h[s * d + i]);
        }
        return;
    }
    size_t columns = p->layout->columns;
    for (size_t s = s0; s < s1; s = s / 16 * 16 + 16) {
        size_t end = s / 16 * 16 + 16 < s1 ? s / 16 * 16 + 16 : s1;
        for (size_t i = 0; i < d; i += columns) {
            float panel[PAGES_PANEL];
            widen_panel(p->layout, p->unpack, page, d, s / 16, i / columns, 1, panel);
            turn_panel(panel, d - i < columns ? d - i : columns, s, end, to + i, ld);
        }
    }
}
