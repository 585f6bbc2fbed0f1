/* SPDX-License-Identifier: Apache-2.0
 *
 * The devices of this build, by name. The only file that names them.
 */
#include "base/error.h"
#include "base/sized.h"
#include "core/device.h"
#include "cpu/device.h"
#ifdef QN_CUDA
#include "cuda/device.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "cuda" is 0, "cuda:3" 3; -1 when it is neither. */
static int device_index(const char *name, const char *kind)
{
    size_t n = strlen(kind);
    if (strncmp(name, kind, n))
        return -1;
    if (!name[n])
        return 0;
    char *end;
    long i = name[n] == ':' && name[n + 1] ? strtol(name + n + 1, &end, 10) : -1;
    return i >= 0 && i < 1024 && !*end ? (int)i : -1;
}

#ifdef QN_CUDA
/* A GPU; of what keeps it from being opened the way on is told, too. */
static qn_status open_gpu(qn_device **out, int index, const qn_device_options *options,
                          qn_error *err)
{
    qn_error why = {0};
    const char *advice = "";
    qn_status status = qn__cuda_open(out, index, options, &why);
    if (status == QN_OK)
        return QN_OK;
    if (status == QN_UNSUPPORTED && index == 0)
        advice = "; device \"auto\" takes the CPU then";
    else if (status == QN_MEMORY && !strncmp(why.message, "cuda", 4)) /* not the host's */
        advice = "; nvidia-smi lists the programs that have the GPU's memory";
    return qn__fail(err, status, "%s%s", why.message, advice);
}
#endif

/* The first GPU; where there is none, the CPU. That too where others have the GPU's memory, but who
 * counts on the GPU is warned then. */
static qn_status open_best(qn_device **out, const qn_device_options *options, qn_error *err)
{
#ifdef QN_CUDA
    qn_error missing = {0};
    qn_status status = open_gpu(out, 0, options, &missing);
    if (status == QN_OK)
        return QN_OK;
    if (status != QN_UNSUPPORTED && status != QN_MEMORY)
        return qn__fail(err, status, "%s", missing.message);
    char line[sizeof missing.message + 40];
    snprintf(line, sizeof line, "%s%s", missing.message,
             status == QN_MEMORY ? "; device \"auto\" takes the CPU" : "");
    if (options->log)
        options->log(options->log_user, status == QN_MEMORY ? QN_LOG_WARN : QN_LOG_INFO, line);
#endif
    return qn__cpu_open(out, options, err);
}

static qn_status open_named(qn_device **out, const char *name, const qn_device_options *options,
                            qn_error *err)
{
    if (!name || !strcmp(name, "cpu"))
        return qn__cpu_open(out, options, err);
    if (!strcmp(name, "auto"))
        return open_best(out, options, err);
    int cuda = device_index(name, "cuda");
#ifdef QN_CUDA
    if (cuda >= 0)
        return open_gpu(out, cuda, options, err);
    return qn__fail(err, QN_UNSUPPORTED, "no device \"%s\"; this build has auto, cpu and cuda:N",
                    name);
#else
    return qn__fail(err, QN_UNSUPPORTED,
                    cuda >= 0 ? "device \"%s\": this build is without CUDA; it has cpu"
                              : "no device \"%s\"; this build has cpu",
                    name);
#endif
}

qn_status qn_device_open(qn_device **out, const char *name, const qn_device_options *given,
                         qn_error *err)
{
    qn_device_options options;
    *out = NULL;
    qn_status status = qn__sized_in(&options, sizeof options, given, "qn_device_options", err);
    if (status == QN_OK)
        status = open_named(out, name, &options, err);
    if (status == QN_OK)
        (*out)->weigh = qn__cpu_host_weigh(&options);
    return status;
}

bool qn_device_available(const char *name)
{
    if (!name || !strcmp(name, "cpu"))
        return true;
    qn_device *device;
    if (qn_device_open(&device, name, NULL, NULL) != QN_OK)
        return false;
    qn_device_close(device);
    return true;
}
