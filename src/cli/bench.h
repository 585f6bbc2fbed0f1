/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of quern bench share: bench.c times prompts and generation, bench_requests.c
 * requests to an engine, bench_load.c loading.
 */
#ifndef QN_CLI_BENCH_H
#define QN_CLI_BENCH_H

#include "cli/shared.h"

enum { MOST_VALUES = 16 };

typedef struct number_list {
    int64_t value[MOST_VALUES];
    int n;
} number_list;

/* What is timed. */
typedef struct plan {
    number_list prompts, gens, depths, batches, threads;
    int repeat;
    int64_t requests; /* in the place of prompts and generation by themselves; 0: none */
    int parallel;
    bool load; /* likewise */
    enum { FORM_MD, FORM_CSV, FORM_JSON } form;
    char name[80]; /* of the model */
} plan;

/* A model on a device of so many threads. */
typedef struct subject {
    qn_device *device;
    qn_model *model;
    qn_model_info info;
    int threads;
    char text[160];                 /* of the device: "cuda:0: ...", what it is */
    bool host;                      /* the device is the host, whose threads count */
    const char *tier;               /* of linear layers */
    uint64_t products, token_bytes; /* of a token: in linear layers of a prompt; read in decoding */
    qn_ceilings best;               /* of the device; zeros: not measured */
    cache_types cache;
} subject;

/* Sorts n > 0 values; of sorted ones the smallest that a share of them does not exceed, and the
 * median. */
void sort_values(double *values, size_t n);
double quantile(const double *sorted, size_t n, double share);
double median(const double *sorted, size_t n);

/* The text of --shape's configuration: a built-in one, or a file's, which *owned holds. */
qn_status shape_text(const char *shape, const char **text, size_t *size, char **owned,
                     qn_error *err);

/* Times --requests, with each combination of prompts and generated tokens, or --load, and prints
 * rows. */
qn_status time_requests(const plan *p, const subject *s, bool *first, qn_error *err);
qn_status time_load(const plan *p, subject *s, const arguments *a, bool *first, qn_error *err);

#endif
