/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: devices, scopes, lazy operations, evaluation.
 *
 * An operation takes a scope and returns an array that the scope owns; nothing runs until
 * qn_eval. Ending the scope frees all of its arrays; qn_retain lets an evaluated one outlive it.
 * A failed operation returns the scope's poison array: pass it on, and ask the scope once.
 *
 *     qn_scope *s = qn_scope_begin(device);
 *     qn_array *y = qn_add(s, x, qn_matmul(s, h, w));
 *     if (qn_eval(s, y) != QN_OK)
 *         fprintf(stderr, "%s\n", qn_scope_error(s));
 *     qn_scope_end(s);
 *
 * Threads: a scope belongs to one thread. A device and retained arrays may be shared.
 * Shapes in the comments: [B, L, D]. Axes may be negative: -1 is the last.
 */
#ifndef QUERN_ARRAY_H
#define QUERN_ARRAY_H

#include "quern/base.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ---------------------------------------------------------------------------------- */

/* name, bytes, kind (b bool, u unsigned, i signed, f float), safetensors name */
#define QN_DTYPE_LIST(X)                                                                           \
    X(BOOL, 1, b, "BOOL")                                                                          \
    X(U8, 1, u, "U8")                                                                              \
    X(U16, 2, u, "U16")                                                                            \
    X(U32, 4, u, "U32")                                                                            \
    X(U64, 8, u, "U64")                                                                            \
    X(I8, 1, i, "I8")                                                                              \
    X(I16, 2, i, "I16")                                                                            \
    X(I32, 4, i, "I32")                                                                            \
    X(I64, 8, i, "I64")                                                                            \
    X(F16, 2, f, "F16")                                                                            \
    X(BF16, 2, f, "BF16")                                                                          \
    X(F32, 4, f, "F32")                                                                            \
    X(F64, 8, f, "F64")

typedef enum qn_dtype {
#define QN_DTYPE_ENUM(name, bytes, kind, file_name) QN_##name,
    QN_DTYPE_LIST(QN_DTYPE_ENUM)
#undef QN_DTYPE_ENUM
        QN_DTYPE_COUNT
} qn_dtype;

/* At most this many axes. */
#define QN_MAX_NDIM 6

typedef struct qn_device qn_device;
typedef struct qn_scope qn_scope;
typedef struct qn_array qn_array;

/* Bytes of one element, and a short lower-case name such as "bf16". */
QN_API size_t qn_dtype_size(qn_dtype dtype);
QN_API const char *qn_dtype_name(qn_dtype dtype);

/* ---- devices -------------------------------------------------------------------------------- */

typedef struct qn_device_options {
    size_t size;         /* sizeof(qn_device_options) */
    int threads;         /* CPU threads; 0: the CPUs this process may use */
    const char *tier;    /* CPU tier: "ref", "avx2", "avx512", "amx"; NULL: QN_CPU, or the best */
    size_t memory_limit; /* bytes; 0: none */
    qn_log_fn log;       /* NULL: silent */
    void *log_user;
    size_t wired_limit; /* bytes of the host's memory that a GPU page-locks; see
                           qn_device_set_wired_limit */
} qn_device_options;

/* Opens "cpu", "cuda", "cuda:1" ..., or "auto": the first GPU if there is one, else the CPU; that
 * also where the GPU has no memory left for a program, of which the log has a warning. A model that
 * is too large for the GPU is known later: qn_model_open is QN_MEMORY then. options may be NULL.
 * Unknown or absent devices are QN_UNSUPPORTED with the available ones named. */
QN_API qn_status qn_device_open(qn_device **out, const char *name, const qn_device_options *options,
                                qn_error *err);

/* Gives up the caller's reference; the device goes when its last array does. NULL is accepted. */
QN_API void qn_device_close(qn_device *device);

/* Whether qn_device_open would find a device of this name. */
QN_API bool qn_device_available(const char *name);

QN_API const char *qn_device_name(const qn_device *device);

/* One line about the device, such as "AVX-512, 2 threads". Writes at most `room` bytes. */
QN_API void qn_device_describe(qn_device *device, char *text, size_t room);

/* Bytes a second at which the host's memory is copied to the device's at best, for comparing what
 * loading reaches: measured, in a fraction of a second, while nothing else runs. 0: it could not
 * be. */
QN_API double qn_device_copy_rate(qn_device *device);

/* What the device can do at best, a second, for comparing what is reached. 0: it has no such
 * instruction, or it was not measured. A multiplication and an addition are two operations. */
typedef struct qn_ceilings {
    size_t size;            /* sizeof(qn_ceilings) */
    double read;            /* bytes of its memory */
    double f32, bf16, int8; /* operations, in products of these types */
} qn_ceilings;

/* Measures that in about a second, while nothing else runs, by small loops: on a CPU the best of
 * several runs on all of its threads; on a GPU, which has f32 and int8 as 0, what it keeps up, for
 * which up to 8 GiB of what it has free are taken, never more than half. QN_INVALID: size was not
 * set. */
