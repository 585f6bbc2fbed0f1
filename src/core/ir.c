/* SPDX-License-Identifier: Apache-2.0
 *
 * Building programs: hash-consing by search (programs are short), type checks, small foldings that
 * cannot change a value (a cast to the same type).
 */
#include "core/ir.h"

#include "core/dtype.h"

int qn__ir_operands(qn__ir_op op)
{
    static const uint8_t counts[] = {
#define IR_COUNT(name, n) [QN__IR_##name] = n,
        QN__IR_LIST(IR_COUNT)
#undef IR_COUNT
    };
    return counts[op];
}

void qn__ir_begin(qn__ir *ir)
{
    ir->n = ir->n_inputs = ir->n_numbers = 0;
    ir->failed = false;
    ir->result = 0;
}

static qn__ir_value append(qn__ir *ir, const qn__ir_instruction *instruction)
{
    for (int i = 0; i < ir->n; i++)
        if (!memcmp(&ir->code[i], instruction, sizeof *instruction))
            return (qn__ir_value)i;
    if (ir->n == QN__IR_LARGEST) {
        ir->failed = true;
        return 0;
    }
    ir->code[ir->n] = *instruction;
    return ir->result = (qn__ir_value)ir->n++;
}

static qn__ir_value append_fields(qn__ir *ir, qn__ir_op op, qn_dtype dtype, int a, int b, int c)
{
    qn__ir_instruction i;
    memset(&i, 0, sizeof i);
    i.op = (uint8_t)op;
    i.dtype = (uint8_t)dtype;
    i.a = (uint16_t)a;
    i.b = (uint16_t)b;
    i.c = (uint16_t)c;
    return append(ir, &i);
}

static qn__ir_value type_error(qn__ir *ir)
{
    ir->failed = true;
    return 0;
}

qn__ir_value qn__ir_input(qn__ir *ir, int number, qn_dtype dtype)
{
    if (number < 0 || number >= QN__IR_INPUTS)
        return type_error(ir);
    if (ir->n_inputs <= number)
        ir->n_inputs = number + 1;
    return append_fields(ir, QN__IR_INPUT, dtype, number, 0, 0);
}

qn__ir_value qn__ir_real(qn__ir *ir, qn_dtype dtype, double value)
{
    if (!qn__is_float(dtype))
        return qn__ir_integer(ir, dtype, (int64_t)value);
    qn__ir_instruction i;
    memset(&i, 0, sizeof i);
    i.op = QN__IR_CONST;
    i.dtype = (uint8_t)dtype;
    i.value.real = value;
    return append(ir, &i);
}

qn__ir_value qn__ir_integer(qn__ir *ir, qn_dtype dtype, int64_t value)
{
    if (qn__is_float(dtype))
        return qn__ir_real(ir, dtype, (double)value);
    qn__ir_instruction i;
    memset(&i, 0, sizeof i);
    i.op = QN__IR_CONST;
    i.dtype = (uint8_t)dtype;
    i.value.integer = value;
    return append(ir, &i);
}

/* The value of `k` as a cast to the type of `to` would give it at run time: rounded once. */
static void cast_value(const qn__ir_instruction *k, qn__ir_instruction *to)
{
    char element[8] = {0};
    qn_dtype dtype = (qn_dtype)to->dtype;
    if (qn__is_float((qn_dtype)k->dtype))
        qn__element_from_f64(element, dtype, k->value.real);
    else if (k->dtype == QN_U64 && qn__is_float(dtype))
        qn__element_from_f64(element, dtype, (double)(uint64_t)k->value.integer);
    else
        qn__element_from_i64(element, dtype, k->value.integer);
    if (qn__is_float(dtype))
        to->value.real = qn__element_to_f64(element, dtype);
    else
        to->value.integer = qn__element_to_i64(element, dtype);
}

static qn__ir_value cast_constant(qn__ir *ir, const qn__ir_instruction *k, qn_dtype dtype)
{
    qn__ir_instruction to = {.dtype = (uint8_t)dtype};
    cast_value(k, &to);
    return qn__is_float(dtype) ? qn__ir_real(ir, dtype, to.value.real)
                               : qn__ir_integer(ir, dtype, to.value.integer);
}

