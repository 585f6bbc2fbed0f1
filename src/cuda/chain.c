/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused chains: the program is rendered as CUDA C (core/ir_c.c) inside a kernel that walks its
 * operands by strides, compiled by NVRTC and kept by its text. The text names no sizes, so one
 * program serves every shape; sizes and strides are arguments.
 */
#include "base/error.h"
#include "base/hash.h"
#include "core/dtype.h"
#include "cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct qn__cuda_program {
    struct qn__cuda_program *next;
    qn__cu_module module;
    qn__cu_function function;
    uint64_t hash; /* of the text */
    char text[];
};

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

/* Axes of the output are walked from the last; strides lie input by input. Mirrors chain_args
 * below. */
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
             "struct chain_args { void *at[%d]; i64 n, n_axes, shape[%d], stride[%d][%d]; u64 "
             "numbers[%d]; };\n",
             n + 1, QN_MAX_NDIM, n ? n : 1, QN_MAX_NDIM, n_numbers ? n_numbers : 1);
    print_to(
        p, "extern \"C\" __global__ void chain(chain_args a)\n{\n"
           "#if __CUDA_ARCH__ >= 900\n"
           "    asm volatile(\"griddepcontrol.launch_dependents;\" ::: \"memory\");\n"
           "#endif\n"
           "    i64 step = (i64)gridDim.x * blockDim.x;\n"
           "    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n");
    for (int k = 0; k < n; k++)
        print_to(p, "        i64 o%d = 0;\n", k);
    print_to(p, "        i64 rest = i;\n"
                "        for (int d = (int)a.n_axes - 1; d > 0; d--) {\n"
                "            i64 index = rest %% a.shape[d];\n"
                "            rest /= a.shape[d];\n");
    for (int k = 0; k < n; k++)
        print_to(p, "            o%d += index * a.stride[%d][d];\n", k, k);
    print_to(p, "        }\n");
    for (int k = 0; k < n; k++)
        print_to(p, "        o%d += rest * a.stride[%d][0];\n", k, k);
    print_to(p, "#if __CUDA_ARCH__ >= 900\n"
                "        asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
                "#endif\n");
    print_to(p, "        ((%s *)a.at[%d])[i] = element(",
             qn__ir_type_c(qn__ir_dtype(ir, ir->result)), n);
    for (int k = 0; k < n; k++)
        print_to(p, "%s((const %s *)a.at[%d])[o%d]", k ? ", " : "", types[k], k, k);
    if (n_numbers)
        print_to(p, "%sa.numbers", n ? ", " : "");
    print_to(p, ");\n    }\n}\n");
}

