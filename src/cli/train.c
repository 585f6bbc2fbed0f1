/* SPDX-License-Identifier: Apache-2.0
 *
 * quern train: a LoRA adapter from a file of texts. Names of options are mlx-lm's.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/train_data.h"
#include "quern/train.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ITERS = 1000, BATCH = 4, REPORT = 10, SAVE = 100, EVALUATE = 200, VALIDATION = 25 };

static const double RATE = 1e-5;

static int64_t given(int64_t value, int64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

/* What a line of progress tells of. */
typedef struct report {
    double sum, begun;
    uint64_t n, tokens;
} report;

/* One training. */
typedef struct training {
    const arguments *a;
    qn_trainer *trainer;
    train_data data;
    qn_batch *batches; /* of a step */
    qn_schedule schedule;
    int64_t iters, rows, n_batches;
    bool resumed; /* from what is at a->output */
    report report;
} training;

/* ---- the run --------------------------------------------------------------------------------- */

static qn_status optimizer_of(const char *name, qn_optimizer *out, qn_error *err)
{
    static const char *const names[] = {
#define OPTIMIZER_TEXT(name, text) text,
        QN_OPTIMIZER_LIST(OPTIMIZER_TEXT)
#undef OPTIMIZER_TEXT
    };
    for (int i = 0; i < QN_OPTIMIZER_COUNT; i++)
        if (!strcmp(name, names[i])) {
            *out = i;
            return QN_OK;
        }
    return qn__fail(err, QN_INVALID, "--optimizer: it is adamw, adam, sgd or lion, not \"%.40s\"",
                    name);
}

static qn_status schedule_of(const arguments *a, qn_schedule *out, qn_error *err)
{
    static const char *const names[] = {"constant", "linear", "cosine"};
    *out = (qn_schedule){.size = sizeof *out,
                         .learning_rate = isnan(a->learning_rate) ? RATE : a->learning_rate,
                         .end = isnan(a->min_learning_rate) ? 0 : a->min_learning_rate,
                         .warmup = given(a->warmup_steps, 0),
                         .steps = given(a->iters, ITERS)};
    for (int i = 0; a->lr_schedule && i < 3; i++)
        if (!strcmp(a->lr_schedule, names[i])) {
            out->kind = i;
            return QN_OK;
        }
    return a->lr_schedule
               ? qn__fail(err, QN_INVALID,
                          "--lr-schedule: it is constant, linear or cosine, not \"%.40s\"",
                          a->lr_schedule)
               : QN_OK;
}

static double or_zero(double value)
{
    return isnan(value) ? 0 : value;
}

/* What a step depends on and the trainer does not know, for whoever resumes; malloc. */
static char *describe_steps(const training *r)
{
    const arguments *a = r->a;
    const qn_schedule *o = &r->schedule;
    qn_dataset_info info = QN_INIT(qn_dataset_info);
    qn_dataset_get_info(r->data.train, &info);
    char data[24], *text = NULL;
    snprintf(data, sizeof data, "%016llx", (unsigned long long)info.fingerprint);
    cJSON *c = cJSON_CreateObject();
    bool falls = o->kind != QN_SCHEDULE_CONSTANT;
    if (cJSON_AddStringToObject(c, "data", data) &&
        cJSON_AddNumberToObject(c, "batch_size", (double)r->rows) &&
        cJSON_AddNumberToObject(c, "grad_accumulation_steps", (double)r->n_batches) &&
        cJSON_AddStringToObject(c, "lr_schedule", a->lr_schedule ? a->lr_schedule : "constant") &&
        cJSON_AddNumberToObject(c, "learning_rate", o->learning_rate) &&
        cJSON_AddNumberToObject(c, "warmup_steps", (double)o->warmup) &&
        (!falls || (cJSON_AddNumberToObject(c, "min_learning_rate", o->end) &&
                    cJSON_AddNumberToObject(c, "iters", (double)o->steps))))
        text = cJSON_PrintUnformatted(c);
    cJSON_Delete(c);
    return text;
}

