/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused chains: the program is rendered as CUDA C (core/ir_c.c) inside a kernel that walks its
 * operands by strides (program.c compiles it). The text names no sizes, so one program serves every
 * shape; sizes and strides are arguments. Where the last axis can be divided by four, a thread has
 * four elements of it, whose place is found once. Places are found in 32 bits, and divided by with
 * a multiplication, unless an array is too large for that. Where all lies side by side, an f32
 * result may be written as bf16, too.
 */
#include "base/error.h"
#include "base/hash.h"
#include "core/dtype.h"
#include "cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the text -------------------------------------------------------------------------------- */

typedef struct page {
    char *text;
    size_t room, length; /* length: what was needed, past room too */
} page;

static void print_to(page *p, const char *format, ...) QN_PRINTF(2, 3);

static void print_to(page *p, const char *format, ...)
{
    size_t left = p->length < p->room ? p->room - p->length : 0;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(left ? p->text + p->length : NULL, left, format, args);
    va_end(args);
    if (n > 0)
        p->length += (size_t)n;
}

#define BEGINS                                                                                     \
    "#if __CUDA_ARCH__ >= 900\n"                                                                   \
    "    asm volatile(\"griddepcontrol.launch_dependents;\" ::: \"memory\");\n"                    \
    "#endif\n"
#define WAITS                                                                                      \
    "#if __CUDA_ARCH__ >= 900\n"                                                                   \
    "        asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"                             \
    "#endif\n"

enum { MOST_OF_QUADS = 16 }; /* instructions: larger programs take long to compile four times */

/* Where share i of the work lies in each operand. A quotient of 32 bits is the upper half of a
 * product (divide_by below). */
static void print_walk(page *p, int n)
{
    print_to(p,
             "static __device__ __forceinline__ void walk(const chain_args &a, i64 i, i64 *o)\n{\n"
             "    i64 rest = i;\n"
             "#pragma unroll\n"
             "    for (int k = 0; k < %d; k++)\n"
             "        o[k] = 0;\n"
             "    if (a.narrow) {\n"
             "        u32 r = (u32)i;\n"
             "        for (int d = (int)a.n_axes - 1; d > 0; d--) {\n"
             "            u32 q = (__umulhi(r, a.times[d]) + r) >> a.shift[d];\n"
             "            i32 index = (i32)(r - q * (u32)a.shape[d]);\n"
             "#pragma unroll\n"
             "            for (int k = 0; k < %d; k++)\n"
             "                o[k] += (i64)index * (i32)a.stride[k][d];\n"
             "            r = q;\n"
             "        }\n"
             "        rest = r;\n"
             "    } else {\n"
             "#pragma unroll 1\n"
             "        for (int d = (int)a.n_axes - 1; d > 0; d--) {\n"
             "            i64 index = rest %% a.shape[d];\n"
             "            rest /= a.shape[d];\n"
             "#pragma unroll\n"
             "            for (int k = 0; k < %d; k++)\n"
             "                o[k] += index * a.stride[k][d];\n"
             "        }\n"
             "    }\n"
             "#pragma unroll\n"
             "    for (int k = 0; k < %d; k++)\n"
             "        o[k] += rest * a.stride[k][0];\n"
             "}\n",
             n + 1, n + 1, n + 1, n + 1);
}

