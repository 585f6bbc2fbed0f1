/* SPDX-License-Identifier: Apache-2.0
 *
 * User primitives of a device: a list that only grows until the device is closed.
 */
#ifndef QN_CORE_PRIMITIVE_H
#define QN_CORE_PRIMITIVE_H

#include "quern/extend.h"

#include <pthread.h>

struct qn_primitive {
    qn_primitive_def def; /* with its own copy of the name */
    char *library;
    qn_device *device;
    struct qn_primitive *next; /* registered before */
};

typedef struct qn__primitives {
    pthread_mutex_t lock;
    qn_primitive *newest;
    struct qn__shared_object *objects;
} qn__primitives;

void qn__primitives_begin(qn__primitives *list);
void qn__primitives_end(qn__primitives *list);

#endif
