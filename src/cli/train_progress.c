/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said while training runs: a line that changes on a terminal, lines that stay, and a log
 * of JSON Lines.
 */
#include "cli/train.h"

#include "base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { SPARK = 60 };

static size_t memory_peak(const training *r)
{
    qn_memory_stats stats = QN_INIT(qn_memory_stats);
    qn_device_memory(r->device, &stats);
    return stats.peak;
}

static qn_status check_log(const training *r, qn_error *err)
{
    FILE *f = r->progress.log;
    bool ok = !f || (fflush(f) == 0 && !ferror(f));
    return ok ? QN_OK : qn__fail(err, QN_IO, "%s: cannot write: %s", r->a->log, strerror(errno));
}

qn_status progress_begin(training *r, qn_error *err)
{
    progress *p = &r->progress;
    p->begun = p->run_begun = qn__seconds();
    p->first = qn_trainer_steps(r->trainer);
    if (r->a->log && !(p->log = fopen(r->a->log, "a")))
        return qn__fail(err, QN_IO, "%s: cannot open: %s", r->a->log, strerror(errno));
    if (p->log && r->resumed)
        fprintf(p->log, "{\"resumed\":%" PRId64 "}\n", p->first);
    return check_log(r, err);
}

void progress_end(training *r)
{
    if (r->progress.log)
        fclose(r->progress.log);
    r->progress.log = NULL;
}

/* "1:02:03", or "2:03". */
static void print_time(char *out, size_t room, double seconds)
{
    long long s = (long long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, room, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, room, "%lld:%02lld", s / 60, s % 60);
}

void rewards_add(qn_rewards *sum, const training *r, double weight)
{
    qn_rewards now = QN_INIT(qn_rewards);
    if (qn_trainer_get_rewards(r->trainer, &now) != QN_OK)
        return;
    sum->chosen += weight * now.chosen;
    sum->rejected += weight * now.rejected;
    sum->accuracy += weight * now.accuracy;
    sum->margin += weight * now.margin;
}

/* As TRL names them; nothing where the loss is another. */
static void print_rewards(const training *r, const qn_rewards *sum, double n)
{
    if (r->loss == QN_LOSS_DPO)
        fprintf(stderr, ", rewards/accuracies %.3f, rewards/margins %.4f", sum->accuracy / n,
                sum->margin / n);
}

static void log_rewards(const training *r, const char *prefix, const qn_rewards *sum, double n)
{
    if (r->loss == QN_LOSS_DPO)
        fprintf(r->progress.log,
                ",\"%srewards/chosen\":%.9g,\"%srewards/rejected\":%.9g,"
                "\"%srewards/accuracies\":%.9g,\"%srewards/margins\":%.9g",
                prefix, sum->chosen / n, prefix, sum->rejected / n, prefix, sum->accuracy / n,
                prefix, sum->margin / n);
}

static void print_line(const training *r, int64_t step, double loss, double speed, const char *end)
{
    const progress *p = &r->progress;
    char left[32];
    double each = (qn__seconds() - p->run_begun) / (double)(step - p->first);
    print_time(left, sizeof left, each * (double)(r->iters - step));
    fprintf(stderr, "step %lld of %lld, loss %.4f", (long long)step, (long long)r->iters, loss);
    print_rewards(r, &p->rewards, (double)p->n);
    fprintf(stderr, ", lr %.3g, %.0f tok/s, %zu MiB, %s left%s",
            qn_schedule_rate(&r->schedule, step - 1), speed, memory_peak(r) >> 20, left, end);
}

qn_status progress_step(training *r, int64_t step, double loss, bool due, qn_error *err)
{
    progress *p = &r->progress;
    bool terminal = isatty(STDERR_FILENO);
    double now = qn__seconds(), seconds = now > p->begun ? now - p->begun : 1e-9;
    p->sum += loss;
    p->n++;
    rewards_add(&p->rewards, r, 1);
    for (int64_t k = 0; k < r->n_batches; k++)
        p->tokens += (uint64_t)r->batches[k].counted;
    double mean = p->sum / (double)p->n, speed = (double)p->tokens / seconds;
    if (terminal)
        fprintf(stderr, "\r");
    if (terminal || due)
        print_line(r, step, mean, speed, terminal ? "\033[K" : "\n");
    if (!due)
        return QN_OK;
    if (terminal)
        fprintf(stderr, "\n");
    if (p->log) {
        fprintf(p->log, "{\"step\":%" PRId64 ",\"loss\":%.9g", step, mean);
        log_rewards(r, "", &p->rewards, (double)p->n);
        fprintf(p->log,
                ",\"learning_rate\":%.9g,\"tokens\":%" PRIu64 ",\"seconds\":%.3f,\"memory\":%zu}\n",
                qn_schedule_rate(&r->schedule, step - 1), p->tokens, seconds, memory_peak(r));
    }
    p->sum = 0;
    p->rewards = (qn_rewards){0};
    p->n = p->tokens = 0;
    p->begun = now;
    return check_log(r, err);
}

qn_status progress_validation(training *r, int64_t step, double loss, const qn_rewards *rewards,
                              double seconds, qn_error *err)
{
    progress *p = &r->progress;
    fprintf(stderr, "%sstep %lld of %lld, validation loss %.4f",
            isatty(STDERR_FILENO) ? "\r\033[K" : "", (long long)step, (long long)r->iters, loss);
    print_rewards(r, rewards, 1);
    fprintf(stderr, "\n");
    if (p->log) {
        fprintf(p->log, "{\"step\":%" PRId64 ",\"validation_loss\":%.9g", step, loss);
        log_rewards(r, "validation_", rewards, 1);
        fprintf(p->log, "}\n");
    }
    p->begun += seconds;
    return check_log(r, err);
}

void progress_summary(const training *r)
{
    char spark[4 * SPARK];
    size_t n = course_points(&r->course), since;
    const validation *best = course_best(&r->course, &since);
    if (n < 2)
        return;
    course_spark(&r->course, SPARK, spark, sizeof spark);
    fprintf(stderr, "loss %s %.4f to %.4f\n", spark, course_mean(&r->course, 0),
            course_mean(&r->course, n - 1));
    if (best)
        fprintf(stderr, "lowest validation loss %.4f, behind step %lld\n", best->loss,
                (long long)best->step);
}
