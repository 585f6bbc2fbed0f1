/* SPDX-License-Identifier: Apache-2.0
 *
 * The interpreter of fused chains: one instruction over one tile at a time, so that the cost of
 * dispatch is spread over 256 elements and the tile's registers stay in the first cache.
 *
 * Included once per tier with RUN_TAPE and the names below defined; the loops are plain C,
 * vectorised by the compiler for the tier. IEEE arithmetic without contraction gives the same bits
 * in every tier.
 */
#include "core/dtype.h"
#include "cpu/tape.h"

#include <math.h>

typedef struct frame {
    char *reg[QN__IR_LARGEST]; /* where each register's tile lies: scratch, or an input in place */
    char *scratch;
    const qn__cpu_kernels *table;
    size_t n;
} frame;

/* Comparisons, arithmetic and choice, for each type of C. */
#define ARITHMETIC arithmetic_u8
#define T          uint8_t
#define WIDE       uint32_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_u16
#define T          uint16_t
#define WIDE       uint32_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_u32
#define T          uint32_t
#define WIDE       uint32_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_u64
#define T          uint64_t
#define WIDE       uint64_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_i8
#define T          int8_t
#define WIDE       uint32_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_i16
#define T          int16_t
#define WIDE       uint32_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_i32
#define T          int32_t
#define WIDE       uint32_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_i64
#define T          int64_t
#define WIDE       uint64_t
#define IS_NAN(x)  false
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_f32
#define T          float
#define WIDE       float
#define IS_NAN(x)  ((x) != (x))
#include "cpu/interpret_any.inl"
#define ARITHMETIC arithmetic_f64
#define T          double
#define WIDE       double
#define IS_NAN(x)  ((x) != (x))
#include "cpu/interpret_any.inl"

/* What only floats have. */
#define FLOATS          floats_f32
#define T               float
#define EXACT(function) function##f
#include "cpu/interpret_float.inl"
#define FLOATS          floats_f64
#define T               double
#define EXACT(function) function
#include "cpu/interpret_float.inl"

static void floating(const qn__tape_instruction *t, const frame *f, char *to)
{
    (t->code.dtype == QN_F32 ? floats_f32 : floats_f64)(t, f, to);
}

/* What only integers have. */
#define WHOLE  whole_u8
#define POWER  whole_u8_power
#define T      uint8_t
#define WIDE   uint32_t
#define BITS   8
#define SIGNED false
#include "cpu/interpret_whole.inl"
#define WHOLE  whole_u16
#define POWER  whole_u16_power
#define T      uint16_t
#define WIDE   uint32_t
#define BITS   16
#define SIGNED false
#include "cpu/interpret_whole.inl"
#define WHOLE  whole_u32
#define POWER  whole_u32_power
#define T      uint32_t
#define WIDE   uint32_t
#define BITS   32
#define SIGNED false
#include "cpu/interpret_whole.inl"
#define WHOLE  whole_u64
#define POWER  whole_u64_power
#define T      uint64_t
#define WIDE   uint64_t
#define BITS   64
#define SIGNED false
#include "cpu/interpret_whole.inl"
#define WHOLE  whole_i8
#define POWER  whole_i8_power
#define T      int8_t
#define WIDE   uint32_t
#define BITS   8
#define SIGNED true
#include "cpu/interpret_whole.inl"
#define WHOLE  whole_i16
#define POWER  whole_i16_power
#define T      int16_t
#define WIDE   uint32_t
#define BITS   16
#define SIGNED true
#include "cpu/interpret_whole.inl"
#define WHOLE  whole_i32
#define POWER  whole_i32_power
#define T      int32_t
#define WIDE   uint32_t
#define BITS   32
#define SIGNED true
#include "cpu/interpret_whole.inl"
#define WHOLE  whole_i64
#define POWER  whole_i64_power
#define T      int64_t
#define WIDE   uint64_t
#define BITS   64
#define SIGNED true
#include "cpu/interpret_whole.inl"