/* Four elements a thread: of an input one vector, or by steps. */
static void print_quads(page *p, const qn__ir *ir, const char *const *types, bool numbers)
{
    int n = ir->n_inputs;
    const char *type = qn__ir_type_c(qn__ir_dtype(ir, ir->result));
    print_to(p,
             "static __device__ void quads(const chain_args &a)\n{\n"
             "    i64 step = (i64)gridDim.x * blockDim.x;\n"
             "    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n"
             "        i64 o[%d];\n"
             "        walk(a, i, o);\n" WAITS,
             n + 1);
    for (int k = 0; k < n; k++)
        print_to(p,
                 "        quad<%s> v%d;\n"
                 "        const %s *p%d = (const %s *)a.at[%d] + o[%d];\n"
                 "        if (a.vectors >> %d & 1)\n"
                 "            v%d = *(const quad<%s> *)p%d;\n"
                 "        else\n"
                 "            for (int j = 0; j < 4; j++)\n"
                 "                v%d.v[j] = p%d[(i64)j * a.step[%d]];\n",
                 types[k], k, types[k], k, types[k], k, k, k, k, types[k], k, k, k, k);
    print_to(p,
             "        quad<%s> y;\n        for (int j = 0; j < 4; j++)\n"
             "            y.v[j] = element(",
             type);
    for (int k = 0; k < n; k++)
        print_to(p, "%sv%d.v[j]", k ? ", " : "", k);
    if (numbers)
        print_to(p, "%sa.numbers", n ? ", " : "");
    print_to(p,
             ");\n        if (a.at[%d])\n"
             "            *(quad<%s> *)((%s *)a.at[%d] + o[%d]) = y;\n",
             n, type, type, n, n);
    if (qn__ir_dtype(ir, ir->result) == QN_F32)
        print_to(
            p,
            "        if (a.at[%d]) {\n"
            "            quad<u16> r;\n"
            "            for (int j = 0; j < 4; j++)\n"
            "                if (a.turned & 2)\n"
            "                    asm(\"cvt.rn.satfinite.f16.f32 %%0, %%1;\" : \"=h\"(r.v[j]) : "
            "\"f\"(y.v[j]));\n"
            "                else\n"
            "                    r.v[j] = bf16_of_f32(y.v[j]);\n"
            "            for (i64 j = 0; j < 2; j++) {\n"
            "                i64 at = 2 * i + j, to = (at & ~15ll) | (at & 3) << 2 | (at >> 2 "
            "& 3);\n"
            "                ((u32 *)a.at[%d])[a.turned & 1 ? to : at] = r.v[2 * j] | (u32)r.v[2 "
            "* j + 1] << 16;\n"
            "            }\n        }\n",
            n + 1, n + 1);
    print_to(p, "    }\n}\n");
}

/* Axes are walked from the last; strides lie operand by operand. Mirrors chain_args below. */
static void print_kernel(page *p, const qn__ir *ir)
{
    int n = ir->n_inputs, n_numbers = 0;
    const char *types[QN__IR_INPUTS];
    for (int i = 0; i < n; i++)
        types[i] = "u8";
    for (int i = 0; i < ir->n; i++) {
        if (ir->code[i].op == QN__IR_INPUT)
            types[ir->code[i].a] = qn__ir_type_c((qn_dtype)ir->code[i].dtype);
        n_numbers += ir->code[i].op == QN__IR_NUMBER;
    }
    print_to(p,
             "template <typename T> struct alignas(4 * sizeof(T)) quad { T v[4]; };\n"
             "struct chain_args { void *at[%d]; i64 n, n_axes, narrow, quads, vectors, turned, "
             "shape[%d]; u32 times[%d], shift[%d]; i32 step[%d]; i64 stride[%d][%d]; u64 "
             "numbers[%d]; };\n",
             n + 2, QN_MAX_NDIM, QN_MAX_NDIM, QN_MAX_NDIM, QN__IR_INPUTS, n + 1, QN_MAX_NDIM,
             n_numbers ? n_numbers : 1);
    print_walk(p, n);
    bool quads = ir->n <= MOST_OF_QUADS;
    if (quads)
        print_quads(p, ir, types, n_numbers > 0);
    print_to(p,
             "extern \"C\" __global__ void chain(const __grid_constant__ chain_args a)\n{\n" BEGINS
             "%s"
             "    i64 step = (i64)gridDim.x * blockDim.x;\n"
             "    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n"
             "        i64 o[%d];\n"
             "        walk(a, i, o);\n" WAITS,
             quads ? "    if (a.quads) {\n        quads(a);\n        return;\n    }\n" : "", n + 1);
    print_to(p, "        ((%s *)a.at[%d])[o[%d]] = element(",
             qn__ir_type_c(qn__ir_dtype(ir, ir->result)), n, n);
    for (int k = 0; k < n; k++)
        print_to(p, "%s((const %s *)a.at[%d])[o[%d]]", k ? ", " : "", types[k], k, k);
    if (n_numbers)
        print_to(p, "%sa.numbers", n ? ", " : "");
    print_to(p, ");\n    }\n}\n");
}