QN_API qn_status qn_device_ceilings(qn_device *device, qn_ceilings *out);

/* Which kernels the device chose for the work that matters: the i-th purpose, such as "linear", and
 * the tier whose kernel serves it, such as "avx512". False behind the last; a device without tiers
 * has none. */
QN_API bool qn_device_kernel(const qn_device *device, int i, const char **purpose,
                             const char **tier);

typedef struct qn_memory_stats {
    size_t size;      /* sizeof(qn_memory_stats) */
    size_t active;    /* bytes in arrays that something refers to */
    size_t workspace; /* bytes for the intermediate values of a run, kept between runs */
    size_t cached;    /* bytes freed but kept for reuse; with the others never more than was once in
                         use */
    size_t peak;      /* the most that active and workspace ever came to */
    size_t limit;     /* 0: none */
    size_t available; /* bytes that a GPU has free beside all that is in use, this program's or
                         another's; 0: the device does not know */
    size_t wired;     /* page-locked bytes of the host */
    size_t wired_limit;
} qn_memory_stats;

/* QN_INVALID, also of qn_device_plan_stats: size was not set. */
QN_API qn_status qn_device_memory(qn_device *device, qn_memory_stats *stats);
QN_API void qn_device_reset_peak(qn_device *device);
/* Both limits in bytes. Returns the limit before. 0 for the memory limit: none. */
QN_API size_t qn_device_set_memory_limit(qn_device *device, size_t bytes);
QN_API size_t qn_device_set_cache_limit(qn_device *device, size_t bytes);
/* The same for what a GPU page-locks of the host's memory, through which it is written to; 0: as
 * much as it likes, 32 MiB. With less than 1 MiB it locks none, and is written to more slowly. */
QN_API size_t qn_device_set_wired_limit(qn_device *device, size_t bytes);
/* Frees all cached bytes. */
QN_API void qn_device_clear_cache(qn_device *device);

typedef struct qn_plan_stats {
    size_t size; /* sizeof(qn_plan_stats) */
    uint64_t evaluations;
    uint64_t hits;    /* found a plan */
    uint64_t rebinds; /* of these, with sizes other than the plan's newest */
    uint64_t misses;  /* made a plan */
    uint64_t evictions;
    uint64_t nodes;           /* nodes evaluated */
    uint64_t steps;           /* of plans, run: an operation, a pass of fused ones, or a copy */
    uint64_t fused;           /* elementwise nodes that ran inside another's pass */
    uint64_t chain_bytes;     /* read and written by elementwise passes */
    uint64_t donation_copies; /* donated buffers that had to be copied */
    uint64_t hit_ns;          /* time from evaluation to submission, of hits */
    size_t bytes;             /* held by cached plans, on a GPU with their graphs (estimated) */
    uint64_t launches;        /* of kernels: on a GPU fewer than steps where one does the work of
                                 several, and more where a step is several; elsewhere as many */
    uint64_t submit_ns; /* time in which runs were handed to the device; on a CPU most of them run
                           in it */
} qn_plan_stats;

QN_API qn_status qn_device_plan_stats(qn_device *device, qn_plan_stats *stats);

/* ---- scopes --------------------------------------------------------------------------------- */

/* NULL when memory is out; every function accepts a NULL scope and fails with QN_MEMORY. */
QN_API qn_scope *qn_scope_begin(qn_device *device);

/* Frees all arrays of the scope. Does not wait for asynchronous evaluations. */
QN_API void qn_scope_end(qn_scope *s);

/* The first failure: its code, and one line for a person. QN_OK and "" when there is none. */
QN_API qn_status qn_scope_status(const qn_scope *s);
QN_API const char *qn_scope_error(const qn_scope *s);
QN_API qn_device *qn_scope_device(const qn_scope *s);

/* Computes `a` (views and all it needs). On failure the scope keeps the error. */
QN_API qn_status qn_eval(qn_scope *s, qn_array *a);
QN_API qn_status qn_eval_many(qn_scope *s, qn_array *const *arrays, int n);

/* Starts computing and returns. Runs of a device are in the order in which they were started,
 * whichever scope and thread started them. qn_wait waits for all of the scope's and gives the first
 * failure; reading an array waits for the run that computes it. */
QN_API qn_status qn_eval_async(qn_scope *s, qn_array *const *arrays, int n);
QN_API qn_status qn_wait(qn_scope *s);

/* ---- arrays --------------------------------------------------------------------------------- */

/* A reference to an evaluated array that outlives its scope; release it with qn_release. NULL,
 * recorded in the scope, when it has not been evaluated, when an update in place has overwritten
 * it, or when memory is out. */
QN_API qn_array *qn_retain(qn_array *a);
QN_API void qn_release(qn_array *a);

/* Hands a retained array to the graph: its buffer may be overwritten in place, so that a cache or
 * an optimiser's state keeps its address. Takes over the caller's reference. If another reference
 * to the buffer exists the update works on a copy, which qn_plan_stats counts. A run that is
 * refused before it begins, by a memory limit, leaves it as it was (qn_retain gives it back); one
 * that fails later, or an asynchronous one that fails at all, leaves the buffer invalid: reads of
 * it fail. */
