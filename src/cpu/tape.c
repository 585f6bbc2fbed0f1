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

/* Registers are reused after the last reader. Inputs read in place have one too: it holds a splat or
 * a gathered tile where the sizes ask for it. */
static void assign_registers(qn__cpu_tape *tape, const qn__ir *ir)
{
    uint16_t last[QN__IR_LARGEST] = {0}, reg_of[QN__IR_LARGEST], free_regs[QN__IR_LARGEST];
    int n_free = 0, n_regs = 0;
    for (int i = 0; i < ir->n; i++) {
        const qn__ir_instruction *c = &ir->code[i];
        int n = c->op == QN__IR_INPUT ? 0 : qn__ir_operands((qn__ir_op)c->op);
        const uint16_t operand[] = {c->a, c->b, c->c};
        for (int k = 0; k < n; k++)
            last[operand[k]] = (uint16_t)i;
    }
    last[ir->result] = QN__IR_LARGEST;
    for (int i = 0; i < ir->n; i++) {
        const qn__ir_instruction *c = &ir->code[i];
        qn__tape_instruction *t = &tape->code[i];
        t->code = *c;
        int n = c->op == QN__IR_INPUT ? 0 : qn__ir_operands((qn__ir_op)c->op);
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
            t->from = ir->code[c->a].dtype;
        if (last[i] == 0 && i != ir->result)
            free_regs[n_free++] = reg_of[i]; /* nobody reads it */
    }
    tape->n_registers = n_regs;
    tape->result = reg_of[ir->result];
}

qn__cpu_tape *qn__cpu_tape_new(qn__cpu_step *step)
{
    const qn__call *call = step->call;
    const qn__ir *ir = call->program;
    qn__cpu_tape *tape = calloc(1, sizeof *tape + (size_t)ir->n * sizeof *tape->code);
    if (!tape)
        return NULL;
    const qn__operand *out = &call->operand[call->n_operands - 1];
    tape->n_inputs = (int)call->n_operands - 1;
    tape->n_code = ir->n;
    tape->out_size = (uint8_t)qn__dtype_size((qn_dtype)out->dtype);
    for (int k = 0; k < tape->n_inputs; k++)
        tape->input[k].size =
            (uint8_t)qn__dtype_size((qn_dtype)call->operand[k].dtype);
    merge_axes(tape, call);
    for (int k = 0; k < tape->n_inputs; k++)
        tape->input[k].access = access_of(&tape->input[k], tape);
    assign_registers(tape, ir);
    int64_t rows = 1;
    for (int i = 0; i + 1 < tape->n_axes; i++)
        rows *= tape->shape[i];
    tape->inner_tiles = (tape->shape[tape->n_axes - 1] + QN__TILE - 1) / QN__TILE;
    step->n_phases = 1;
    step->units[0] = rows * tape->inner_tiles;
    step->scratch = (size_t)tape->n_registers * QN__TILE_BYTES + 64;
    step->serial = qn__cpu_elements(out) * tape->n_code < 1 << 16;
    return tape;
}