uint64_t qn__ir_bits(const qn__ir_instruction *constant)
{
    uint64_t bits = 0;
    if (qn__is_float((qn_dtype)constant->dtype))
        qn__element_from_f64(&bits, (qn_dtype)constant->dtype, constant->value.real);
    else
        qn__element_from_i64(&bits, (qn_dtype)constant->dtype, constant->value.integer);
    return bits;
}

qn__ir_value qn__ir_number(qn__ir *ir, int number)
{
    if (ir->n_numbers <= number)
        ir->n_numbers = number + 1;
    return append_fields(ir, QN__IR_NUMBER, QN_F64, number, 0, 0);
}

void qn__ir_fill_numbers(const qn__ir *ir, const double *constants, qn__ir_instruction *code)
{
    for (int i = 0; i < ir->n; i++) {
        const qn__ir_instruction *c = &ir->code[i];
        if (c->op != QN__IR_NUMBER)
            continue;
        if (c->b)
            cast_value(&code[c->b - 1], &code[i]);
        else
            code[i].value.real = constants[c->a];
    }
}

qn__ir_value qn__ir_cast(qn__ir *ir, qn__ir_value a, qn_dtype dtype)
{
    if (qn__ir_dtype(ir, a) == dtype)
        return ir->result = a;
    if (ir->code[a].op == QN__IR_CONST)
        return cast_constant(ir, &ir->code[a], dtype);
    if (ir->code[a].op == QN__IR_NUMBER)
        return append_fields(ir, QN__IR_NUMBER, dtype, ir->code[a].a, a + 1, 0);
    return append_fields(ir, QN__IR_CAST, dtype, a, 0, 0);
}

/* Arithmetic never sees 16-bit floats: they are cast first. */
static bool computes(qn_dtype dtype)
{
    return dtype != QN_F16 && dtype != QN_BF16;
}

qn__ir_value qn__ir_unary(qn__ir *ir, qn__ir_op op, qn__ir_value a)
{
    qn_dtype t = qn__ir_dtype(ir, a);
    bool any = op == QN__IR_NEG || op == QN__IR_ABS || op == QN__IR_SIGN;
    bool ok = op == QN__IR_NOT ? !qn__is_float(t) : any ? t != QN_BOOL : qn__is_float(t);
    if (!ok || !computes(t) || qn__ir_operands(op) != 1)
        return type_error(ir);
    return append_fields(ir, op, t, a, 0, 0);
}

qn__ir_value qn__ir_binary(qn__ir *ir, qn__ir_op op, qn__ir_value a, qn__ir_value b)
{
    qn_dtype t = qn__ir_dtype(ir, a);
    bool compares = op >= QN__IR_EQ && op <= QN__IR_LE;
    bool bits = op == QN__IR_AND || op == QN__IR_OR || op == QN__IR_XOR;
    bool shifts = op == QN__IR_SHL || op == QN__IR_SHR;
    bool divides = op == QN__IR_DIV || op == QN__IR_REM || op == QN__IR_POW;
    if (t != qn__ir_dtype(ir, b) || !computes(t) || qn__ir_operands(op) != 2 ||
        ((bits || shifts) && qn__is_float(t)) || ((shifts || divides) && t == QN_BOOL) ||
        (op == QN__IR_ATAN2 && !qn__is_float(t)))
        return type_error(ir);
    return append_fields(ir, op, compares ? QN_BOOL : t, a, b, 0);
}

qn__ir_value qn__ir_ternary(qn__ir *ir, qn__ir_op op, qn__ir_value a, qn__ir_value b,
                            qn__ir_value c)
{
    qn_dtype ta = qn__ir_dtype(ir, a), tb = qn__ir_dtype(ir, b), tc = qn__ir_dtype(ir, c);
    bool ok = op == QN__IR_SELECT ? ta == QN_BOOL && tb == tc
                                  : op == QN__IR_FMA && ta == tb && tb == tc && qn__is_float(ta);
    if (!ok || (op == QN__IR_FMA && !computes(ta)))
        return type_error(ir);
    return append_fields(ir, op, tb, a, b, c);
}
