/* SPDX-License-Identifier: Apache-2.0 */
/* What those who multiply tiles share. */
#ifndef QN_CPU_TILES_AMX_H
#define QN_CPU_TILES_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* The tile instructions' macros do not tell GCC what they read. */
#define STORES_DONE() __asm__ volatile("" ::: "memory")

/* As ldtilecfg wants it. */
typedef struct tile_shape {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shape;

#endif
