/* SPDX-License-Identifier: Apache-2.0
 *
 * Trains all weights of a model on batches that lie in a file (bench/full.py makes both, and trains
 * with PyTorch beside it). Prints a line a step: the loss before it, and its seconds.
 *
 *     bench-full DIR BATCHES.safetensors threads
 *
 * Batch i is tokens.I i32 [rows, length] and mask.I u8; rates is f64 [steps].
 */
#include "quern/quern.h"
#include "quern/train.h"
#include "timing.h"

#include <stdio.h>

static int fail(const qn_error *err)
{
    fprintf(stderr, "bench-full: %s\n", err->message);
    return 1;
}

/* A tensor's bytes; malloc, NULL with the error filled. */
static void *read_tensor(const qn_tensors *file, const char *part, int64_t i, qn_tensor_info *info,
                         qn_error *err)
{
    char name[40];
    snprintf(name, sizeof name, i < 0 ? "%s" : "%s.%lld", part, (long long)i);
    const qn_tensor_info *found = qn_tensors_find(file, name);
    void *data = found ? malloc((size_t)found->bytes) : NULL;
    if (!data || qn_tensors_read_bytes(file, found, 0, (size_t)found->bytes, data, err) != QN_OK)
        return NULL;
    *info = *found;
    return data;
}

static int take_step(qn_trainer *t, const qn_tensors *file, int64_t i, double rate)
{
    qn_error err = {0};
    qn_tensor_info info;
    double loss, begun = now();
    int32_t *tokens = read_tensor(file, "tokens", i, &info, &err);
    uint8_t *mask = tokens ? read_tensor(file, "mask", i, &info, &err) : NULL;
    if (!mask || qn_trainer_set_learning_rate(t, rate, &err) != QN_OK ||
        qn_trainer_step(t, tokens, mask, info.shape[0], info.shape[1], &loss, &err) != QN_OK)
        return fail(&err);
    printf("%.9g %.6f\n", loss, now() - begun);
    free(tokens);
    free(mask);
    return 0;
}

int main(int argc, char **argv)
{
    qn_error err = {0};
    qn_device *device;
    qn_model *model;
    qn_trainer *trainer;
    qn_tensors *file;
    qn_tensor_info info;
    if (argc != 4)
        return fprintf(stderr, "usage: bench-full DIR BATCHES.safetensors threads\n"), 2;
    qn_device_options o = {.size = sizeof o, .threads = atoi(argv[3])};
    qn_model_options mo = {.size = sizeof mo, .no_tokenizer = true};
    qn_trainer_options to = {.size = sizeof to, /* the recipe of models/demo/train.py */
                             .full = true,
                             .beta2 = 0.98,
                             .eps = 1e-9,
                             .weight_decay = 0.05,
                             .clip = 1};
    if (qn_device_open(&device, "cpu", &o, &err) != QN_OK ||
        qn_model_open(&model, device, argv[1], &mo, &err) != QN_OK ||
        qn_trainer_open(&trainer, model, &to, &err) != QN_OK ||
        qn_tensors_open(&file, argv[2], &err) != QN_OK)
        return fail(&err);
    double *rates = read_tensor(file, "rates", -1, &info, &err);
    int code = rates ? 0 : fail(&err);
    for (int64_t i = 0; !code && i < info.shape[0]; i++)
        code = take_step(trainer, file, i, rates[i]);
    free(rates);
    qn_tensors_close(file);
    qn_trainer_close(trainer);
    qn_model_close(model);
    qn_device_close(device);
    return code;
}
