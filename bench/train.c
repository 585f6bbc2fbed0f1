/* SPDX-License-Identifier: Apache-2.0
 *
 * Times LoRA steps of a model, rank 16 on all linear layers: the forward pass alone and whole steps
 * in turn, so that a drift of the machine hits both (bench/train.py: PyTorch beside it). Prints
 * medians as one JSON object; speed does not depend on what is in the weights
 * (bench/make_model.py).
 *
 *     bench-train DIR [threads [repeats [length [rows [checkpoint]]]]]
 */
#include "quern/quern.h"
#include "quern/train.h"
#include "timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { MOST_REPEATS = 99 };

static int fail(const qn_error *err)
{
    fprintf(stderr, "bench-train: %s\n", err->message);
    return 1;
}

static long long peak_rss(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (long long)usage.ru_maxrss * 1024;
}

/* The first of each makes the plan and is not counted. */
static int time_steps(qn_trainer *t, const int32_t *ids, int rows, int length, int repeats,
                      double *forward, double *step)
{
    qn_error err = {0};
    double loss = 0;
    for (int r = -1; r < repeats; r++) {
        double t0 = now();
        if (qn_trainer_loss(t, ids, NULL, rows, length, &loss, &err) != QN_OK)
            return fail(&err);
        double t1 = now();
        if (qn_trainer_step(t, ids, NULL, rows, length, &loss, &err) != QN_OK)
            return fail(&err);
        if (r >= 0) {
            forward[r] = t1 - t0;
            step[r] = now() - t1;
        }
    }
    printf("{\"loss\":%.6f,", loss);
    return 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 2 ? atoi(argv[2]) : 0, repeats = argc > 3 ? atoi(argv[3]) : 3;
    int length = argc > 4 ? atoi(argv[4]) : 512, rows = argc > 5 ? atoi(argv[5]) : 1;
    if (argc < 2 || repeats < 1 || repeats > MOST_REPEATS || length < 2 || rows < 1)
        return fprintf(stderr,
                       "usage: bench-train DIR [threads [repeats [length [rows [checkpoint]]]]]\n"),
               2;
    qn_error err = {0};
    qn_device *device;
    qn_model *model;
    qn_trainer *trainer;
    qn_trainer_options to = {.size = sizeof to, .rank = 16, .checkpoint = argc > 6};
    qn_device_options o = {.size = sizeof o, .threads = threads};
    qn_model_options mo = {.size = sizeof mo, .no_tokenizer = true};
    if (qn_device_open(&device, "cpu", &o, &err) != QN_OK ||
        qn_model_open(&model, device, argv[1], &mo, &err) != QN_OK ||
        qn_trainer_open(&trainer, model, &to, &err) != QN_OK)
        return fail(&err);
    long long begun = peak_rss();
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    int32_t *ids = malloc((size_t)length * (size_t)rows * sizeof *ids);
    for (int i = 0; ids && i < length * rows; i++)
        ids[i] = (int32_t)((uint64_t)i * 7919 % (uint64_t)info.vocab_size);
    double forward[MOST_REPEATS], step[MOST_REPEATS];
    if (!ids || time_steps(trainer, ids, rows, length, repeats, forward, step))
        return 1;
    qn_memory_stats memory = QN_INIT(qn_memory_stats);
    qn_device_memory(device, &memory);
    double f = median(forward, repeats), s = median(step, repeats);
    printf("\"forward_seconds\":%.3f,\"step_seconds\":%.3f,\"step_of_forward\":%.2f,"
           "\"step_bytes\":%zu,\"step_rss_bytes\":%lld,\"peak_rss_bytes\":%lld}\n",
           f, s, s / f, memory.peak - memory.active, peak_rss() - begun, peak_rss());
    free(ids);
    qn_trainer_close(trainer);
    qn_model_close(model);
    qn_device_close(device);
    return 0;
}