size_t qn__cuda_chain_text(const qn__ir *ir, char *text, size_t room)
{
    page p = {text, room, 0};
    print_to(&p, "%s", qn__ir_prelude_c(true));
    size_t left = p.length < room ? room - p.length : 0;
    size_t element = qn__ir_render_c(ir, "element", left ? text + p.length : NULL, left);
    if (!element)
        return 0;
    p.length += element;
    print_kernel(&p, ir);
    return p.length;
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* The first line of the compiler's log goes into the error. */
static void fail_compile(const qn__nvrtc *nvrtc, qn__nvrtc_program program, qn_error *err)
{
    size_t n = 0;
    char *log = nvrtc->log_size(program, &n) == 0 ? calloc(1, n + 1) : NULL;
    if (log && nvrtc->log(program, log) == 0)
        log[strcspn(log, "\n")] = 0;
    qn__fail(err, QN_DEVICE, "cuda: a fused operation does not compile: %s",
             log && *log ? log : "no message");
    free(log);
}

char *qn__cuda_compile(const qn__nvrtc *nvrtc, const char *text, int arch, qn_error *err)
{
    char target[48];
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d", arch);
    const char *options[] = {target, "--fmad=false", "--std=c++17"};
    qn__nvrtc_program program;
    if (nvrtc->create(&program, text, "chain.cu", 0, NULL, NULL) != 0) {
        qn__fail_memory(err, "a program");
        return NULL;
    }
    char *code = NULL;
    size_t n = 0;
    if (nvrtc->compile(program, 3, options) != 0 || nvrtc->code_size(program, &n) != 0)
        fail_compile(nvrtc, program, err);
    else if (!(code = malloc(n)) || nvrtc->code(program, code) != 0)
        qn__fail_memory(err, "a program");
    nvrtc->destroy(&program);
    return code;
}

static qn__cuda_program *find_program(qn__cuda *cuda, const char *text, uint64_t hash)
{
    qn__cuda_program *p = cuda->programs;
    while (p && (p->hash != hash || strcmp(p->text, text)))
        p = p->next;
    return p;
}

/* Under the lock, in the context. */
static qn__cuda_program *make_program(qn__cuda *cuda, const char *text, size_t length,
                                      uint64_t hash, qn_error *err)
{
    if (!cuda->nvrtc.library && qn__nvrtc_load(&cuda->nvrtc, err) != QN_OK)
        return NULL;
    char *code = qn__cuda_compile(&cuda->nvrtc, text, cuda->arch, err);
    if (!code)
        return NULL;
    qn__cuda_program *p = calloc(1, sizeof *p + length + 1);
    int result = p ? cuda->cu.module_load(&p->module, code) : QN__CU_OUT_OF_MEMORY;
    free(code);
    if (result == 0)
        result = cuda->cu.module_function(&p->function, p->module, "chain");
    if (result != 0) {
        if (p && p->module)
            cuda->cu.module_unload(p->module);
        free(p);
        qn__cuda_fail(cuda, err, result, "loading a fused operation");
        return NULL;
    }
    memcpy(p->text, text, length);
    p->hash = hash;
    p->next = cuda->programs;
    cuda->programs = p;
    cuda->stats.programs++;
    return p;
}

void qn__cuda_programs_free(qn__cuda *cuda)
{
    while (cuda->programs) {
        qn__cuda_program *next = cuda->programs->next;
        cuda->cu.module_unload(cuda->programs->module);
        free(cuda->programs);
        cuda->programs = next;
    }
}

/* The compiled kernel of a program: the device's, or a new one. */
static qn__cu_function program_function(qn__cuda_binder *b, const qn__ir *ir)
{
    size_t n = qn__cuda_chain_text(ir, NULL, 0);
    char *text = n ? malloc(n + 1) : NULL;
    if (!text) {
        if (n)
            qn__fail_memory(b->err, "a program");
        else
            qn__fail(b->err, QN_UNSUPPORTED, "cuda: a fused operation divides integers");
        return NULL;
    }
    qn__cuda_chain_text(ir, text, n + 1);
    qn__cuda *cuda = b->cuda;
    qn__cuda_program *p = NULL;
    pthread_mutex_lock(&cuda->lock);
    if (qn__cuda_enter(cuda)) {
        uint64_t hash = qn__hash_bytes(text, n, 0);
        p = find_program(cuda, text, hash);
        if (!p)
            p = make_program(cuda, text, n, hash, b->err);
        qn__cuda_leave(cuda);
    } else {
        qn__fail(b->err, QN_DEVICE, "%s: the context is lost", cuda->name);
    }
    pthread_mutex_unlock(&cuda->lock);
    free(text);
    return p ? p->function : NULL;
}

/* ---- a launch -------------------------------------------------------------------------------- */

/* As the kernel's chain_args, for n inputs, without the addresses: stride has n rows, behind which
 * the bits of the program's numbers follow. */
typedef struct chain_args {
    int64_t n, n_axes, shape[QN_MAX_NDIM];
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
        for (uint32_t k = 0; k + 1 < call->n_operands; k++)
            args->stride[k][at] = call->operand[k].stride[i];
        before = i;
    }
    args->n_axes = n;
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

bool qn__cuda_prepare_chain(qn__cuda_binder *b, const qn__call *call)
{
    int n = (int)call->n_operands - 1; /* inputs */
    union {
        char bytes[(QN__IR_INPUTS + 1) * sizeof(void *) + sizeof(chain_args) +
                   QN__IR_INPUTS * QN_MAX_NDIM * sizeof(int64_t) +
                   QN__IR_LARGEST * sizeof(uint64_t)];
        int64_t aligned;
    } packed = {{0}};
    uint8_t operand[QN__IR_INPUTS + 1];
    for (int i = 0; i <= n; i++)
        operand[i] = (uint8_t)i;
    chain_args *args = (chain_args *)(packed.bytes + ((size_t)n + 1) * sizeof(void *));
    args->n = qn__cuda_elements(&call->operand[n]);
    if (!args->n)
        return true;
    join_axes(call, args);
    qn__cu_function function = program_function(b, call->program);
    uint64_t *numbers = (uint64_t *)args->stride[n ? n : 1];
    int n_numbers = put_numbers(call, numbers);
    size_t size = (size_t)((char *)(numbers + (n_numbers ? n_numbers : 1)) - packed.bytes);
    return function &&
           qn__cuda_add(b, function, args->n, false, packed.bytes, size, call, n + 1, operand);
}