QN_API qn_array *qn_donate(qn_scope *s, qn_array *a);

/* ---- functions ------------------------------------------------------------------------------ */

/* Something recorded once and called again with other arrays, for which nothing is recorded,
 * described or looked up any more: what a small step costs beside its arithmetic. A function
 * belongs to one thread. */
typedef struct qn_function qn_function;

/* Records out[] from in[]. It is called for the first arguments of some shapes, types and strides,
 * and for nothing else: numbers and arrays that it has from elsewhere, and keys of random numbers,
 * are then what they were. It must not evaluate, read or donate. */
typedef void qn_recorder(void *user, qn_scope *s, qn_array *const *in, qn_array **out);

/* A function of n_in arrays that gives n_out. donated [n_in], or NULL for none: whose buffers it
 * may overwrite, as qn_donate's. It keeps 16 recordings, of the shapes that were called last; those
 * whose sizes are close share a plan. */
QN_API qn_status qn_compile(qn_function **out, qn_device *device, qn_recorder *record, void *user,
                            int n_in, const bool *donated, int n_out, qn_error *err);

/* in [n_in] and out [n_out] are retained arrays, out new ones. Donated ones are the function's when
 * it succeeds, and stay the caller's when it fails, though maybe invalid, as qn_donate says.
 * QN_INVALID: an argument is not retained, or donated and given twice; else the first failure of
 * recording or running. */
QN_API qn_status qn_call(qn_function *f, qn_array *const *in, qn_array **out, qn_error *err);
QN_API void qn_function_close(qn_function *f); /* NULL is accepted */

QN_API qn_dtype qn_array_dtype(const qn_array *a);
QN_API int qn_array_ndim(const qn_array *a);
/* The size of an axis; -1 for an axis the array does not have. */
QN_API int64_t qn_array_dim(const qn_array *a, int axis);
QN_API int64_t qn_array_elements(const qn_array *a);

/* Copies the values, row-major, into `out`, which holds `n` elements; evaluates first when needed.
 * n must be the number of elements. _f32 and _i64 convert. */
QN_API qn_status qn_read(qn_scope *s, qn_array *a, void *out, size_t bytes);
QN_API qn_status qn_read_f32(qn_scope *s, qn_array *a, float *out, size_t n);
QN_API qn_status qn_read_i64(qn_scope *s, qn_array *a, int64_t *out, size_t n);
/* The same in any type: `out` has room for n elements of it. Converts as qn_cast does. */
QN_API qn_status qn_read_as(qn_scope *s, qn_array *a, qn_dtype dtype, void *out, size_t n);

/* Visits the elements of an array in row-major order, whatever its strides:
 *
 *     qn_cursor *c = qn_cursor_open(s, a);
 *     while (qn_cursor_next(c))
 *         printf("[%lld] %g\n", (long long)qn_cursor_index(c)[0], qn_cursor_f64(c));
 *     qn_cursor_close(c);
 *
 * Opening evaluates the array and copies what it spans from the device, so that the cursor may
 * outlive the scope; NULL with the scope's error set on failure, which _next and _close accept.
 * Index, value (the element as it is stored) and conversions need a _next that gave true. */
typedef struct qn_cursor qn_cursor;
QN_API qn_cursor *qn_cursor_open(qn_scope *s, qn_array *a);
QN_API bool qn_cursor_next(qn_cursor *c);
QN_API const int64_t *qn_cursor_index(const qn_cursor *c); /* a number for each axis */
QN_API const void *qn_cursor_value(const qn_cursor *c);
QN_API double qn_cursor_f64(const qn_cursor *c);
QN_API int64_t qn_cursor_i64(const qn_cursor *c);
QN_API void qn_cursor_close(qn_cursor *c);

/* An array with the given values, copied from the host, row-major. */
QN_API qn_array *qn_from(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape,
                         const void *values);
/* One-dimensional shorthands. */
QN_API qn_array *qn_from_f32(qn_scope *s, const float *values, int64_t n);
QN_API qn_array *qn_from_i32(qn_scope *s, const int32_t *values, int64_t n);

/* The values of a retained array that may be another device's; it may go when this returns. Between
 * two GPUs they go directly. A packed weight cannot: it is packed where it is multiplied. */
QN_API qn_array *qn_from_array(qn_scope *s, qn_array *a);

/* Every element the same; a constant of the graph, no storage. */
QN_API qn_array *qn_full(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape, double value);
QN_API qn_array *qn_zeros(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape);
QN_API qn_array *qn_ones(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape);
QN_API qn_array *qn_scalar(qn_scope *s, qn_dtype dtype, double value);
/* 0, 1, ... n-1. More ways to make arrays (eye, tri, linspace, random numbers) are in ops.h. */
QN_API qn_array *qn_arange(qn_scope *s, qn_dtype dtype, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