size_t qn__cuda_chain_text(const qn__ir *ir, char *text, size_t room)
{
    page p = {text, room, 0};
    print_to(&p, "%s", qn__ir_prelude_c(true));
    size_t left = p.length < room ? room - p.length : 0;
    p.length += qn__ir_render_c(ir, "element", left ? text + p.length : NULL, left);
    print_kernel(&p, ir);
    return p.length;
}

/* The compiled kernel of a chain: the device's, or a new one. */
static qn__cu_function chain_function(qn__cuda_binder *b, const qn__ir *ir)
{
    size_t n = qn__cuda_chain_text(ir, NULL, 0);
    char *text = malloc(n + 1);
    if (!text) {
        qn__fail_memory(b->err, "a program");
        return NULL;
    }
    qn__cuda_chain_text(ir, text, n + 1);
    const qn__cuda_source source = {
        .what = "a fused operation", .text = text, .n = n, .kernel = "chain", .exact = true};
    qn__cu_function function = qn__cuda_function(b, &source);
    free(text);
    return function;
}

/* ---- a launch -------------------------------------------------------------------------------- */

/* As the kernel's chain_args, for n inputs, without the addresses: stride has n + 1 rows, behind
 * which the bits of the program's numbers follow. */
typedef struct chain_args {
    int64_t n; /* elements, or fours of them */
    int64_t n_axes;
    int64_t narrow;  /* places are found in 32 bits */
    int64_t quads;   /* a thread has four elements of the last axis, */
    int64_t vectors; /* a bit an input: which are one vector, */
    int64_t turned;  /* how the result is rounded (turned.cuh) */
    int64_t shape[QN_MAX_NDIM];
    uint32_t times[QN_MAX_NDIM], shift[QN_MAX_NDIM]; /* by which an axis divides (divide_by) */
    int32_t step[QN__IR_INPUTS];                     /* ... or so far apart */
    int64_t stride[][QN_MAX_NDIM];
} chain_args;

/* Whether axis i of all operands continues where axis i + 1 ends. */
static bool axis_continues(const qn__call *call, int i)
{
    for (uint32_t k = 0; k < call->n_operands; k++) {
        const qn__operand *o = &call->operand[k];
        if (o->stride[i] != o->stride[i + 1] * o->shape[i + 1])
            return false;
    }
    return true;
}

/* Fills shape and strides, axes that all operands walk alike made one. */
static void join_axes(const qn__call *call, chain_args *args)
{
    const qn__operand *out = &call->operand[call->n_operands - 1];
    int n = 0, before = -1; /* the last axis taken */
    for (int i = 0; i < out->ndim; i++) {
        if (out->shape[i] == 1)
            continue;
        bool joins = before >= 0 && before == i - 1 && axis_continues(call, before);
        int at = joins ? n - 1 : n++;
        args->shape[at] = joins ? args->shape[at] * out->shape[i] : out->shape[i];
        for (uint32_t k = 0; k < call->n_operands; k++)
            args->stride[k][at] = call->operand[k].stride[i];
        before = i;
    }
    args->n_axes = n;
}

/* Whether elements from operand k's first one on, by fours, are vectors. */
static bool is_aligned(const qn__call *call, uint32_t k)
{
    const qn__operand *o = &call->operand[k];
    return o->offset % (4 * qn__dtype_size((qn_dtype)o->dtype)) == 0;
}

