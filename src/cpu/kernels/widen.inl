/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units as f32 panels, [column][16 rows], over vec_*.h: what products in f32 read of a weight that
 * is anything else. The values are those of the encoding, to the bit.
 */

/* Low halves of words as f16. Shifted into place a finite one is too small by 2^112. */
static inline vf widen_f16(vi w)
{
    vi magnitude = vi_shl(vi_and(w, vi_set(0x7fff)), 13);
    vf finite = v_mul(v_float(magnitude), v_float(vi_set(0x77800000u)));
    vf huge = v_float(vi_or(magnitude, vi_set(0x7f800000u)));
    vf f = v_pick(v_lt(v_float(magnitude), v_float(vi_set(0x0f800000u))), finite, huge);
    return v_float(vi_or(v_bits(f), vi_shl(vi_and(w, vi_set(0x8000)), 16)));
}

/* One unit: `columns` of the layout times 16 floats. */
static void widen_unit(const qn__layout *l, qn__cpu_unpack *unpack, const uint8_t *unit, float *to)
{
    if (!l->step) {
        vi w = vi_load(unit);
        bool half = l->columns == 2, f16 = l->encoding->ggml_type == 1;
        v_store(to, !half ? v_float(w) : f16 ? widen_f16(w) : v_float(vi_shl(w, 16)));
        if (half)
            v_store(to + 16,
                    f16 ? widen_f16(vi_shr(w, 16)) : v_float(vi_and(w, vi_set(0xffff0000u))));
        return;
    }
    _Alignas(64) uint8_t codes[256 * 16];
    _Alignas(64) float scale[16 * 16], bias[16 * 16];
    unpack(l, unit, codes, scale, bias);
    vi zero = vi_set(l->zero);
    for (int s = 0; s < l->columns / l->step; s++) {
        vf a = v_load(scale + 16 * s);
        for (int q = s * l->step / 4; q < (s + 1) * l->step / 4; q++) {
            vi w = vi_load(codes + 64 * q);
            for (int j = 0; j < 4; j++, to += 16) {
                vi code = vi_sub(vi_and(vi_shr(w, 8 * j), vi_set(255)), zero);
                vf v = v_mul(a, v_of_int(code));
                v_store(to, l->biased ? v_add(v, v_load(bias + 16 * s)) : v);
            }
        }
    }
}

/* `units` of panel p from `unit` on. */
static void widen_panel(const qn__layout *l, qn__cpu_unpack *unpack, const void *w, size_t k,
                        size_t p, size_t unit, size_t units, float *to)
{
    size_t along = (k + l->columns - 1) / l->columns;
    const uint8_t *from = (const uint8_t *)w + (p * along + unit) * l->unit_bytes;
    for (size_t u = 0; u < units; u++, from += l->unit_bytes, to += l->columns * 16)
        widen_unit(l, unpack, from, to);
}
