/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations, made from ops.def.
 */
#include "ops/ops.h"

const qn__op_def qn__leaf_op = {.name = "leaf", .class = QN__LEAF};

#define OP_ENUM(name, definition) extern const qn__op_def definition;
#include "ops/ops.def"
#undef OP_ENUM

const qn__op_def *const qn__ops[] = {
#define OP_ENUM(name, definition) [QN__OP_##name] = &definition,
#include "ops/ops.def"
#undef OP_ENUM
};

_Static_assert((int)QN__OP_LEAF == (int)QN__LEAF_OP, "LEAF is the first line of ops.def");

const int qn__n_ops = QN__OP_COUNT;