/* Whether all operands lie side by side, in vectors, or are one number. */
static bool is_flat(const qn__call *call, const chain_args *args)
{
    uint32_t n = call->n_operands - 1;
    bool ok = call->program->n <= MOST_OF_QUADS && args->n_axes <= 1 && args->n % 4 == 0;
    for (uint32_t k = 0; k <= n && ok; k++) {
        int64_t stride = k < n ? args->stride[k][0] : 1;
        ok = !stride || (stride == 1 && is_aligned(call, k));
    }
    return ok;
}

/* Whether so many times a stride are one of 32 bits. */
static bool fits(int64_t stride, int64_t times)
{
    return stride <= INT32_MAX / times && stride >= -INT32_MAX / times;
}

/* Whether the kernel's 32 bits hold all: quotients (divide_by), strides, those of fours, too. */
static bool is_narrow(const qn__call *call, const chain_args *args)
{
    bool ok = args->n <= INT32_MAX;
    for (uint32_t k = 0; k < call->n_operands; k++)
        for (int d = 0; d < args->n_axes; d++)
            ok = ok && fits(args->stride[k][d], 4);
    return ok;
}

/* Makes the last axis one of fours, where it can be. */
static void take_quads(const qn__call *call, chain_args *args, bool flat)
{
    uint32_t n = call->n_operands - 1;
    int last = (int)args->n_axes - 1;
    args->quads = flat || (args->narrow && call->program->n <= MOST_OF_QUADS && last >= 0 &&
                           args->shape[last] % 4 == 0 && is_aligned(call, n));
    if (!args->quads)
        return;
    for (uint32_t k = 0; k <= n; k++) {
        bool vectors = args->stride[k][last] == 1 && is_aligned(call, k);
        for (int d = 0; d < last; d++)
            vectors = vectors && args->stride[k][d] % 4 == 0;
        if (k < n) {
            args->vectors |= (int64_t)vectors << k;
            args->step[k] = (int32_t)args->stride[k][last];
        }
        args->stride[k][last] *= 4;
    }
    args->shape[last] /= 4;
    args->n /= 4;
}

/* The axis, not the last, along which an input lies side by side; -1: none has one. */
static int other_axis(const qn__call *call, const chain_args *args)
{
    int last = (int)args->n_axes - 1;
    for (uint32_t k = 0; k + 1 < call->n_operands; k++)
        for (int d = 0; d < last && args->step[k] && args->step[k] != 1; d++)
            if (args->stride[k][d] == 1)
                return d;
    return -1;
}

/* Where fours of a transposed input would be read a row apart, threads walk patches: a warp has
 * eight rows of four fours, so that what it reads and writes are whole sectors both ways. Patches
 * are two more axes, so that the kernel does not know of them. */
static void take_patches(const qn__call *call, chain_args *args)
{
    enum { ROWS = 32, FEWEST_ROWS = 8, FOURS = 4 };
    int last = (int)args->n_axes - 1, d = other_axis(call, args);
    int64_t rows = ROWS;
    while (d >= 0 && rows >= FEWEST_ROWS && args->shape[d] % rows)
        rows /= 2;
    if (d < 0 || rows < FEWEST_ROWS || args->shape[last] % FOURS || last + 2 >= QN_MAX_NDIM)
        return;
    for (uint32_t k = 0; k < call->n_operands; k++)
        if (!fits(args->stride[k][d], rows) || !fits(args->stride[k][last], FOURS))
            return;
    for (uint32_t k = 0; k < call->n_operands; k++) {
        int64_t *stride = args->stride[k];
        stride[last + 1] = stride[d];
        stride[last + 2] = stride[last];
        stride[d] *= rows;
        stride[last] *= FOURS;
    }
    args->shape[last + 1] = rows;
    args->shape[last + 2] = FOURS;
    args->shape[d] /= rows;
    args->shape[last] /= FOURS;
    args->n_axes += 2;
}

