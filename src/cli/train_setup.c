/* SPDX-License-Identifier: Apache-2.0
 *
 * From the arguments of quern train to its texts, schedule and trainer.
 */
#include "cli/train.h"

#include "base/error.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITERS = 1000, BATCH = 4 };

static const double RATE = 1e-5;

int64_t given(int64_t value, int64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

bool trains_fully(const arguments *a)
{
    return a->full || (a->fine_tune_type && !strcmp(a->fine_tune_type, "full"));
}

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

static qn_status loss_of(const arguments *a, qn_loss *out, qn_error *err)
{
    static const char *const names[] = {
#define LOSS_TEXT(name, text) text,
        QN_LOSS_LIST(LOSS_TEXT)
#undef LOSS_TEXT
    };
    *out = QN_LOSS_CROSS_ENTROPY;
    while (a->loss && *out < QN_LOSS_COUNT && strcmp(a->loss, names[*out]) != 0)
        ++*out;
    if (*out == QN_LOSS_COUNT)
        return qn__fail(err, QN_INVALID, "--loss: it is cross-entropy or dpo, not \"%.40s\"",
                        a->loss);
    if (*out != QN_LOSS_DPO && !(isnan(a->beta) && isnan(a->label_smoothing)))
        return qn__fail(err, QN_INVALID, "--%s is for --loss dpo",
                        isnan(a->beta) ? "label-smoothing" : "beta");
    return QN_OK;
}

static qn_status schedule_of(const arguments *a, qn_schedule *out, qn_error *err)
{
    static const char *const names[] = {"constant", "linear", "cosine"};
    *out = (qn_schedule){.size = sizeof *out,
                         .learning_rate = isnan(a->learning_rate) ? RATE : a->learning_rate,
                         .end = isnan(a->min_learning_rate) ? 0 : a->min_learning_rate,
                         .warmup = given(a->warmup_steps, 0),
                         .steps = given(a->lr_decay_steps, given(a->iters, ITERS))};
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
                    cJSON_AddNumberToObject(c, "lr_decay_steps", (double)o->steps))))
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
                            .bound = bound,
                            .checkpoint = a->grad_checkpoint,
                            .full = trains_fully(a),
                            .loss = r->loss,
                            .beta = or_zero(a->beta),
                            .label_smoothing = or_zero(a->label_smoothing)};
    qn_trainer_open(&r->trainer, model, &o, err);
    free(bound);
    return err->code;
}

qn_status training_begin(training *r, const loaded *l, qn_error *err)
{
    const arguments *a = r->a;
    r->iters = given(a->iters, ITERS);
    r->rows = given(a->batch_size, BATCH);
    r->n_batches = given(a->grad_accumulation_steps, 1);
    r->batches = calloc((size_t)r->n_batches, sizeof *r->batches);
    if (!r->batches)
        return qn__fail_memory(err, "batches");
    if (loss_of(a, &r->loss, err) != QN_OK || schedule_of(a, &r->schedule, err) != QN_OK ||
        train_data_open(&r->data, l, a, r->loss == QN_LOSS_DPO, err) != QN_OK)
        return err->code;
    r->device = l->device;
    if (open_trainer(r, l->model, err) != QN_OK ||
        course_read(&r->course, qn_trainer_note(r->trainer), err) != QN_OK)
        return err->code;
    qn_dataset_info info = QN_INIT(qn_dataset_info);
    qn_dataset_get_info(r->data.train, &info);
    r->texts = info.texts;
    r->tokens = info.tokens;
    r->parameters = qn_trainer_parameters(r->trainer);
    return QN_OK;
}

void training_end(training *r)
{
    for (int64_t i = 0; r->batches && i < r->n_batches; i++)
        qn_batch_free(&r->batches[i]);
    free(r->batches);
    qn_trainer_close(r->trainer);
    train_data_close(&r->data);
    r->trainer = NULL;
    r->batches = NULL;
}
