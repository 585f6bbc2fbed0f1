/* SPDX-License-Identifier: Apache-2.0
 *
 * Users' own kernels (quern/extend.h): their text behind the declarations of what they get, and a
 * launch with that filled in. They know nothing of overlapping launches, so theirs wait.
 */
#include "base/error.h"
#include "base/sized.h"
#include "core/dtype.h"
#include "core/primitive.h"
#include "cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert(offsetof(qn_cuda_call, data) == 0, "a launch's arguments begin with addresses");

enum { MOST_THREADS = 1024, FREE_SHARED = 48 << 10 };

static bool accepts_custom(const qn_array *node)
{
    (void)node; /* qn_custom has looked */
    return true;
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Stands before a user's text; as extend.h. */
static const char declarations[] =
    "typedef struct qn_cuda_view {\n"
    "    int dtype, ndim;\n"
    "    long long shape[%d], stride[%d];\n"
    "} qn_cuda_view;\n"
    "typedef struct qn_cuda_call {\n"
    "    void *data[%d];\n"
    "    qn_cuda_view view[%d];\n"
    "    long long units;\n"
    "    unsigned char params[%d];\n"
    "} qn_cuda_call;\n"
    "static_assert(sizeof(qn_cuda_call) == %zu, \"as the host has it\");\n"
#define DTYPE(name, bytes, kind, file_name) "#define qn_dtype_" #name " %d\n"
    QN_DTYPE_LIST(DTYPE)
#undef DTYPE
        "#line 1 \"%s/%s\"\n"
        "%s\n";

static int print_text(char *text, size_t room, const qn_primitive *p, const qn_cuda_kernel *k)
{
#define DTYPE(name, bytes, kind, file_name) QN_##name,
    return snprintf(text, room, declarations, QN_MAX_NDIM, QN_MAX_NDIM, QN_MAX_CUSTOM_INPUTS + 1,
                    QN_MAX_CUSTOM_INPUTS + 1, QN_MAX_CUSTOM_PARAMS, sizeof(qn_cuda_call),
                    QN_DTYPE_LIST(DTYPE) p->library, p->def.name, k->source);
#undef DTYPE
}

char *qn__cuda_custom_text(const qn_primitive *p, const qn_cuda_kernel *k, size_t *n)
{
    int length = print_text(NULL, 0, p, k);
    char *text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (text)
        print_text(text, (size_t)length + 1, p, k);
    *n = text ? (size_t)length : 0;
    return text;
}

static qn__cu_function function_of(qn__cuda_binder *b, const qn_primitive *p,
                                   const qn_cuda_kernel *k)
{
    char what[160], *text = NULL;
    snprintf(what, sizeof what, "%s/%s", p->library, p->def.name);
    qn__cuda_source source = {.what = what, .text = k->ptx, .kernel = k->name, .is_ptx = k->ptx};
    if (k->ptx)
        source.n = strlen(k->ptx);
    else
        source.text = text = qn__cuda_custom_text(p, k, &source.n);
    qn__cu_function function = NULL;
    if (source.text)
        function = qn__cuda_function(b, &source);
    else
        qn__fail_memory(b->err, "a program");
    free(text);
    return function;
}

/* ---- a launch -------------------------------------------------------------------------------- */

static qn_view view_of(const qn__operand *o)
{
    qn_view view = {.dtype = (qn_dtype)o->dtype, .ndim = o->ndim};
    memcpy(view.shape, o->shape, sizeof view.shape);
    memcpy(view.stride, o->stride, sizeof view.stride);
    return view;
}

static int64_t units_of(const qn_primitive_def *def, const qn__operand *y)
{
    int64_t n = qn__cuda_elements(y), last = y->ndim ? y->shape[y->ndim - 1] : 1;
    return def->unit == QN_UNIT_ELEMENT ? n : def->unit == QN_UNIT_WHOLE ? 1 : n ? n / last : 0;
}

static bool grid_of(qn__cuda_binder *b, const qn_primitive *p, const qn_cuda_kernel *k,
                    const qn_view *view, const void *params, int64_t units, qn_cuda_grid *grid)
{
    const char *library = p->library, *name = p->def.name;
    qn_error own = {0};
    *grid = (qn_cuda_grid){.blocks = qn__cuda_parts(units, QN__CUDA_THREADS),
                           .threads = QN__CUDA_THREADS};
    if (k->grid && k->grid(view, &view[p->def.n_inputs], params, grid, &own) != QN_OK)
        qn__fail(b->err, own.code ? own.code : QN_INVALID, "%s/%s: %s", library, name, own.message);
    else if (grid->blocks < 0 || grid->blocks > INT32_MAX || grid->threads < 1 ||
             grid->threads > MOST_THREADS)
        qn__fail(b->err, QN_INVALID,
                 "%s/%s: %lld blocks of %d threads; there may be %d, of 1 to %d", library, name,
                 (long long)grid->blocks, grid->threads, INT32_MAX, MOST_THREADS);
    else if (grid->shared < 0 || grid->shared > b->cuda->most_shared)
        qn__fail(b->err, QN_INVALID, "%s/%s: %d bytes of shared memory; %s has %d for a block",
                 library, name, grid->shared, b->cuda->name, b->cuda->most_shared);
    else
        return true;
    return false;
}

/* More shared memory than every kernel may have is asked for. */
static bool allow_shared(qn__cuda_binder *b, qn__cu_function function, int bytes)
{
    if (bytes <= FREE_SHARED)
        return true;
    if (!qn__cuda_enter(b->cuda))
        return false;
    int result = b->cuda->cu.function_set(function, QN__CU_DYNAMIC_SHARED, bytes);
    qn__cuda_leave(b->cuda);
    if (result != 0)
        qn__cuda_fail(b->cuda, b->err, result, "setting a kernel's shared memory");
    return result == 0;
}

static bool launch_custom(qn__cuda_binder *b, const qn__call *call)
{
    const qn__custom_params *c = call->params;
    const qn_primitive *p = c->primitive;
    const qn_primitive_def *def = &p->def;
    qn_view view[QN_MAX_CUSTOM_INPUTS + 1];
    uint8_t operand[QN_MAX_CUSTOM_INPUTS + 1];
    qn_cuda_kernel k;
    qn_cuda_grid grid;
    qn_cuda_call args = {.units = units_of(def, &call->operand[def->n_inputs])};
    memcpy(args.params, c->params, sizeof args.params);
    for (int i = 0; i <= def->n_inputs; i++) {
        view[i] = view_of(&call->operand[i]);
        operand[i] = (uint8_t)i;
        args.view[i] = (qn_cuda_view){.dtype = view[i].dtype, .ndim = view[i].ndim};
        memcpy(args.view[i].shape, view[i].shape, sizeof view[i].shape);
        memcpy(args.view[i].stride, view[i].stride, sizeof view[i].stride);
    }
    if (qn__sized_in(&k, sizeof k, def->cuda, "qn_cuda_kernel", b->err) != QN_OK ||
        !grid_of(b, p, &k, view, c->params, args.units, &grid))
        return false;
    qn__cu_function function = function_of(b, p, &k);
    if (!function || !allow_shared(b, function, grid.shared))
        return false;
    uint32_t before = b->bound->n_launches;
    const qn__cuda_grid as = {grid.blocks, (unsigned)grid.threads, (unsigned)grid.shared};
    if (!qn__cuda_add_grid(b, function, &as, &args, sizeof args, call, def->n_inputs + 1, operand))
        return false;
    if (b->bound->n_launches > before)
        b->bound->launches[before].waits = true;
    return true;
}

const qn__cuda_routine qn__cuda_custom = {QN__OP_CUSTOM, accepts_custom, launch_custom, 0};
