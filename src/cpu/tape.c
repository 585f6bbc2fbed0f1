/* SPDX-License-Identifier: Apache-2.0
 *
 * Making tapes: merge axes that every operand walks alike, assign registers by last use.
 */
#include "cpu/tape.h"

#include "core/dtype.h"

#include <stdlib.h>

/* Whether axis i of all operands continues where axis i + 1 ends. */
static bool merges(const qn__call *call, int i)
{
    for (uint32_t k = 0; k < call->n_operands; k++) {
        const qn__operand *o = &call->operand[k];
        if (o->stride[i] != o->stride[i + 1] * o->shape[i + 1])
            return false;
    }
    return true;
}

static void merge_axes(qn__cpu_tape *tape, const qn__call *call)
{
    const qn__operand *out = &call->operand[call->n_operands - 1];
    int n = 0;
    for (int i = 0; i < out->ndim; i++) {
        if (out->shape[i] == 1 && !(n == 0 && i == out->ndim - 1))
            continue; /* strides of a single element do not matter */
        bool joins = n > 0 && i > 0 && out->shape[i - 1] != 1 && merges(call, i - 1);
        int at = joins ? n - 1 : n++;
        tape->shape[at] = joins ? tape->shape[at] * out->shape[i] : out->shape[i];
        for (int k = 0; k < tape->n_inputs; k++)
            tape->input[k].stride[at] = call->operand[k].stride[i] * tape->input[k].size;
    }
    if (n == 0)
        tape->shape[n++] = 1;
    tape->n_axes = n;
}

static uint8_t access_of(const qn__tape_input *in, const qn__cpu_tape *tape)
{
    int64_t stride = in->stride[tape->n_axes - 1];
    if (tape->shape[tape->n_axes - 1] == 1 || stride == 0)
        return QN__SPLAT;
    return stride == in->size ? QN__DIRECT : QN__GATHER;
}

/* Operands that are other instructions: none of INPUT and NUMBER, whose fields are numbers. */
static int n_operands(const qn__ir_instruction *c)
{
    return qn__ir_operands((qn__ir_op)c->op);
}

/* The last instruction that reads each value; 0: none does, and it is left out. The result is read
 * at the end. */
static void note_last_reads(const qn__ir *ir, uint16_t *last)
{
    memset(last, 0, (size_t)ir->n * sizeof *last);
    last[ir->result] = QN__IR_LARGEST;
    for (int i = ir->n - 1; i >= 0; i--) {
        const qn__ir_instruction *c = &ir->code[i];
        const uint16_t operand[] = {c->a, c->b, c->c};
        for (int k = 0; last[i] && k < n_operands(c); k++)
            if (!last[operand[k]])
                last[operand[k]] = (uint16_t)i;
    }
}

/* Fills the tape's code. Registers are reused after the last reader. Inputs read in place have one
 * too: it holds a splat or a gathered tile where the sizes ask for it. Numbers become constants. */
static void assign_registers(qn__cpu_tape *tape, const qn__ir *ir, const qn__ir_instruction *code)
{
    uint16_t last[QN__IR_LARGEST], reg_of[QN__IR_LARGEST], free_regs[QN__IR_LARGEST];
    int n_free = 0, n_regs = 0;
    note_last_reads(ir, last);
    for (int i = 0; i < ir->n; i++) {
        if (!last[i])
            continue;
        const qn__ir_instruction *c = &code[i];
        qn__tape_instruction *t = &tape->code[tape->n_code++];
        t->code = *c;
        if (c->op == QN__IR_NUMBER)
            t->code.op = QN__IR_CONST;
        int n = n_operands(c);
        reg_of[i] = (uint16_t)(n_free ? free_regs[--n_free] : n_regs++);
        t->reg = reg_of[i];
        const uint16_t operand[] = {c->a, c->b, c->c};
        uint16_t *const to[] = {&t->a, &t->b, &t->c};
        for (int k = 0; k < n; k++) {
            *to[k] = reg_of[operand[k]];
            bool first = true; /* an operand used twice is freed once */
            for (int j = 0; j < k; j++)
                first &= operand[j] != operand[k];
            if (first && last[operand[k]] == i)
                free_regs[n_free++] = reg_of[operand[k]];
        }
        if (n)
            t->from = code[c->a].dtype;
    }
    tape->n_registers = n_regs;
    tape->result = reg_of[ir->result];
}

qn__cpu_tape *qn__cpu_tape_new(qn__cpu_job *job, size_t *bytes)
{
    const qn__call *call = job->call;
    const qn__ir *ir = call->program;
    size_t size = sizeof(qn__cpu_tape) + (size_t)ir->n * sizeof(qn__tape_instruction);
    qn__cpu_tape *tape = calloc(1, size);
    if (!tape)
        return NULL;
    *bytes += size;
    const qn__operand *out = &call->operand[call->n_operands - 1];
    tape->n_inputs = (int)call->n_operands - 1;
    tape->out_size = (uint8_t)qn__dtype_size((qn_dtype)out->dtype);
    for (int k = 0; k < tape->n_inputs; k++)
        tape->input[k].size = (uint8_t)qn__dtype_size((qn_dtype)call->operand[k].dtype);
    merge_axes(tape, call);
    for (int k = 0; k < tape->n_inputs; k++)
        tape->input[k].access = access_of(&tape->input[k], tape);
    qn__ir_instruction code[QN__IR_LARGEST];
    memcpy(code, ir->code, (size_t)ir->n * sizeof *code);
    qn__ir_fill_numbers(ir, call->constants, code);
    assign_registers(tape, ir, code);
    int64_t rows = 1;
    for (int i = 0; i + 1 < tape->n_axes; i++)
        rows *= tape->shape[i];
    tape->inner_tiles = (tape->shape[tape->n_axes - 1] + QN__TILE - 1) / QN__TILE;
    job->n_phases = 1;
    job->units[0] = rows * tape->inner_tiles;
    job->scratch = (size_t)tape->n_registers * QN__TILE_BYTES + 64;
    job->serial = qn__cpu_elements(out) * tape->n_code < 1 << 16;
    return tape;
}
