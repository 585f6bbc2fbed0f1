/* SPDX-License-Identifier: Apache-2.0
 *
 * The device interface: one const struct of functions that a device fills, and the object the rest
 * of core keeps per device (pool of buffers, cache of plans).
 */
#ifndef QN_CORE_DEVICE_H
#define QN_CORE_DEVICE_H

#include "core/array.h"
#include "core/plan.h"
#include "core/primitive.h"
#include "quant/layout.h"

typedef struct qn__device_ops {
    const char *kind;    /* "cpu", "cuda" */
    int64_t step_tokens; /* of a prompt that a step has unless told otherwise; 0: 512 */
    bool by_rows;        /* QN_PRODUCTS_BY_ROWS is faster than AUTO */
    bool halves;         /* QN_PRODUCTS_F16 is what AUTO means for a weight in f16; keys and values
                            of a model in f16 are in f16, too */
    bool runs_ahead;     /* a step that may not be wanted costs less than waiting before the next */
    void (*close)(qn_device *device);

    /* Memory. alloc returns NULL when there is none. write fills a buffer that no submission knows,
     * or a part of one that says so (written_since); read waits for the submission that
     * computes the buffer, from whose data + offset it copies.
     */
    void *(*alloc)(qn_device *device, size_t size);
    void (*free)(qn_device *device, void *data, size_t size);
    /* Addresses for `size` bytes, and memory for the first `want` of them where the first `had`
     * have some (less: it is given back; both are multiples of 64 KiB). reserve is NULL where a
     * device cannot: its buffers are then whole from the beginning. */
    void *(*reserve)(qn_device *device, size_t size);
    bool (*commit)(qn_device *device, void *data, size_t had, size_t want);
    void (*unreserve)(qn_device *device, void *data, size_t size, size_t committed);
    /* The memory that the first `bytes` take, which a device may give in larger pieces. NULL: so
     * many. */
    size_t (*committed)(const qn_device *device, size_t bytes);
    /* How much the device has free, 0 where it cannot say; fails where it has failed. NULL: it
     * never knows. */
    qn_status (*available)(qn_device *device, size_t *bytes, qn_error *err);
    /* Gives back what it has page-locked of the host's memory where that is more than pool.
     * wired_limit; returns what it has then. NULL: it locks none. */
    size_t (*wired)(qn_device *device);
    qn_status (*write)(qn_device *device, void *to, const void *host, size_t n, qn_error *err);
    qn_status (*read)(qn_device *device, void *host, const qn__buffer *from, size_t offset,
                      size_t n, qn_error *err);
    /* The same as write of what another device of this kind has, once that is computed. NULL: such
     * values go through the host. */
    qn_status (*copy)(qn_device *device, void *to, const qn__buffer *from, size_t offset, size_t n,
                      qn_error *err);

    /* The device's routine (its glue around kernels) for a node as it is recorded (operation,
     * types, formats, strides pattern); NULL when this device has none. Not asked for elementwise
     * nodes: a step with a program is a fused chain. */
    const void *(*routine)(qn_device *device, const qn_array *node);

    /* How the device keeps a weight that is encoded so: the type that its values have in the graph,
     * and the layout. False: it cannot. */
    bool (*hold)(qn_device *device, const qn__encoding *e, qn_dtype *dtype, qn__layout_id *layout);

    /* The same of a cache's keys and values: their rows lie in the layout as a weight's do. */
    bool (*keep)(qn_device *device, const qn__encoding *e, qn_dtype *dtype, qn__layout_id *layout);

    /* Fills rows first .. first + n - 1 of such a weight from encoded rows, one behind the other.
     */
    qn_status (*pack_rows)(qn_device *device, qn_array *w, const qn__encoding *e, const void *rows,
                           int64_t first, int64_t n, qn_error *err);

    /* Where the host may write n bytes that a buffer is to have, each thread its own; NULL: nowhere
     * now. settle ends that: the bytes are there (n 0: there are none), and go to `data`. A device
     * without these lends the buffer itself. */
    void *(*lend)(qn_device *device, size_t n);
    qn_status (*settle)(qn_device *device, void *lent, void *data, size_t n, qn_error *err);

    /* qn_device_copy_rate; NULL: by the host's memcpy. */
    double (*copy_rate)(qn_device *device);

    /* qn_device_ceilings, into zeros; what cannot be measured stays 0. NULL: nothing can. */
    void (*ceilings)(qn_device *device, qn_ceilings *out);

    /* How many threads may do so at once, on different rows; NULL: one. */
    int (*packers)(const qn_device *device);

    /* Fills binding->device_part for one set of exact shapes; drop frees it. */
    qn_status (*bind)(qn_device *device, const qn__plan *plan, qn__binding *binding, qn_error *err);
    void (*drop)(qn_device *device, qn__binding *binding);

    /* Runs or enqueues a submission whose slots, but for the workspace, are filled, in the order of
     * calls; see qn__submission_begin and _end. Not OK: it has ended, or has never begun. `wait`
     * returns its status. */
    qn_status (*submit)(qn_device *device, qn__submission *submission, qn_error *err);
    qn_status (*wait)(qn_device *device, qn__submission *submission, qn_error *err);

    /* One line for people: "AVX-512, 2 threads". */
    void (*describe)(qn_device *device, char *text, size_t room);

    /* qn_device_kernel; NULL: there is no choice of kernels. */
    bool (*chosen)(const qn_device *device, int i, const char **purpose, const char **tier);
} qn__device_ops;

/* The sum of exp((x - max) * scale) over n logits on the host that reach `floor`, NaN being none;
 * tops and sums may be NULL (src/cpu/kernels/kernels.h). */
typedef double qn__weigh_fn(const float *x, size_t n, const float *tops, float max, float scale,
                            float floor, double *sums);

struct qn_device {
    const qn__device_ops *ops;
    void *state;         /* the device's own */
    qn__weigh_fn *weigh; /* filled when the device is opened */
    char name[32];
    qn__pool pool;
    qn__plan_cache plans;
    qn__primitives primitives;
    qn_log_fn log;
    void *log_user;
    atomic_int refs; /* the opener's, buffers' and scopes' */
};

static inline int64_t qn__device_step_tokens(const qn_device *device)
{
    return device->ops->step_tokens ? device->ops->step_tokens : 512;
}

/* Fills the parts of a device that core owns; the device's open function calls it. */
void qn__device_begin(qn_device *device, const qn__device_ops *ops, const char *name,
                      const qn_device_options *options);

/* Devices with no plan keep nothing; called by close functions. */
void qn__device_end(qn_device *device);

void qn__log(qn_device *device, qn_log_level level, const char *format, ...) QN_PRINTF(3, 4);

#endif
