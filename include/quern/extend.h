/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of your own: registered on a device at run time, then used like any other: recorded,
 * planned, run by the device's threads or its GPU, differentiated. Experimental.
 *
 *     static const qn_primitive_def scale = {.size = sizeof scale, .name = "scale", ...};
 *     qn_primitive_register(device, "mine", &scale, &err);
 *     const qn_primitive *p = qn_primitive_find(device, "mine", "scale", 0, &err);
 *     qn_array *y = qn_custom(s, p, &x, 1, &params, sizeof params);
 *
 * examples/03_extend.c has a whole one, in a shared object of its own; examples/06_quantized.c one
 * with a kernel for CUDA, too.
 */
#ifndef QUERN_EXTEND_H
#define QUERN_EXTEND_H

#include "quern/array.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Inputs at most, and bytes of parameters. */
#define QN_MAX_CUSTOM_INPUTS 8
#define QN_MAX_CUSTOM_PARAMS 240

/* What a kernel sees of an array. The shape rule sees it without data and strides. */
typedef struct qn_view {
    void *data; /* the first element */
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM];
    int64_t stride[QN_MAX_NDIM]; /* in elements; 0 where broadcast */
} qn_view;

/* Into what the work can be cut. */
typedef enum qn_unit {
    QN_UNIT_ROW,     /* a row of the result: all but the last axis */
    QN_UNIT_ELEMENT, /* an element of the result, row-major */
    QN_UNIT_WHOLE    /* not at all: one thread does it */
} qn_unit;

/* ---- on a GPU -------------------------------------------------------------------------------- */

/* What a CUDA kernel gets, by value, as its one parameter. Data lies on the device. */
typedef struct qn_cuda_view {
    int32_t dtype, ndim; /* qn_dtype */
    int64_t shape[QN_MAX_NDIM], stride[QN_MAX_NDIM];
} qn_cuda_view;

typedef struct qn_cuda_call {
    void *data[QN_MAX_CUSTOM_INPUTS + 1]; /* first elements: of the inputs, then of the result */
    qn_cuda_view view[QN_MAX_CUSTOM_INPUTS + 1];
    int64_t units; /* as the primitive's `unit` counts them */
    unsigned char params[QN_MAX_CUSTOM_PARAMS];
} qn_cuda_call;

typedef struct qn_cuda_grid {
    int64_t blocks;
    int threads; /* of a block, 1 to 1024 */
    int shared;  /* bytes of dynamic shared memory of a block */
} qn_cuda_grid;

/* Either text is there. `source` is CUDA C++ that stands behind declarations of qn_cuda_view,
 * qn_cuda_call and the types qn_dtype_F32 and so on; it is compiled, without the headers of a
 * toolkit, when a device first needs it, and kept on the disk. `ptx` goes to the driver as it is.
 *
 *     extern "C" __global__ void scale(const __grid_constant__ qn_cuda_call call)
 *
 * Launches come in the order of the graph, each when the one ahead has ended. The same call must
 * give the same bits each time. */
typedef struct qn_cuda_kernel {
    size_t size; /* sizeof(qn_cuda_kernel) */
    const char *source, *ptx;
    const char *name; /* of the extern "C" kernel */

    /* Fills *grid from views without data; or fills err and returns its code. NULL: a thread for
     * each unit, in blocks of 256. No block: nothing is launched. */
    qn_status (*grid)(const qn_view *in, const qn_view *out, const void *params, qn_cuda_grid *grid,
                      qn_error *err);
} qn_cuda_kernel;

/* ---- operations ------------------------------------------------------------------------------ */

/* The parameters are `params_size` bytes that are hashed, compared and copied: no pointers, no
 * padding. Functions may be called by any thread and keep no state. */
typedef struct qn_primitive_def {
    size_t size; /* sizeof(qn_primitive_def) */
    const char *name;
    int version; /* from 1 */
    int n_inputs;
    size_t params_size;
    qn_unit unit;
    size_t scratch; /* bytes of its own for each thread, 64-byte aligned */

    /* Fills dtype, ndim and shape of the result, which will be row-major; or fills err and returns
     * its code. NULL: those of input 0. */
    qn_status (*infer)(const qn_view *in, const void *params, qn_view *out, qn_error *err);

    /* Computes the units begin .. end - 1. Must give the same bits however the work is cut. NULL:
     * the CPU has no kernel. */
    void (*cpu)(const qn_view *in, const qn_view *out, const void *params, int64_t begin,
                int64_t end, void *scratch);

    /* Derivatives, recorded with public operations; NULL: there is none. `y` is the result. vjp
     * fills grads[i] for inputs with want[i], of input i's shape, or leaves NULL for zero.
     * tangents[i] may be NULL for zero. */
    void (*vjp)(qn_scope *s, qn_array *const *in, qn_array *y, const void *params, qn_array *ct,
                const bool *want, qn_array **grads);
    qn_array *(*jvp)(qn_scope *s, qn_array *const *in, qn_array *y, const void *params,
                     qn_array *const *tangents);

    const qn_cuda_kernel *cuda; /* has to stay. NULL: CUDA has no kernel */
} qn_primitive_def;

typedef struct qn_primitive qn_primitive;

/* Adds a primitive under library, name and version; the strings are copied, the functions have to
 * stay. The same one twice is QN_INVALID. It lives as long as the device. Any thread may call. */
QN_API qn_status qn_primitive_register(qn_device *device, const char *library,
                                       const qn_primitive_def *def, qn_error *err);

/* version 0: the newest. NULL with QN_NOT_FOUND, and the known ones named, when there is none. */
QN_API const qn_primitive *qn_primitive_find(qn_device *device, const char *library,
                                             const char *name, int version, qn_error *err);

/* Records the primitive on n inputs (no packed weights). params may be NULL where it has none.
 * QN_UNSUPPORTED on a device for which the primitive has no kernel. */
QN_API qn_array *qn_custom(qn_scope *s, const qn_primitive *primitive, qn_array *const *in, int n,
                           const void *params, size_t params_size);

/* What a shared object exports under a name, as `QN_API const qn_library NAME = {...};`. */
typedef struct qn_library {
    size_t size; /* sizeof(qn_library) */
    const char *name;
    const qn_primitive_def *primitives;
    int n;
} qn_library;

/* Loads a shared object and registers all primitives of its `symbol` (NULL: "quern_library");
 * closed with the device. Derivatives in it call functions of this library: a program that has them
 * linked in must export them (-rdynamic). It runs code of that file: load only what you trust. */
QN_API qn_status qn_device_load_library(qn_device *device, const char *path, const char *symbol,
                                        qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
