/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of your own: registered on a device at run time, then used like any other: recorded,
 * planned, run by the device's threads, differentiated. Experimental: kernels are for the CPU only.
 *
 *     static const qn_primitive_def scale = {.size = sizeof scale, .name = "scale", ...};
 *     qn_primitive_register(device, "mine", &scale, &err);
 *     const qn_primitive *p = qn_primitive_find(device, "mine", "scale", 0, &err);
 *     qn_array *y = qn_custom(s, p, &x, 1, &params, sizeof params);
 *
 * examples/03_extend.c has a whole one, in a shared object of its own.
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

    /* Computes the units begin .. end - 1. Must give the same bits however the work is cut. */
    void (*cpu)(const qn_view *in, const qn_view *out, const void *params, int64_t begin,
                int64_t end, void *scratch);

    /* Derivatives, recorded with public operations; NULL: there is none. `y` is the result. vjp
     * fills grads[i] for inputs with want[i], of input i's shape, or leaves NULL for zero.
     * tangents[i] may be NULL for zero. */
    void (*vjp)(qn_scope *s, qn_array *const *in, qn_array *y, const void *params, qn_array *ct,
                const bool *want, qn_array **grads);
    qn_array *(*jvp)(qn_scope *s, qn_array *const *in, qn_array *y, const void *params,
                     qn_array *const *tangents);
} qn_primitive_def;

typedef struct qn_primitive qn_primitive;

/* Adds a primitive under library, name and version; the strings are copied, the functions have to
 * stay. The same one twice is QN_INVALID. It lives as long as the device. Any thread may call. */
QN_API qn_status qn_primitive_register(qn_device *device, const char *library,
                                       const qn_primitive_def *def, qn_error *err);

/* version 0: the newest. NULL with QN_NOT_FOUND, and the known ones named, when there is none. */
QN_API const qn_primitive *qn_primitive_find(qn_device *device, const char *library,
                                             const char *name, int version, qn_error *err);

/* Records the primitive on n inputs (no packed weights). params may be NULL where it has none. */
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
