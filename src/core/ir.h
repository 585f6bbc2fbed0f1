/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel IR: a typed expression graph for one element of an elementwise computation.
 *
 * Values are numbered, hash-consed (asking twice for the same expression gives the same number) and
 * checked when built: a type error is a bug of ours and marks the program failed. Arithmetic is
 * done on bool, integers, f32 and f64; 16-bit floats exist only between casts, so each place where
 * a value is rounded is a cast that can be seen. The CPU interprets a program tile by tile;
 * renderers turn it into C and CUDA C.
 *
 * Integers wrap. Their division goes towards zero; by zero it gives 0, and so does its remainder. A
 * negative exponent gives the power towards zero (0 unless the base is 1 or -1; 0 of 0). Shifting
 * by the type's width or more, or by a negative count, leaves the sign (right, signed) or 0.
 */
#ifndef QN_CORE_IR_H
#define QN_CORE_IR_H

#include "base/arena.h"
#include "quern/array.h"

/* name, number of operands */
#define QN__IR_LIST(X)                                                                             \
    X(INPUT, 0)                                                                                    \
    X(CONST, 0)                                                                                    \
    X(NUMBER, 0)                                                                                   \
    X(CAST, 1)                                                                                     \
    X(NEG, 1)                                                                                      \
    X(ABS, 1)                                                                                      \
    X(SIGN, 1)                                                                                     \
    X(FLOOR, 1)                                                                                    \
    X(CEIL, 1)                                                                                     \
    X(ROUND, 1)                                                                                    \
    X(SQRT, 1)                                                                                     \
    X(RSQRT, 1)                                                                                    \
    X(EXP, 1)                                                                                      \
    X(LOG, 1)                                                                                      \
    X(SIN, 1)                                                                                      \
    X(COS, 1)                                                                                      \
    X(TANH, 1)                                                                                     \
    X(ERF, 1)                                                                                      \
    X(SIGMOID, 1)                                                                                  \
    X(LOG1P, 1)                                                                                    \
    X(EXPM1, 1)                                                                                    \
    X(LOG2, 1)                                                                                     \
    X(EXP2, 1)                                                                                     \
    X(LOG10, 1)                                                                                    \
    X(TAN, 1)                                                                                      \
    X(ASIN, 1)                                                                                     \
    X(ACOS, 1)                                                                                     \
    X(ATAN, 1)                                                                                     \
    X(SINH, 1)                                                                                     \
    X(COSH, 1)                                                                                     \
    X(NOT, 1)                                                                                      \
    X(ADD, 2)                                                                                      \
    X(SUB, 2)                                                                                      \
    X(MUL, 2)                                                                                      \
    X(DIV, 2)                                                                                      \
    X(REM, 2)                                                                                      \
    X(POW, 2)                                                                                      \
    X(ATAN2, 2)                                                                                    \
    X(MAX, 2)                                                                                      \
    X(MIN, 2)                                                                                      \
    X(EQ, 2)                                                                                       \
    X(NE, 2)                                                                                       \
    X(LT, 2)                                                                                       \
    X(LE, 2)                                                                                       \
    X(AND, 2)                                                                                      \
    X(OR, 2)                                                                                       \
    X(XOR, 2)                                                                                      \
    X(SHL, 2)                                                                                      \
    X(SHR, 2)                                                                                      \
    X(FMA, 3)                                                                                      \
    X(SELECT, 3)

typedef enum qn__ir_op {
#define QN__IR_ENUM(name, n) QN__IR_##name,
    QN__IR_LIST(QN__IR_ENUM)
#undef QN__IR_ENUM
        QN__IR_COUNT
} qn__ir_op;

enum { QN__IR_LARGEST = 256, QN__IR_INPUTS = 24 };

typedef uint16_t qn__ir_value; /* the number of an instruction */

typedef struct qn__ir_instruction {
    uint8_t op;       /* qn__ir_op */
    uint8_t dtype;    /* of the result */
    uint16_t a, b, c; /* operands. INPUT: a is its number. NUMBER: a is its number among the
                       * constants, b is 1 + the NUMBER that it is a cast of, or 0 */
    union {
        double real; /* CONST of a float type */
        int64_t integer;
    } value;
} qn__ir_instruction;

typedef struct qn__ir {
    int n;
    int n_inputs;
    int n_numbers;
    bool failed; /* too large, or a type error */
    qn__ir_value result;
    qn__ir_instruction code[QN__IR_LARGEST]; /* last: a stored program ends after its n */
} qn__ir;

/* Begins an empty program. */
void qn__ir_begin(qn__ir *ir);

qn__ir_value qn__ir_input(qn__ir *ir, int number, qn_dtype dtype);
qn__ir_value qn__ir_real(qn__ir *ir, qn_dtype dtype, double value);
qn__ir_value qn__ir_integer(qn__ir *ir, qn_dtype dtype, int64_t value);
/* Constant `number` of the call: an f64 that is known when sizes are. What it is cast to is a
 * NUMBER, too. */
qn__ir_value qn__ir_number(qn__ir *ir, int number);
qn__ir_value qn__ir_cast(qn__ir *ir, qn__ir_value a, qn_dtype dtype);
qn__ir_value qn__ir_unary(qn__ir *ir, qn__ir_op op, qn__ir_value a);
qn__ir_value qn__ir_binary(qn__ir *ir, qn__ir_op op, qn__ir_value a, qn__ir_value b);
qn__ir_value qn__ir_ternary(qn__ir *ir, qn__ir_op op, qn__ir_value a, qn__ir_value b,
                            qn__ir_value c);

static inline qn_dtype qn__ir_dtype(const qn__ir *ir, qn__ir_value v)
{
    return (qn_dtype)ir->code[v].dtype;
}

int qn__ir_operands(qn__ir_op op);

/* Gives the instructions NUMBER of a program their values, for one call's constants: fills
 * code[i].value. */
void qn__ir_fill_numbers(const qn__ir *ir, const double *constants, qn__ir_instruction *code);

/* The value of a constant as it lies in memory, in the low bytes. */
uint64_t qn__ir_bits(const qn__ir_instruction *constant);

/* ---- rendering (ir_c.c) ---- */

/* What rendered functions stand on, to be put once before the first: short type names (u8 to u64,
 * i8 to i64, f32, f64), FN (the qualifiers of a function) and helpers for casts and bit patterns.
 * Plain C11, or CUDA C that NVRTC takes without any header. */
const char *qn__ir_prelude_c(bool cuda);

/* The short name of the type in which an element of `dtype` lies in memory: 16-bit floats are u16,
 * bool is u8 (0 or 1). */
const char *qn__ir_type_c(qn_dtype dtype);

/* The program as one C (or CUDA C) function of one element behind the prelude; its NUMBERs, if it
 * has any, come in order as their bits: FN f32 name(f32 in0, u16 in1, const u64 *numbers)
 *     {
 *         const f32 v1 = ...;
 *         return v1;
 *     }
 * Compile it with -ffp-contract=off (NVRTC: --fmad=false): each instruction rounds once, as on the
 * CPU. Returns the length that was needed, as snprintf. */
size_t qn__ir_render_c(const qn__ir *ir, const char *name, char *text, size_t room);

#endif
