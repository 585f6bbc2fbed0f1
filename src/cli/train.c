/* SPDX-License-Identifier: Apache-2.0
 *
 * quern train: an adapter, or a model, from a file of texts. Names of options are mlx-lm's.
 */
#include "cli/train.h"

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REPORT = 10, SAVE = 100, EVALUATE = 200, VALIDATION = 25 };

/* The mean over the tokens of the validation's texts, or over its pairs, and their rewards. */
static qn_status validate(training *r, double *loss, qn_rewards *rewards, qn_error *err)
{
    int64_t all = qn_dataset_batches(r->data.valid, r->rows), n = r->a->val_batches;
    qn_rewards sum = {0};
    double losses = 0, parts = 0, mean = 0;
    n = n == 0 ? VALIDATION : n;
    n = n < 0 || n > all ? all : n;
    for (int64_t i = 0; i < n; i++) {
        qn_batch *b = r->batches;
        if (qn_dataset_batch(r->data.valid, r->rows, i, b, err) != QN_OK ||
            qn_trainer_loss(r->trainer, b->tokens, b->mask, b->rows, b->length, &mean, err) !=
                QN_OK)
            return err->code;
        double weight = r->loss == QN_LOSS_DPO ? (double)b->rows / 2 : (double)b->counted;
        losses += mean * weight;
        parts += weight;
        rewards_add(&sum, r, weight);
    }
    *loss = losses / parts;
    *rewards = (qn_rewards){.chosen = sum.chosen / parts,
                            .rejected = sum.rejected / parts,
                            .accuracy = sum.accuracy / parts,
                            .margin = sum.margin / parts};
    return QN_OK;
}

static qn_status take_validation(training *r, int64_t step, qn_error *err)
{
    double loss = 0, begun = qn__seconds();
    qn_rewards rewards = {0};
    if (validate(r, &loss, &rewards, err) != QN_OK)
        return err->code;
    if (!course_validate(&r->course, step, loss))
        return qn__fail_memory(err, "a course");
    return progress_validation(r, step, loss, &rewards, qn__seconds() - begun, err);
}

static qn_status save_all(const training *r, qn_error *err)
{
    char *note = course_write(&r->course);
    if (!note)
        return qn__fail_memory(err, "a course");
    qn_trainer_save_state(r->trainer, r->a->output, note, err);
    free(note);
    return err->code;
}

/* Whether validations have not become better for --patience of them. */
static bool is_over(const training *r)
{
    size_t since;
    return r->a->patience > 0 && course_best(&r->course, &since) && since >= (size_t)r->a->patience;
}

/* What is due behind step i. */
static qn_status after_step(training *r, int64_t i, double loss, qn_error *err)
{
    const arguments *a = r->a;
    bool last = i == r->iters;
    course_add(&r->course, loss);
    if (progress_step(r, i, loss, i % given(a->steps_per_report, REPORT) == 0 || last, err) !=
        QN_OK)
        return err->code;
    if (r->data.valid && (i % given(a->steps_per_eval, EVALUATE) == 0 || last) &&
        take_validation(r, i, err) != QN_OK)
        return err->code;
    return i % given(a->save_every, SAVE) == 0 && !last ? save_all(r, err) : QN_OK;
}

static qn_status take_training_step(training *r, int64_t i, qn_error *err)
{
    double loss = 0;
    for (int64_t k = 0; k < r->n_batches; k++)
        if (qn_dataset_batch(r->data.train, r->rows, i * r->n_batches + k, &r->batches[k], err) !=
            QN_OK)
            return err->code;
    if (qn_trainer_set_learning_rate(r->trainer, qn_schedule_rate(&r->schedule, i), err) != QN_OK ||
        qn_trainer_step_batches(r->trainer, r->batches, (size_t)r->n_batches, &loss, err) != QN_OK)
        return err->code;
    return after_step(r, i + 1, loss, err);
}

/* All is written every so many steps and at the end, also where Ctrl-C is the end. */
static qn_status run_steps(training *r, qn_error *err)
{
    int64_t i = qn_trainer_steps(r->trainer), first = i;
    if (i == 0 && r->data.valid && take_validation(r, 0, err) != QN_OK)
        return err->code;
    for (; i < r->iters && !interrupted && !is_over(r); i++)
        if (take_training_step(r, i, err) != QN_OK)
            return err->code;
    if (i > first && save_all(r, err) != QN_OK)
        return err->code;
    if (interrupted)
        return qn__fail(err, QN_CANCELLED, "cancelled behind step %lld", (long long)i);
    if (i < r->iters)
        fprintf(stderr, "ended behind step %lld: %lld validations were no better\n", (long long)i,
                (long long)r->a->patience);
    progress_summary(r);
    return QN_OK;
}

static void describe_training(const training *r)
{
    fprintf(stderr, "%llu texts, %s of %llu numbers\n", (unsigned long long)r->texts,
            trains_fully(r->a) ? "a model" : "an adapter", (unsigned long long)r->parameters);
    if (r->resumed)
        fprintf(stderr, "resumed behind step %lld\n", (long long)qn_trainer_steps(r->trainer));
}

static qn_status train_model(training *r, const loaded *l, qn_error *err)
{
    if (training_begin(r, l, err) == QN_OK && r->a->dry_run) {
        print_plan(r, err);
    } else if (err->code == QN_OK) {
        describe_training(r);
        if (progress_begin(r, err) == QN_OK)
            run_steps(r, err);
    }
    progress_end(r);
    training_end(r);
    return err->code;
}

