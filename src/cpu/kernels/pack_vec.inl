/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing weights over vec_*.h, for tiers without a transpose of sixteen registers: sixteen units
 * (one f32, or a pair of bf16 neighbours in k) of each row of a panel are converted in lanes, and
 * the square of 16 x 16 units is turned by plain moves in the first cache. A cut inside a panel
 * writes its own rows only.
 */
#include <string.h>

/* Sixteen units of a source row of which `left` elements are left; zeros behind. */
static void pack_source(qn__cpu_type type, qn__cpu_type src, const char *row, size_t left,
                        uint32_t units[16])
{
    size_t size = src == QN__CPU_F32 ? 4 : 2, wide = type == QN__CPU_BF16 ? 2 : 1;
    char padded[32 * 4];
    if (left < 16 * wide) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, row, left * size);
        row = padded;
    }
    if (type == QN__CPU_BF16 && src == QN__CPU_BF16) { /* as stored, NaN payloads too */
        memcpy(units, row, 64);
        return;
    }
    for (size_t i = 0; i < wide; i++, row += 16 * size) {
        vf v;
        if (src == QN__CPU_F32)
            v = v_load((const float *)row);
        else if (src == QN__CPU_F16)
            v = v_load_f16((const uint16_t *)row);
        else
            v = v_load_bf16((const uint16_t *)row);
        if (type == QN__CPU_F32)
            v_store((float *)units, v);
        else
            v_store_bf16((uint16_t *)units + 16 * i, v);
    }
}

/* Rows first .. last - 1 of one panel from `from`, and zeros up to `end`. */
static void pack_panel_vec(qn__cpu_type type, uint32_t *panel, size_t k, qn__cpu_type src,
                           const char *from, size_t row_bytes, size_t first, size_t last,
                           size_t end)
{
    size_t wide = type == QN__CPU_BF16 ? 2 : 1, units = (k + wide - 1) / wide,
           unit_bytes = wide * (src == QN__CPU_F32 ? 4 : 2);
    uint32_t square[16][16] = {{0}}; /* [row][unit] */
    for (size_t u = 0; u < units; u += 16, panel += 256) {
        for (size_t j = first; j < last; j++)
            pack_source(type, src, from + (j - first) * row_bytes + u * unit_bytes, k - u * wide,
                        square[j]);
        size_t n = units - u < 16 ? units - u : 16;
        if (first == 0 && end == 16 && n == 16) {
            for (size_t i = 0; i < 16; i++)
                for (size_t j = 0; j < 16; j++)
                    panel[16 * i + j] = square[j][i];
            continue;
        }
        for (size_t i = 0; i < n; i++)
            for (size_t j = first; j < end; j++)
                panel[16 * i + j] = square[j][i];
    }
}

static void pack_rows_vec(qn__cpu_type type, void *w, size_t n, size_t k, qn__cpu_type src,
                          const void *from, size_t ld, size_t n0, size_t n1)
{
    size_t row_bytes = ld * (src == QN__CPU_F32 ? 4 : 2);
    for (size_t row = n0, next; row < n1; row = next) {
        size_t first = row / QN__CPU_PANEL * QN__CPU_PANEL;
        next = n1 - first < QN__CPU_PANEL ? n1 : first + QN__CPU_PANEL;
        char *panel = (char *)w + row / QN__CPU_PANEL * qn__cpu_panel_bytes(type, k);
        size_t end = next == n ? QN__CPU_PANEL : next - first; /* the last row brings the padding */
        pack_panel_vec(type, (uint32_t *)panel, k, src, (const char *)from + (row - n0) * row_bytes,
                       row_bytes, row - first, next - first, end);
    }
}

static void fill_vec_pack(qn__cpu_kernels *t)
{
    t->pack_rows = pack_rows_vec;
}