/* For x below 2^31, x / n is (the upper half of x * times, + x) >> shift (Granlund and Montgomery,
 * 1994, figure 4.1), of the smallest 2^shift from n on. */
static void divide_by(int64_t n, uint32_t *times, uint32_t *shift)
{
    *shift = 0;
    while (((int64_t)1 << *shift) < n)
        (*shift)++;
    uint64_t more = ((uint64_t)1 << *shift) - (uint64_t)n;
    *times = (uint32_t)((more << 32) / (uint64_t)n + 1);
}

/* The bits of a call's numbers, in the order of the program; returns how many. */
static int put_numbers(const qn__call *call, uint64_t *bits)
{
    const qn__ir *ir = call->program;
    qn__ir_instruction code[QN__IR_LARGEST];
    int n = 0;
    memcpy(code, ir->code, (size_t)ir->n * sizeof *code);
    qn__ir_fill_numbers(ir, call->constants, code);
    for (int i = 0; i < ir->n; i++)
        if (code[i].op == QN__IR_NUMBER)
            bits[n++] = qn__ir_bits(&code[i]);
    return n;
}

/* ---- what the launch ahead can do ------------------------------------------------------------ */

/* Whether value v is an array that the call reads, or that times one number, which an input is. */
static bool scaled_of(const qn__ir *ir, const chain_args *args, qn__ir_value v,
                      qn__cuda_scaled *scaled)
{
    const qn__ir_instruction *code = ir->code, *i = &code[v];
    *scaled = (qn__cuda_scaled){i->a, -1};
    if (i->op == QN__IR_MUL && i->dtype == QN_F32 && code[i->a].op == QN__IR_INPUT &&
        code[i->b].op == QN__IR_INPUT) {
        bool first = args->stride[code[i->a].a][0] != 0;
        *scaled = (qn__cuda_scaled){code[first ? i->a : i->b].a, code[first ? i->b : i->a].a};
        i = &code[first ? i->a : i->b];
        if (args->stride[scaled->factor][0] != 0)
            return false;
    }
    return i->op == QN__IR_INPUT && i->dtype == QN_F32 && args->stride[scaled->array][0] != 0;
}

/* Instructions of such a value. */
static int length_of(const qn__cuda_scaled *scaled)
{
    return scaled->factor < 0 ? 1 : 3;
}

/* Whether value v is that of an operation on a constant, whichever side, and another one. */
static bool is_with_constant(const qn__ir *ir, qn__ir_value v, qn__ir_op op, double constant,
                             qn__ir_value *other)
{
    const qn__ir_instruction *code = ir->code, *i = &code[v];
    if (i->op != op || i->dtype != QN_F32)
        return false;
    bool first = code[i->a].op == QN__IR_CONST;
    const qn__ir_instruction *k = &code[first ? i->a : i->b];
    *other = first ? i->b : i->a;
    float value = (float)constant;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return k->op == QN__IR_CONST && qn__ir_bits(k) == bits;
}

/* Whether value v is gelu_tanh(x) as ops/unary.c has it:
 * x 0.5 (tanh(x A (x x B + 1)) + 1). */
static bool is_gelu_tanh(const qn__ir *ir, qn__ir_value v, qn__ir_value *x)
{
    const qn__ir_instruction *code = ir->code, *i = &code[v];
    qn__ir_value t, cubic, square, same;
    if (!is_with_constant(ir, i->a, QN__IR_MUL, 0.5, x) ||
        !is_with_constant(ir, i->b, QN__IR_ADD, 1, &t) || code[t].op != QN__IR_TANH)
        return false;
    const qn__ir_instruction *u = &code[code[t].a];
    if (u->op != QN__IR_MUL ||
        !is_with_constant(ir, u->a, QN__IR_MUL, 0.79788456080286536, &same) || same != *x ||
        !is_with_constant(ir, u->b, QN__IR_ADD, 1, &cubic) ||
        !is_with_constant(ir, cubic, QN__IR_MUL, 0.044715, &square))
        return false;
    return code[square].op == QN__IR_MUL && code[square].a == *x && code[square].b == *x;
}