static void whole(const qn__tape_instruction *t, const frame *f, char *to)
{
    switch (t->code.dtype) {
    case QN_U8: whole_u8(t, f, to); break;
    case QN_U16: whole_u16(t, f, to); break;
    case QN_U32: whole_u32(t, f, to); break;
    case QN_U64: whole_u64(t, f, to); break;
    case QN_I8: whole_i8(t, f, to); break;
    case QN_I16: whole_i16(t, f, to); break;
    case QN_I32: whole_i32(t, f, to); break;
    default: whole_i64(t, f, to); break;
    }
}

static void arithmetic(const qn__tape_instruction *t, const frame *f, qn_dtype type, char *to)
{
    switch (type) {
    case QN_BOOL:
    case QN_U8: arithmetic_u8(t, f, to); break;
    case QN_U16: arithmetic_u16(t, f, to); break;
    case QN_U32: arithmetic_u32(t, f, to); break;
    case QN_U64: arithmetic_u64(t, f, to); break;
    case QN_I8: arithmetic_i8(t, f, to); break;
    case QN_I16: arithmetic_i16(t, f, to); break;
    case QN_I32: arithmetic_i32(t, f, to); break;
    case QN_I64: arithmetic_i64(t, f, to); break;
    case QN_F32: arithmetic_f32(t, f, to); break;
    case QN_F64: arithmetic_f64(t, f, to); break;
    default: break;
    }
}

/* The functions that come from the kernel table. */
static int map_of(uint8_t op)
{
    switch (op) {
    case QN__IR_SQRT: return QN__CPU_SQRT;
    case QN__IR_RSQRT: return QN__CPU_RSQRT;
    case QN__IR_EXP: return QN__CPU_EXP;
    case QN__IR_LOG: return QN__CPU_LOG;
    case QN__IR_SIN: return QN__CPU_SIN;
    case QN__IR_COS: return QN__CPU_COS;
    case QN__IR_TANH: return QN__CPU_TANH;
    case QN__IR_ERF: return QN__CPU_ERF;
    case QN__IR_SIGMOID: return QN__CPU_SIGMOID;
    default: return -1;
    }
}

static void mapped(const qn__tape_instruction *t, const frame *f, int map, char *to)
{
    if (t->code.dtype == QN_F32)
        f->table->map[map]((float *)to, (const float *)f->reg[t->a], f->n);
    else
        f->table->map_f64[map]((double *)to, (const double *)f->reg[t->a], f->n);
}

static void power(const qn__tape_instruction *t, const frame *f, char *to)
{
    if (t->code.dtype == QN_F32)
        f->table->pow((float *)to, (const float *)f->reg[t->a], (const float *)f->reg[t->b], f->n);
    else
        f->table->pow_f64((double *)to, (const double *)f->reg[t->a], (const double *)f->reg[t->b],
                          f->n);
}

static void select_tile(const qn__tape_instruction *t, const frame *f, char *to)
{
    const uint8_t *c = (const uint8_t *)f->reg[t->a];
    const char *a = f->reg[t->b], *b = f->reg[t->c];
    size_t n = f->n;
    switch (qn__dtype_size((qn_dtype)t->code.dtype)) {
    case 1:
        for (size_t i = 0; i < n; i++)
            ((uint8_t *)to)[i] = c[i] ? ((const uint8_t *)a)[i] : ((const uint8_t *)b)[i];
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = c[i] ? ((const uint16_t *)a)[i] : ((const uint16_t *)b)[i];
        break;
    case 4:
        for (size_t i = 0; i < n; i++)
            ((uint32_t *)to)[i] = c[i] ? ((const uint32_t *)a)[i] : ((const uint32_t *)b)[i];
        break;
    default:
        for (size_t i = 0; i < n; i++)
            ((uint64_t *)to)[i] = c[i] ? ((const uint64_t *)a)[i] : ((const uint64_t *)b)[i];
        break;
    }
}

/* Bitwise on whole bytes: bool is 0 or 1. */
static void logic(const qn__tape_instruction *t, const frame *f, char *to)
{
    size_t bytes = f->n * qn__dtype_size((qn_dtype)t->code.dtype);
    const char *a = f->reg[t->a], *b = f->reg[t->b];
    if (t->code.op == QN__IR_AND)
        for (size_t i = 0; i < bytes; i++)
            to[i] = a[i] & b[i];
    else if (t->code.op == QN__IR_OR)
        for (size_t i = 0; i < bytes; i++)
            to[i] = a[i] | b[i];
    else if (t->code.op == QN__IR_XOR)
        for (size_t i = 0; i < bytes; i++)
            to[i] = a[i] ^ b[i];
    else if (t->code.dtype == QN_BOOL)
        for (size_t i = 0; i < bytes; i++)
            to[i] = !a[i];
    else
        for (size_t i = 0; i < bytes; i++)
            to[i] = ~a[i];
}

