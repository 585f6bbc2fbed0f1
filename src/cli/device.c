/* SPDX-License-Identifier: Apache-2.0
 *
 * Which device a command runs on: as --device says, or as users of llama.cpp say it.
 */
#include "cli/shared.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

static const char *layers_text(int64_t n, char *text, size_t room)
{
    snprintf(text, room, n == ALL_LAYERS ? "all" : "%lld", (long long)n);
    return text;
}

/* Whether the CPU will do. */
static bool is_auto(const arguments *a)
{
    return a->device ? !strcmp(a->device, "auto") : a->gpu_layers == AUTO_LAYERS;
}

qn_status device_of(const arguments *a, const char **name, qn_error *err)
{
    char text[24];
    *name = a->device;
    if (a->gpu_layers < 0)
        return QN_OK;
    if (a->gpu_layers == AUTO_LAYERS) {
        *name = a->device ? a->device : "auto";
        return QN_OK;
    }
    if (a->device && !strcmp(a->device, "cpu") && a->gpu_layers > 0)
        return qn__fail(err, QN_INVALID, "--gpu-layers %s and --device cpu exclude each other",
                        layers_text(a->gpu_layers, text, sizeof text));
    if (!a->device || (is_auto(a) && a->gpu_layers == 0))
        *name = a->gpu_layers ? "cuda:0" : "cpu";
    return QN_OK;
}

bool turn_to_cpu(qn_device **device, const arguments *a, const qn_device_options *options,
                 qn_error *err)
{
    /* within a limit, too, the CPU may have more: of a GPU others have a part */
    if ((err->code != QN_MEMORY && (err->code != QN_LIMIT || !options->memory_limit)) ||
        !is_auto(a) || !strcmp(qn_device_name(*device), "cpu"))
        return false;
    fprintf(stderr, "quern: warning: %s; device \"auto\" takes the CPU\n", err->message);
    qn_device_close(*device);
    *device = NULL;
    *err = (qn_error){0};
    return qn_device_open(device, "cpu", options, err) == QN_OK;
}

void warn_of_layers(const arguments *a, const qn_device *device, const qn_model *model)
{
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    if (a->gpu_layers == 0 && strcmp(qn_device_name(device), "cpu") != 0)
        fprintf(stderr,
                "quern: warning: --gpu-layers 0: all %lld layers run on %s, as --device says\n",
                (long long)info.n_layers, qn_device_name(device));
    else if (a->gpu_layers == 0)
        fprintf(stderr, "quern: warning: --gpu-layers 0: all runs on the CPU\n");
    else if (a->gpu_layers > 0 && a->gpu_layers < info.n_layers)
        fprintf(stderr,
                "quern: warning: --gpu-layers %lld: all %lld layers run on the GPU, none on the "
                "CPU\n",
                (long long)a->gpu_layers, (long long)info.n_layers);
}