/* Of silu(x), relu(x)^2 or gelu_tanh(x): x, and which; -1: none of them. length: instructions
 * besides x. */
static int activation_of(const qn__ir *ir, qn__ir_value v, qn__ir_value *x, int *length)
{
    const qn__ir_instruction *code = ir->code, *i = &code[v];
    if (i->op != QN__IR_MUL || i->dtype != QN_F32)
        return -1;
    if (is_gelu_tanh(ir, v, x)) {
        *length = 13; /* of which four are constants */
        return QN__CUDA_GELU_TANH;
    }
    const qn__ir_instruction *a = &code[i->a];
    if (i->a == i->b && a->op == QN__IR_MAX) { /* of x and 0 */
        bool first = code[a->b].op == QN__IR_CONST;
        const qn__ir_instruction *zero = &code[first ? a->b : a->a];
        *x = first ? a->a : a->b;
        *length = 3;
        return zero->op == QN__IR_CONST && qn__ir_bits(zero) == 0 ? QN__CUDA_RELU_SQUARED : -1;
    }
    bool first = code[i->b].op == QN__IR_SIGMOID;
    *x = first ? i->a : i->b;
    *length = 2;
    const qn__ir_instruction *sigmoid = &code[first ? i->b : i->a];
    return sigmoid->op == QN__IR_SIGMOID && sigmoid->a == *x ? QN__CUDA_SILU : -1;
}

/* An activation of one array times another, both with a factor each or without. */
static bool gate_of(const qn__ir *ir, const chain_args *args, qn__cuda_gate *gate)
{
    const qn__ir_instruction *last = &ir->code[ir->result];
    for (int i = 0; i < 2 && last->op == QN__IR_MUL && last->dtype == QN_F32; i++) {
        qn__ir_value x;
        int length, kind = activation_of(ir, i ? last->b : last->a, &x, &length);
        if (kind >= 0 && scaled_of(ir, args, x, &gate->gate) &&
            scaled_of(ir, args, i ? last->a : last->b, &gate->up) &&
            gate->gate.array != gate->up.array &&
            ir->n == 1 + length + length_of(&gate->gate) + length_of(&gate->up)) {
            gate->activation = kind;
            return true;
        }
    }
    return false;
}

/* A sum of two arrays, of which the first may have a factor; or `sum` is false, and there is that
 * one. */
static bool is_scaled_sum(const qn__ir *ir, const chain_args *args, bool sum,
                          qn__cuda_scaled *scaled, qn__cuda_scaled *added)
{
    const qn__ir_instruction *last = &ir->code[ir->result];
    if (!sum)
        return scaled_of(ir, args, ir->result, scaled) && scaled->factor >= 0 && ir->n == 3;
    if (last->op != QN__IR_ADD || last->dtype != QN_F32 || !scaled_of(ir, args, last->a, scaled) ||
        !scaled_of(ir, args, last->b, added))
        return false;
    if (added->factor >= 0) {
        const qn__cuda_scaled other = *scaled;
        *scaled = *added;
        *added = other;
    }
    return added->factor < 0 && ir->n == 1 + length_of(scaled) + length_of(added);
}