/* The directory of an adapter, which mlx-lm names by its file. */
static void adapter_directory(const char *path, char out[PATH_ROOM])
{
    static const char file[] = "adapter_model.safetensors";
    size_t n = strlen(path), k = sizeof file - 1;
    snprintf(out, PATH_ROOM, "%s", path);
    if (n >= k && n < PATH_ROOM && !strcmp(path + n - k, file))
        snprintf(out + n - k, PATH_ROOM - (n - k), ".");
}

static qn_status open_trainer(training *r, qn_model *model, qn_error *err)
{
    const arguments *a = r->a;
    char adapter[PATH_ROOM];
    qn_optimizer optimizer = QN_OPTIMIZER_ADAMW;
    if (a->optimizer && optimizer_of(a->optimizer, &optimizer, err) != QN_OK)
        return err->code;
    if (a->resume_adapter)
        adapter_directory(a->resume_adapter, adapter);
    char *bound = describe_steps(r);
    if (!bound)
        return qn__fail_memory(err, "a training");
    qn_trainer_options o = {.size = sizeof o,
                            .rank = given(a->rank, 0),
                            .alpha = or_zero(a->alpha),
                            .targets = a->targets.word,
                            .n_targets = a->targets.n,
                            .learning_rate = or_zero(a->learning_rate),
                            .beta1 = a->beta1 == 0 ? -1 : or_zero(a->beta1),
                            .beta2 = or_zero(a->beta2),
                            .eps = or_zero(a->eps),
                            .weight_decay = a->weight_decay == 0 ? -1 : or_zero(a->weight_decay),
                            .clip = or_zero(a->max_grad_norm),
                            .seed = a->settings.seed > 0 ? (uint64_t)a->settings.seed : 0,
                            .adapter = a->resume_adapter ? adapter : NULL,
                            .optimizer = optimizer,
                            .num_layers = given(a->num_layers, 0),
                            .resume = r->resumed ? a->output : NULL,
                            .bound = bound};
    qn_trainer_open(&r->trainer, model, &o, err);
    free(bound);
    return err->code;
}

static void print_report(report *r, int64_t step, int64_t iters)
{
    double now = qn__seconds();
    fprintf(stderr, "step %lld of %lld, loss %.4f, %.0f tok/s\n", (long long)step, (long long)iters,
            r->sum / (double)r->n, now > r->begun ? (double)r->tokens / (now - r->begun) : 0);
    *r = (report){.begun = now};
}

/* The mean over the tokens of the validation's texts. */
static qn_status validate(training *r, double *loss, qn_error *err)
{
    int64_t all = qn_dataset_batches(r->data.valid, r->rows), n = r->a->val_batches;
    double sum = 0, tokens = 0, mean = 0;
    n = n == 0 ? VALIDATION : n;
    n = n < 0 || n > all ? all : n;
    for (int64_t i = 0; i < n; i++) {
        qn_batch *b = r->batches;
        if (qn_dataset_batch(r->data.valid, r->rows, i, b, err) != QN_OK ||
            qn_trainer_loss(r->trainer, b->tokens, b->mask, b->rows, b->length, &mean, err) !=
                QN_OK)
            return err->code;
        sum += mean * (double)b->counted;
        tokens += (double)b->counted;
    }
    *loss = sum / tokens;
    return QN_OK;
}

static qn_status report_validation(training *r, int64_t step, qn_error *err)
{
    double loss = 0, begun = qn__seconds();
    if (validate(r, &loss, err) != QN_OK)
        return err->code;
    fprintf(stderr, "step %lld of %lld, validation loss %.4f\n", (long long)step,
            (long long)r->iters, loss);
    r->report.begun += qn__seconds() - begun;
    return QN_OK;
}

/* What is due behind step i. */
static qn_status after_step(training *r, int64_t i, qn_error *err)
{
    const arguments *a = r->a;
    bool last = i == r->iters;
    if (i % given(a->steps_per_report, REPORT) == 0 || last)
        print_report(&r->report, i, r->iters);
    if (r->data.valid && (i % given(a->steps_per_eval, EVALUATE) == 0 || last) &&
        report_validation(r, i, err) != QN_OK)
        return err->code;
    return i % given(a->save_every, SAVE) == 0 && !last
               ? qn_trainer_save_state(r->trainer, a->output, NULL, err)
               : QN_OK;
}

