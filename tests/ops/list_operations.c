/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints every operation as the library has it, one a line, for scripts/make-operations: name, id,
 * class, whether it decomposes, its vjp and jvp ("own", "decomposed", "-"), and the types that the
 * CPU's kernel takes when all operands have them ("-": no kernel, "mixed": only operands of several
 * types).
 */
#include "core/device.h"
#include "cpu/cpu.h"

#include <stdio.h>
#include <string.h>

enum { INPUTS = 4 };

/* As the CPU device asks: an operation without `accepts` takes f32 and f64. */
static bool takes(const qn__cpu_routine *op, const qn__op_def *def, qn__op_id id, qn_dtype t)
{
    static const int64_t zeros[64];
    qn_array in[INPUTS], node, *inputs[INPUTS];
    memset(in, 0, sizeof in);
    memset(&node, 0, sizeof node);
    for (int i = 0; i < INPUTS; i++) {
        inputs[i] = &in[i];
        in[i].dtype = (uint8_t)t;
        in[i].ndim = 2;
        in[i].shape[0] = in[i].shape[1] = 16;
        in[i].stride[0] = 16;
        in[i].stride[1] = 1;
        in[i].flags = QN__CONTIGUOUS;
        in[i].base = &in[i];
    }
    node = in[0];
    node.op = id;
    node.n_in = INPUTS - 1;
    node.in = inputs;
    node.base = &node;
    node.params = zeros;
    node.params_size = def->params_size;
    return op->accepts ? op->accepts(&node) : t == QN_F32 || t == QN_F64;
}

static const char *derivative(const qn__op_def *def, bool has)
{
    return has ? "own" : def->decompose ? "decomposed" : "-";
}

int main(void)
{
    static const char *const ids[] = {
#define OP_ENUM(name, definition) #name,
#include "ops/ops.def"
#undef OP_ENUM
    };
    static const char *const classes[] = {"leaf", "view", "elementwise", "kernel"};
    for (int i = 0; i < qn__n_ops; i++) {
        const qn__op_def *def = qn__ops[i];
        const qn__cpu_routine *op = qn__cpu_routines[i];
        printf("%s %s %s %s %s %s ", def->name, ids[i], classes[def->class],
               def->decompose ? "decomposes" : "-", derivative(def, def->vjp != NULL),
               derivative(def, def->jvp != NULL));
        const char *sep = "";
        for (int t = 0; op && t < QN_DTYPE_COUNT; t++)
            if (takes(op, def, (qn__op_id)i, (qn_dtype)t)) {
                printf("%s%s", sep, qn_dtype_name((qn_dtype)t));
                sep = ",";
            }
        printf("%s\n", *sep ? "" : op ? "mixed" : "-");
    }
    return 0;
}
