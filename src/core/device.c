/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of a device that core owns: reference count, pool, plans, log.
 */
#include "core/device.h"

#include "base/clock.h"
#include "base/sized.h"
#include "core/scope.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void qn__device_begin(qn_device *device, const qn__device_ops *ops, const char *name,
                      const qn_device_options *options)
{
    device->ops = ops;
    snprintf(device->name, sizeof device->name, "%s", name);
    atomic_init(&device->refs, 1);
    qn__pool_begin(&device->pool);
    qn__plan_cache_begin(&device->plans);
    qn__primitives_begin(&device->primitives);
    if (options) {
        device->pool.limit = options->memory_limit;
        atomic_init(&device->pool.wired_limit, options->wired_limit);
        device->log = options->log;
        device->log_user = options->log_user;
    }
}

void qn__device_end(qn_device *device)
{
    qn__plan_cache_end(&device->plans);
    qn__primitives_end(&device->primitives);
    qn__pool_end(device);
}

void qn_device_close(qn_device *device)
{
    if (device && atomic_fetch_sub_explicit(&device->refs, 1, memory_order_acq_rel) == 1)
        device->ops->close(device);
}

const char *qn_device_name(const qn_device *device)
{
    return device->name;
}

void qn_device_describe(qn_device *device, char *text, size_t room)
{
    device->ops->describe(device, text, room);
}

double qn_device_copy_rate(qn_device *device)
{
    enum { BYTES = 64 << 20, RUNS = 3 };
    double best = 0;
    if (device->ops->copy_rate)
        return device->ops->copy_rate(device);
    char *from = malloc(BYTES), *to = malloc(BYTES);
    if (from && to)
        memset(from, 1, BYTES);
    for (int i = 0; from && to && i <= RUNS; i++) { /* the first makes the pages */
        double begun = qn__seconds();
        memcpy(to, from, BYTES);
        __asm__ volatile("" : : "r"(to) : "memory");
        double taken = qn__seconds() - begun;
        best = i && taken > 0 && BYTES / taken > best ? BYTES / taken : best;
    }
    free(from);
    free(to);
    return best;
}

qn_status qn_device_ceilings(qn_device *device, qn_ceilings *out)
{
    qn_ceilings best = {0};
    if (out->size && device->ops->ceilings)
        device->ops->ceilings(device, &best);
    return qn__sized_out(out, &best, sizeof best);
}

bool qn_device_kernel(const qn_device *device, int i, const char **purpose, const char **tier)
{
    return i >= 0 && device->ops->chosen && device->ops->chosen(device, i, purpose, tier);
}

void qn__log(qn_device *device, qn_log_level level, const char *format, ...)
{
    if (!device->log)
        return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    device->log(device->log_user, level, line);
}