static qn_status take_training_step(training *r, int64_t i, qn_error *err)
{
    double loss = 0;
    for (int64_t k = 0; k < r->n_batches; k++) {
        if (qn_dataset_batch(r->data.train, r->rows, i * r->n_batches + k, &r->batches[k], err) !=
            QN_OK)
            return err->code;
        r->report.tokens += (uint64_t)r->batches[k].counted;
    }
    if (qn_trainer_set_learning_rate(r->trainer, qn_schedule_rate(&r->schedule, i), err) != QN_OK ||
        qn_trainer_step_batches(r->trainer, r->batches, (size_t)r->n_batches, &loss, err) != QN_OK)
        return err->code;
    r->report.sum += loss;
    r->report.n++;
    return QN_OK;
}

/* The adapter is written every so many steps and at the end, also where Ctrl-C is the end. */
static qn_status run_steps(training *r, qn_error *err)
{
    int64_t i = qn_trainer_steps(r->trainer), first = i;
    if (i == 0 && r->data.valid && report_validation(r, 0, err) != QN_OK)
        return err->code;
    r->report.begun = qn__seconds();
    for (; i < r->iters && !interrupted; i++)
        if (take_training_step(r, i, err) != QN_OK || after_step(r, i + 1, err) != QN_OK)
            return err->code;
    if (i > first && qn_trainer_save_state(r->trainer, r->a->output, NULL, err) != QN_OK)
        return err->code;
    return interrupted ? qn__fail(err, QN_CANCELLED, "cancelled behind step %lld", (long long)i)
                       : QN_OK;
}

static qn_status begin_training(training *r, const loaded *l, qn_error *err)
{
    const arguments *a = r->a;
    r->iters = given(a->iters, ITERS);
    r->rows = given(a->batch_size, BATCH);
    r->n_batches = given(a->grad_accumulation_steps, 1);
    r->batches = calloc((size_t)r->n_batches, sizeof *r->batches);
    if (!r->batches)
        return qn__fail_memory(err, "batches");
    if (schedule_of(a, &r->schedule, err) != QN_OK || train_data_open(&r->data, l, a, err) != QN_OK)
        return err->code;
    return open_trainer(r, l->model, err);
}

static void end_training(training *r)
{
    for (int64_t i = 0; r->batches && i < r->n_batches; i++)
        qn_batch_free(&r->batches[i]);
    free(r->batches);
    qn_trainer_close(r->trainer);
    train_data_close(&r->data);
}

static int train_model(const loaded *l, const arguments *a, bool resumed)
{
    qn_error err = {0};
    training r = {.a = a, .resumed = resumed};
    if (begin_training(&r, l, &err) == QN_OK) {
        qn_dataset_info info = QN_INIT(qn_dataset_info);
        qn_dataset_get_info(r.data.train, &info);
        fprintf(stderr, "%llu texts, an adapter of %llu numbers\n", (unsigned long long)info.texts,
                (unsigned long long)qn_trainer_parameters(r.trainer));
        if (resumed)
            fprintf(stderr, "resumed behind step %lld\n", (long long)qn_trainer_steps(r.trainer));
        run_steps(&r, &err);
    }
    end_training(&r);
    return err.code == QN_OK ? 0 : failed(&err);
}

/* That the adapter cannot be written is to be said before hours of work. */
static bool can_write(const char *path)
{
    if (mkdir(path, 0777) == 0 && rmdir(path) == 0)
        return true;
    fprintf(stderr, "quern train: %s: %s\n", path,
            errno == EEXIST ? "exists already; --resume goes on from it" : strerror(errno));
    return false;
}

int command_train(arguments *a)
{
    const char *missing = !a->data     ? "--data names the texts"
                          : !a->output ? "--adapter-path, or -o, says where the adapter goes"
                                       : NULL;
    if (missing) {
        fprintf(stderr, "quern train: %s\n", missing);
        return 2;
    }
    bool resumed = a->resume && access(a->output, F_OK) == 0;
    if (!resumed && !can_write(a->output))
        return 1;
    catch_interrupts(true);
    loaded l;
    int code = open_loaded(&l, a, false);
    if (!code)
        code = train_model(&l, a, resumed);
    close_loaded(&l);
    return code;
}
