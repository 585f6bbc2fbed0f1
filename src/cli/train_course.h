/* SPDX-License-Identifier: Apache-2.0
 *
 * The course of a training: losses of all its steps in few numbers, and validations. It depends on
 * the steps alone, and a checkpoint keeps it, so that a run that goes on shows the whole.
 */
#ifndef QN_CLI_TRAIN_COURSE_H
#define QN_CLI_TRAIN_COURSE_H

#include "quern/text.h"

enum { CURVE = 256 }; /* points at most */

typedef struct curve_point {
    double sum;
    int64_t n; /* steps */
} curve_point;

typedef struct validation {
    int64_t step;
    double loss;
} validation;

/* Zero it before use ({0}). */
typedef struct train_course {
    curve_point points[CURVE]; /* each but the last of `width` steps */
    int64_t width, steps;
    validation *valid;
    size_t n_valid;
} train_course;

void course_free(train_course *h);
void course_add(train_course *h, double loss); /* the next step's */
bool course_validate(train_course *h, int64_t step, double loss);

size_t course_points(const train_course *h);
double course_mean(const train_course *h, size_t point);

/* The lowest validation; NULL: there is none. `since`: how many came behind it. */
const validation *course_best(const train_course *h, size_t *since);

/* As JSON, exactly; malloc, NULL when memory is out. "" is no history. */
char *course_write(const train_course *h);
qn_status course_read(train_course *h, const char *text, qn_error *err);

/* The curve in one line of block characters, `width` at most. */
void course_spark(const train_course *h, size_t width, char *out, size_t room);

#endif
