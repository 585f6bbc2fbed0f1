/* SPDX-License-Identifier: Apache-2.0
 *
 * Values from one device to another: by the device where it can, else through the host.
 */
#include "core/device.h"
#include "core/dtype.h"
#include "core/scope.h"

#include <stdlib.h>

/* Whether the scope's device copies them itself: from one storage, where they lie side by side. */
static bool goes_directly(const qn_scope *s, const qn_array *a)
{
    const qn__buffer *buffer = a->buffer;
    return s->device->ops->copy && buffer && buffer->device->ops == s->device->ops &&
           !buffer->reserved && !atomic_load(&buffer->invalid) && (a->flags & QN__CONTIGUOUS) &&
           !(a->base->flags & QN__SPENT);
}

static qn_array *copied(qn_scope *s, qn_array *a, size_t bytes)
{
    qn_array *to = qn__leaf_new(s, (qn_dtype)a->dtype, a->ndim, a->shape);
    const size_t offset = (size_t)a->offset * qn__dtype_size((qn_dtype)a->dtype);
    if (qn__is_poison(s, to) || !bytes)
        return to;
    return s->device->ops->copy(s->device, to->buffer->data, a->buffer, offset, bytes, &s->error) ==
                   QN_OK
               ? to
               : qn__poison(s);
}

static qn_array *through_host(qn_scope *s, qn_array *a, size_t bytes)
{
    qn_scope *from = qn_scope_begin(a->buffer->device);
    void *values = malloc(bytes ? bytes : 1);
    qn_array *to = NULL;
    if (!from || !values)
        qn__scope_fail(s, QN_MEMORY, "from_array: out of memory for %zu bytes", bytes);
    else if (qn_read(from, a, values, bytes) != QN_OK)
        qn__scope_fail(s, qn_scope_status(from), "from_array: %s", qn_scope_error(from));
    else
        to = qn_from(s, (qn_dtype)a->dtype, a->ndim, a->shape, values);
    free(values);
    qn_scope_end(from);
    return to ? to : qn__poison(s);
}

qn_array *qn_from_array(qn_scope *s, qn_array *a)
{
    if (!s || s->error.code != QN_OK)
        return qn__poison(s);
    if (!a || a->scope || !a->buffer)
        return qn__scope_fail(s, QN_INVALID, "from_array: the array is not a retained one");
    if (a->layout)
        return qn__scope_fail(s, QN_INVALID,
                              "from_array: a packed weight does not move; pack it on this device");
    if (a->buffer->device == s->device) {
        qn_array *same = qn__input(s, a, "from_array");
        return same ? same : qn__poison(s);
    }
    const size_t bytes = (size_t)qn__elements(a) * qn__dtype_size((qn_dtype)a->dtype);
    return goes_directly(s, a) ? copied(s, a, bytes) : through_host(s, a, bytes);
}
