/* SPDX-License-Identifier: Apache-2.0
 *
 * A fused chain ready to run: the IR program with registers assigned, and its operands' axes
 * merged.
 */
#ifndef QN_CPU_TAPE_H
#define QN_CPU_TAPE_H

#include "cpu/cpu.h"

enum { QN__TILE = 256, QN__TILE_BYTES = QN__TILE * 8 };

/* How an input's elements lie along a tile. */
typedef enum qn__tape_access {
    QN__DIRECT, /* adjacent: read in place */
    QN__SPLAT,  /* one element for the whole tile */
    QN__GATHER  /* anything else: copied element by element */
} qn__tape_access;

typedef struct qn__tape_input {
    uint8_t access;
    uint8_t size;                /* bytes an element */
    int64_t stride[QN_MAX_NDIM]; /* over the merged axes, in bytes */
} qn__tape_input;

typedef struct qn__tape_instruction {
    qn__ir_instruction code;
    uint16_t reg, a, b, c; /* registers */
    uint8_t from;          /* the first operand's type */
} qn__tape_instruction;

struct qn__cpu_tape {
    int n_axes; /* merged; the last is the tile's */
    int64_t shape[QN_MAX_NDIM];
    int64_t inner_tiles; /* tiles along the last axis */
    int n_inputs, n_code, n_registers;
    uint8_t out_size;
    uint16_t result; /* register */
    qn__tape_input input[QN__IR_INPUTS];
    qn__tape_instruction code[];
};

#endif