/* Converts element by element through the widest type of its kind. */
static void cast_slowly(qn_dtype from, qn_dtype to_type, const char *a, char *to, size_t n)
{
    size_t in = qn__dtype_size(from), out = qn__dtype_size(to_type);
    bool real = qn__is_float(from);
    for (size_t i = 0; i < n; i++) {
        if (real) {
            qn__element_from_f64(to + i * out, to_type, qn__element_to_f64(a + i * in, from));
        } else if (from == QN_U64 && qn__is_float(to_type)) {
            qn__element_from_f64(to + i * out, to_type, qn__element_to_f64(a + i * in, from));
        } else {
            qn__element_from_i64(to + i * out, to_type, qn__element_to_i64(a + i * in, from));
        }
    }
}

static void cast_tile(const qn__tape_instruction *t, const frame *f, char *to)
{
    qn_dtype from = (qn_dtype)t->from, type = (qn_dtype)t->code.dtype;
    const char *a = f->reg[t->a];
    const qn__cpu_kernels *k = f->table;
    if (from == QN_BF16 && type == QN_F32)
        k->f32_from_bf16((float *)to, (const uint16_t *)a, f->n);
    else if (from == QN_F32 && type == QN_BF16)
        k->bf16_from_f32((uint16_t *)to, (const float *)a, f->n);
    else if (from == QN_F16 && type == QN_F32)
        k->f32_from_f16((float *)to, (const uint16_t *)a, f->n);
    else if (from == QN_F32 && type == QN_F16)
        k->f16_from_f32((uint16_t *)to, (const float *)a, f->n);
    else
        cast_slowly(from, type, a, to, f->n);
}

static void splat(char *to, const char *element, size_t size, size_t n)
{
    switch (size) {
    case 1: memset(to, *element, n); break;
    case 2:
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = *(const uint16_t *)element;
        break;
    case 4:
        for (size_t i = 0; i < n; i++)
            ((uint32_t *)to)[i] = *(const uint32_t *)element;
        break;
    default:
        for (size_t i = 0; i < n; i++)
            ((uint64_t *)to)[i] = *(const uint64_t *)element;
    }
}

static void gather(char *to, const char *from, int64_t stride, size_t size, size_t n)
{
    switch (size) {
    case 1:
        for (size_t i = 0; i < n; i++)
            to[i] = from[(int64_t)i * stride];
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = *(const uint16_t *)(from + (int64_t)i * stride);
        break;
    case 4:
        for (size_t i = 0; i < n; i++)
            ((uint32_t *)to)[i] = *(const uint32_t *)(from + (int64_t)i * stride);
        break;
    default:
        for (size_t i = 0; i < n; i++)
            ((uint64_t *)to)[i] = *(const uint64_t *)(from + (int64_t)i * stride);
    }
}

static void constant(const qn__tape_instruction *t, const frame *f, char *to)
{
    char element[8];
    if (qn__is_float((qn_dtype)t->code.dtype))
        qn__element_from_f64(element, (qn_dtype)t->code.dtype, t->code.value.real);
    else
        qn__element_from_i64(element, (qn_dtype)t->code.dtype, t->code.value.integer);
    splat(to, element, qn__dtype_size((qn_dtype)t->code.dtype), f->n);
}

