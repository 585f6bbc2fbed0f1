/* SPDX-License-Identifier: Apache-2.0
 *
 * The OCP's MXFP4 as GGUF has it: a byte that is the exponent of a power of two, then 16 bytes with
 * 32 values of E2M1, in the order of q4_0. https://www.opencompute.org/documents/
 * ocp-microscaling-formats-mx-v1-0-spec-final-pdf
 */
#include "quant/codecs.h"

/* E2M1, doubled so that they are integers; codes from 8 are negative. */
static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2^(e - 128), half of what the byte stands for. */
static float half_scale(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

void qn__decode_mxfp4(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += 32) {
        float scale = half_scale(b[0]);
        for (int j = 0; j < 16; j++) {
            values[j] = scale * (float)doubled[b[1 + j] & 15];
            values[j + 16] = scale * (float)doubled[b[1 + j] >> 4];
        }
    }
}
