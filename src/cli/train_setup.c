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

/* Which of the names an option's value is; without one *out stays. */
static qn_status choose(const char *option, const char *value, const char *const *names, int n,
                        int *out, qn_error *err)
{
    char list[120] = "";
    size_t used = 0;
    for (int i = 0; value && i < n; i++) {
        if (!strcmp(value, names[i])) {
            *out = i;
            return QN_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0       ? ""
                                 : i == n - 1 ? " or "
                                              : ", ",
                                 names[i]);
    }
    return value ? qn__fail(err, QN_INVALID, "--%s: it is %s, not \"%.40s\"", option, list, value)
                 : QN_OK;
}

#define OPTION_NAME(name, text) text,
static const char *const optimizers[] = {QN_OPTIMIZER_LIST(OPTION_NAME)};
static const char *const losses[] = {QN_LOSS_LIST(OPTION_NAME)};
static const char *const formats[] = {QN_ADAPTER_FORMAT_LIST(OPTION_NAME)};
#undef OPTION_NAME

static qn_status loss_of(const arguments *a, qn_loss *out, qn_error *err)
{
    int loss = QN_LOSS_CROSS_ENTROPY;
    if (choose("loss", a->loss, losses, QN_LOSS_COUNT, &loss, err) != QN_OK)
        return err->code;
    *out = loss;
    if (*out != QN_LOSS_DPO && !(isnan(a->beta) && isnan(a->label_smoothing)))
        return qn__fail(err, QN_INVALID, "--%s is for --loss dpo",
                        isnan(a->beta) ? "label-smoothing" : "beta");
    return QN_OK;
}

/* What options say by names. */
static qn_status choose_all(const arguments *a, qn_trainer_options *o, qn_error *err)
{
    static const char *const types[] = {"f32", "bf16"};
    int optimizer = 0, format = 0, adapter = 0, moments = 0;
    choose("optimizer", a->optimizer, optimizers, QN_OPTIMIZER_COUNT, &optimizer, err);
    choose("adapter-format", a->adapter_format, formats, QN_ADAPTER_FORMAT_COUNT, &format, err);
    choose("adapter-dtype", a->adapter_dtype, types, 2, &adapter, err);
    choose("optimizer-dtype", a->optimizer_dtype, types, 2, &moments, err);
    o->optimizer = optimizer;
    o->adapter_format = format;
    o->adapter_bf16 = adapter;
    o->moments_bf16 = moments;
    return err->code;
}

static qn_status schedule_of(const arguments *a, qn_schedule *out, qn_error *err)
{
    static const char *const names[] = {"constant", "linear", "cosine"};
    int kind = QN_SCHEDULE_CONSTANT;
    choose("lr-schedule", a->lr_schedule, names, 3, &kind, err);
    *out = (qn_schedule){.size = sizeof *out,
                         .kind = kind,
                         .learning_rate = isnan(a->learning_rate) ? RATE : a->learning_rate,
                         .end = isnan(a->min_learning_rate) ? 0 : a->min_learning_rate,
                         .warmup = given(a->warmup_steps, 0),
                         .steps = given(a->lr_decay_steps, given(a->iters, ITERS))};
    return err->code;
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
    static const char *const files[] = {"adapter_model.safetensors", "adapters.safetensors"};
    size_t n = strlen(path);
    snprintf(out, PATH_ROOM, "%s", path);
    for (int i = 0; i < 2; i++) {
        size_t k = strlen(files[i]);
        if (n >= k && n < PATH_ROOM && !strcmp(path + n - k, files[i]) &&
            (n == k || path[n - k - 1] == '/'))
            snprintf(out + n - k, PATH_ROOM - (n - k), ".");
    }
}

static qn_status open_trainer(training *r, qn_model *model, qn_error *err)
{
    const arguments *a = r->a;
    char adapter[PATH_ROOM];
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
                            .num_layers = given(a->num_layers, 0),
                            .resume = r->resumed ? a->output : NULL,
                            .bound = bound,
                            .checkpoint = a->grad_checkpoint,
                            .full = trains_fully(a),
                            .loss = r->loss,
                            .beta = or_zero(a->beta),
                            .label_smoothing = or_zero(a->label_smoothing),
                            .dropout = or_zero(a->lora_dropout)};
    if (choose_all(a, &o, err) == QN_OK)
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
