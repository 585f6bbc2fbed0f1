/* SPDX-License-Identifier: Apache-2.0
 *
 * One run of quern train, as its files share it.
 */
#ifndef QN_CLI_TRAIN_H
#define QN_CLI_TRAIN_H

#include "cli/train_data.h"
#include "cli/train_course.h"

/* What a line of progress tells of: the steps since the one before. */
typedef struct progress {
    double sum, begun, run_begun; /* losses; seconds */
    qn_rewards rewards;           /* of dpo: sums */
    uint64_t n, tokens;
    int64_t first; /* the step that the run began behind */
    FILE *log;     /* NULL: none */
} progress;

typedef struct training {
    const arguments *a;
    qn_device *device;
    qn_trainer *trainer;
    train_data data;
    qn_batch *batches; /* of a step */
    qn_schedule schedule;
    qn_loss loss;
    int64_t iters, rows, n_batches;
    bool resumed; /* from what is at a->output */
    uint64_t texts, tokens, parameters;
    progress progress;
    train_course course;
} training;

/* value where it is above 0. */
int64_t given(int64_t value, int64_t otherwise);

/* ---- train_setup.c: the arguments become a trainer ---- */

/* Whether all weights are trained. */
bool trains_fully(const arguments *a);

qn_status training_begin(training *r, const loaded *l, qn_error *err);

/* Leaves what a report tells of; the course is to be freed. */
void training_end(training *r);

/* ---- train_progress.c ---- */

qn_status progress_begin(training *r, qn_error *err);
void progress_end(training *r);

/* Behind step `step`: what a terminal shows at once, and with `due` a line that stays. */
qn_status progress_step(training *r, int64_t step, double loss, bool due, qn_error *err);
qn_status progress_validation(training *r, int64_t step, double loss, const qn_rewards *rewards,
                              double seconds, qn_error *err);

/* Adds weight times the rewards of the newest step or loss, where there are any. */
void rewards_add(qn_rewards *sum, const training *r, double weight);
void progress_summary(const training *r);

/* ---- train_plan.c: --dry-run ---- */

qn_status print_plan(training *r, qn_error *err);

/* ---- train_config.c ---- */

/* What a configuration says of options that the command line leaves open. */
typedef struct train_config {
    char **texts; /* which the arguments borrow */
    size_t n;
} train_config;

/* Reads a YAML (or JSON) file as mlx-lm has it into the arguments. Prints a line and returns false
 * where it cannot be. */
bool train_config_read(train_config *c, const char *path, arguments *a);
void train_config_free(train_config *c);

/* ---- train_samples.c ---- */

/* What the model says to each --sample, before and after; each a list. */
typedef struct samples {
    char **before, **after;
} samples;

qn_status samples_take(const loaded *l, const arguments *a, char ***out, qn_error *err);
void samples_free(samples *s, const arguments *a);

/* ---- train_report.c ---- */

/* That it can be written is to be known before. */
qn_status check_report(const arguments *a, qn_error *err);
qn_status write_report(const training *r, const samples *s, qn_error *err);

#endif
