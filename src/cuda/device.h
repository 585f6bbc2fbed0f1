/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a CUDA device, and what it counts.
 */
#ifndef QN_CUDA_DEVICE_H
#define QN_CUDA_DEVICE_H

#include "quern/array.h"

/* QN_UNSUPPORTED when there is no driver, no such GPU, or a driver that is too old. */
qn_status qn__cuda_open(qn_device **out, int index, const qn_device_options *options,
                        qn_error *err);

typedef struct qn__cuda_stats {
    uint64_t captures; /* bindings recorded as a graph, again after their pointers changed too */
    uint64_t updates;  /* of these, put into the executable graph that was there */
    uint64_t instantiations; /* executable graphs made */
    uint64_t launches;       /* graph launches: one an evaluation */
    uint64_t one_by_one;     /* ... but for these, whose graph got no memory */
    uint64_t host_reads;     /* copies from the device */
    uint64_t host_writes;    /* and to it */
    uint64_t beside;         /* submissions whose small writes did not wait for the one before */
    uint64_t programs;       /* fused chains loaded */
    uint64_t compiled;       /* of these, not found on the disk */
} qn__cuda_stats;

/* Any thread may ask. `device` is one that qn__cuda_open made. */
qn__cuda_stats qn__cuda_stats_get(qn_device *device);

#endif