/* One array as f32, and times a number where there is one, whichever side. */
static bool is_converted(const qn__call *call, bool *scaled, float *factor)
{
    const qn__ir *ir = call->program;
    qn__ir_instruction code[QN__IR_LARGEST];
    memcpy(code, ir->code, (size_t)ir->n * sizeof *code);
    qn__ir_fill_numbers(ir, call->constants, code);
    const qn__ir_instruction *i = &code[ir->result];
    *scaled = i->op == QN__IR_MUL;
    if (*scaled) {
        bool first = code[i->a].op == QN__IR_CONST || code[i->a].op == QN__IR_NUMBER;
        const qn__ir_instruction *number = &code[first ? i->a : i->b];
        uint32_t bits = (uint32_t)qn__ir_bits(number);
        if (i->dtype != QN_F32 || (number->op != QN__IR_CONST && number->op != QN__IR_NUMBER))
            return false;
        memcpy(factor, &bits, sizeof bits);
        i = &code[first ? i->b : i->a];
    }
    if (i->op == QN__IR_CAST && i->dtype == QN_F32)
        i = &code[i->a];
    return i->op == QN__IR_INPUT && ir->n_inputs == 1 &&
           (i->dtype == QN_F32 || i->dtype == QN_BF16 || i->dtype == QN_F16);
}

/* The newest launch does what the call does. */
static bool is_done_ahead(qn__cuda_binder *b, const qn__call *call, const chain_args *args)
{
    const qn__ir *ir = call->program;
    qn__cuda_scaled scaled, added;
    qn__cuda_gate gate;
    bool times;
    float factor = 1;
    if (is_converted(call, &times, &factor) && qn__cuda_convert_taken(b, call, times, factor))
        return true;
    if (is_scaled_sum(ir, args, true, &scaled, &added))
        return qn__cuda_add_behind(b, call, &scaled, added.array) ||
               (scaled.factor < 0 && (qn__cuda_add_behind(b, call, &added, scaled.array) ||
                                      qn__cuda_add_to_norm(b, call)));
    if (is_scaled_sum(ir, args, false, &scaled, &added))
        return qn__cuda_add_behind(b, call, &scaled, -1);
    return gate_of(ir, args, &gate) && qn__cuda_gate_behind(b, call, &gate);
}

bool qn__cuda_prepare_chain(qn__cuda_binder *b, const qn__call *call)
{
    int n = (int)call->n_operands - 1; /* inputs */
    union {
        char bytes[(QN__IR_INPUTS + 2) * sizeof(void *) + sizeof(chain_args) +
                   (QN__IR_INPUTS + 1) * QN_MAX_NDIM * sizeof(int64_t) +
                   QN__IR_LARGEST * sizeof(uint64_t)];
        int64_t aligned;
    } packed = {{0}};
    uint8_t operand[QN__IR_INPUTS + 2] = {0};
    for (int i = 0; i <= n; i++)
        operand[i] = (uint8_t)i;
    operand[n + 1] = QN__CUDA_NONE;
    chain_args *args = (chain_args *)(packed.bytes + ((size_t)n + 2) * sizeof(void *));
    args->n = qn__cuda_elements(&call->operand[n]);
    if (!args->n)
        return true;
    join_axes(call, args);
    bool flat = is_flat(call, args);
    if (flat && is_done_ahead(b, call, args))
        return true;
    args->narrow = is_narrow(call, args);
    take_quads(call, args, flat);
    if (args->quads && args->narrow)
        take_patches(call, args);
    for (int d = 0; d < args->n_axes && args->narrow; d++)
        divide_by(args->shape[d], &args->times[d], &args->shift[d]);
    qn__cu_function function = chain_function(b, call->program);
    uint64_t *numbers = (uint64_t *)args->stride[n + 1];
    int n_numbers = put_numbers(call, numbers);
    size_t size = (size_t)((char *)(numbers + (n_numbers ? n_numbers : 1)) - packed.bytes);
    if (!function ||
        !qn__cuda_add(b, function, args->n, false, packed.bytes, size, call, n + 2, operand))
        return false;
    if (flat && call->operand[n].dtype == QN_F32)
        qn__cuda_may_round(b, (uint8_t)n, (uint8_t)(n + 1),
                           ((size_t)n + 2) * sizeof(void *) + offsetof(chain_args, turned),
                           QN__CUDA_ROUNDS_EITHER);
    return true;
}