/* Where the files beside the configuration at `path` lie. */
static qn_status directory_of(const char *path, char out[PATH_ROOM], qn_error *err)
{
    bool is_directory;
    const char *slash = strrchr(path, '/');
    if (qn__path_is_directory(path, &is_directory, err) != QN_OK)
        return err->code;
    snprintf(out, PATH_ROOM, "%s", is_directory || slash ? path : ".");
    if (!is_directory && slash && slash - path < PATH_ROOM)
        out[slash - path + 1] = 0;
    return QN_OK;
}

/* The model that is trained: --init draws it. */
static int open_trained(loaded *l, const arguments *a)
{
    qn_error err = {0};
    qn_model_options o = {.size = sizeof o};
    uint64_t seed = a->settings.seed > 0 ? (uint64_t)a->settings.seed : 0;
    if (!a->init)
        return open_loaded(l, a, false);
    *l = (loaded){0};
    if (directory_of(a->init, l->path, &err) != QN_OK ||
        products_of(a->products, &o.products, &err) != QN_OK ||
        open_device(&l->device, a, &err) != QN_OK)
        return failed(&err);
    qn_device_options device = device_options_of(a);
    do
        qn_model_open_initial(&l->model, l->device, a->init, seed, &o, &err);
    while (turn_to_cpu(&l->device, a, &device, &err));
    return err.code == QN_OK ? 0 : failed(&err);
}

/* What was trained, for samples. */
static int open_result(loaded *l, const arguments *a)
{
    arguments with = *a;
    if (trains_fully(a))
        with.model = a->output;
    else
        with.adapter = a->output;
    return open_loaded(l, &with, false);
}

/* With the model as it is, then with what was trained; it is loaded anew in between, so that there
 * are never two. */
static int train_and_report(training *r, samples *s, const arguments *a)
{
    qn_error err = {0};
    bool report = a->report && !a->dry_run;
    loaded l;
    int code = open_trained(&l, a);
    if (!code && (!report || samples_take(&l, a, &s->before, &err) == QN_OK))
        train_model(r, &l, &err);
    close_loaded(&l);
    if (code || err.code != QN_OK || !report)
        return code ? code : err.code != QN_OK ? failed(&err) : 0;
    code = open_result(&l, a);
    if (!code && samples_take(&l, a, &s->after, &err) == QN_OK)
        write_report(r, s, &err);
    close_loaded(&l);
    return err.code != QN_OK ? failed(&err) : code;
}

/* That the result cannot be written is to be said before hours of work. */
static bool can_write(const char *path)
{
    if (mkdir(path, 0777) == 0 && rmdir(path) == 0)
        return true;
    fprintf(stderr, "quern train: %s: %s\n", path,
            errno == EEXIST ? "exists already; --resume goes on from it" : strerror(errno));
    return false;
}

/* The option of adapters alone that is there; NULL: none is. */
static const char *adapters_option(const arguments *a)
{
    return a->rank > 0               ? "rank"
           : !isnan(a->alpha)        ? "alpha"
           : a->targets.n            ? "target"
           : a->num_layers > 0       ? "num-layers"
           : !isnan(a->lora_dropout) ? "lora-dropout"
           : a->adapter_format       ? "adapter-format"
           : a->adapter_dtype        ? "adapter-dtype"
           : a->resume_adapter       ? "resume-adapter-file"
                                     : NULL;
}

/* What is wrong with how it was asked for; NULL: nothing. */
static const char *wrong_usage_of(const arguments *a)
{
    const char *type = a->fine_tune_type;
    if (!a->data)
        return "--data names the texts";
    if (type && strcmp(type, "lora") != 0 && strcmp(type, "full") != 0)
        return "--fine-tune-type is lora or full";
    if (type && !strcmp(type, "lora") && a->full)
        return "--full and --fine-tune-type lora exclude each other";
    if (a->init && !trains_fully(a))
        return "--init goes with --full";
    if (a->init && a->model)
        return "--init describes the model; -m names another";
    if (a->samples.n && !a->report)
        return "--sample is for --report FILE";
    return a->output || a->dry_run ? NULL : "--adapter-path, or -o, says where the result goes";
}

static int run_training(arguments *a)
{
    const char *wrong = wrong_usage_of(a), *adapters = adapters_option(a);
    if (wrong) {
        fprintf(stderr, "quern train: %s\n", wrong);
        return 2;
    }
    if (trains_fully(a) && adapters) {
        fprintf(stderr, "quern train: --%s is of adapters, and with --full there is none\n",
                adapters);
        return 2;
    }
    bool resumed = a->resume && a->output && access(a->output, F_OK) == 0;
    if (!resumed && !a->dry_run && !can_write(a->output))
        return 1;
    qn_error err = {0};
    if (a->report && check_report(a, &err) != QN_OK)
        return failed(&err);
    catch_interrupts(true);
    training r = {.a = a, .resumed = resumed};
    samples s = {0};
    int code = train_and_report(&r, &s, a);
    course_free(&r.course);
    samples_free(&s, a);
    return code;
}

int command_train(arguments *a)
{
    train_config config = {0};
    int code = !a->config || train_config_read(&config, a->config, a) ? run_training(a) : 2;
    train_config_free(&config);
    return code;
}