static void run_instruction(const qn__tape_instruction *t, const frame *f, char *to)
{
    int map = map_of(t->code.op);
    if (map >= 0) {
        mapped(t, f, map, to);
        return;
    }
    switch (t->code.op) {
    case QN__IR_CONST: constant(t, f, to); break;
    case QN__IR_CAST: cast_tile(t, f, to); break;
    case QN__IR_SELECT: select_tile(t, f, to); break;
    case QN__IR_AND:
    case QN__IR_OR:
    case QN__IR_XOR:
    case QN__IR_NOT: logic(t, f, to); break;
    case QN__IR_DIV:
    case QN__IR_REM:
    case QN__IR_POW:
    case QN__IR_SHL:
    case QN__IR_SHR:
        if (!qn__is_float((qn_dtype)t->code.dtype))
            whole(t, f, to);
        else if (t->code.op == QN__IR_POW)
            power(t, f, to);
        else
            floating(t, f, to);
        break;
    case QN__IR_FLOOR:
    case QN__IR_CEIL:
    case QN__IR_ROUND:
    case QN__IR_FMA:
    case QN__IR_LOG1P:
    case QN__IR_EXPM1:
    case QN__IR_LOG2:
    case QN__IR_EXP2:
    case QN__IR_LOG10:
    case QN__IR_TAN:
    case QN__IR_ASIN:
    case QN__IR_ACOS:
    case QN__IR_ATAN:
    case QN__IR_SINH:
    case QN__IR_COSH:
    case QN__IR_ATAN2: floating(t, f, to); break;
    default: arithmetic(t, f, (qn_dtype)t->from, to); break;
    }
}

/* Where an input's tile begins. */
static const char *tile_of(const qn__cpu_tape *tape, const qn__tape_input *in, const char *base,
                           const int64_t *index)
{
    for (int d = 0; d < tape->n_axes; d++)
        base += index[d] * in->stride[d];
    return base;
}

static void load_input(const qn__cpu_tape *tape, const qn__tape_instruction *t, frame *f,
                       const char *base, const int64_t *index)
{
    const qn__tape_input *in = &tape->input[t->code.a];
    const char *from = tile_of(tape, in, base, index);
    char *own = f->scratch + (size_t)t->reg * QN__TILE_BYTES;
    f->reg[t->reg] = own;
    if (in->access == QN__DIRECT)
        f->reg[t->reg] = (char *)from;
    else if (in->access == QN__SPLAT)
        splat(own, from, in->size, f->n);
    else
        gather(own, from, in->stride[tape->n_axes - 1], in->size, f->n);
}

/* At most `most` elements from index[] on, along the last axis; returns how many. */
static int64_t run_tile(const qn__cpu_tape *tape, frame *f, char *const *at, const int64_t *index,
                        int64_t most)
{
    int last = tape->n_axes - 1;
    int64_t left = tape->shape[last] - index[last], out = 0;
    left = left < most ? left : most;
    for (int d = 0; d <= last; d++)
        out = out * tape->shape[d] + index[d];
    f->n = (size_t)(left < QN__TILE ? left : QN__TILE);
    char *to = at[tape->n_inputs] + out * tape->out_size;
    for (int i = 0; i < tape->n_code; i++) {
        const qn__tape_instruction *t = &tape->code[i];
        if (t->code.op == QN__IR_INPUT) {
            load_input(tape, t, f, at[t->code.a], index);
            continue;
        }
        bool final = i == tape->n_code - 1 && t->reg == tape->result;
        f->reg[t->reg] = f->scratch + (size_t)t->reg * QN__TILE_BYTES;
        run_instruction(t, f, final ? to : f->reg[t->reg]);
        if (final)
            f->reg[t->reg] = to;
    }
    if (f->reg[tape->result] != to)
        memcpy(to, f->reg[tape->result], f->n * tape->out_size);
    return (int64_t)f->n;
}

void RUN_TAPE(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__cpu_tape *tape = job->tape;
    frame f = {.table = job->table};
    f.scratch = (char *)(((uintptr_t)part->scratch + 63) & ~(uintptr_t)63);
    if (part->phase == QN__TAPE_ELEMENTS) {
        for (int64_t i = part->begin; i < part->end;)
            i += run_tile(tape, &f, part->at, &i, part->end - i);
        return;
    }
    int last = tape->n_axes - 1;
    for (int64_t unit = part->begin; unit < part->end; unit++) {
        int64_t index[QN_MAX_NDIM], row = unit / tape->inner_tiles;
        index[last] = unit % tape->inner_tiles * QN__TILE;
        for (int d = last - 1; d >= 0; d--) {
            index[d] = row % tape->shape[d];
            row /= tape->shape[d];
        }
        run_tile(tape, &f, part->at, index, QN__TILE);
    }
}
