/* SPDX-License-Identifier: Apache-2.0
 *
 * The trainer: a step is one scope, which records loss, gradients and AdamW, and one evaluation,
 * which overwrites what is trained and its moments where they lie.
 *
 * The decoder that it runs is a copy of the model's description that has what is trained in its
 * place; all else is the model's own. State is donated last, when all is recorded: until a
 * run begins, a failure leaves it as it was.
 */
#include "train/checkpoint.h"
#include "train/full.h"
#include "train/lora.h"
#include "train/loss.h"
#include "train/options.h"

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "base/sized.h"
#include "core/array.h"
#include "core/buffer.h"
#include "models/loaded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct qn_trainer {
    qn_model *model;
    qn_device *device;
    qn__decoder decoder;   /* shallow, but for the layers */
    qn__decoder reference; /* the model's, with the same products; shallow */
    qn__trained *trained;
    qn__optimizer optimizer;
    qn__objective objective;
    double reported[QN__REPORTED]; /* by the newest step or loss */
    bool has_reported;
    double clip;
    uint64_t seed;
    int64_t steps;
    char *bound, *note;
    bool spoiled; /* a run that failed has overwritten something, or the loss is no number */
};

/* ---- opening --------------------------------------------------------------------------------- */

static qn_status copy_decoder(qn_trainer *t, const qn__decoder *m, qn_error *err)
{
    if (!m->embedding)
        return qn__fail(err, QN_STATE, "the model was opened without its weights");
    if (m->n_adapters)
        return qn__fail(err, QN_UNSUPPORTED,
                        "the model was opened with adapters; training wants it without");
    size_t bytes = (size_t)m->config.n_layers * sizeof *m->layers;
    t->decoder = *m;
    t->decoder.layers = malloc(bytes);
    if (!t->decoder.layers)
        return qn__fail_memory(err, "a trainer");
    memcpy(t->decoder.layers, m->layers, bytes);
    return QN_OK;
}

static qn_status begin_trained(qn_trainer *t, const qn_trainer_options *o, qn_error *err)
{
    return o->full ? qn__full_begin(&t->trained, t->model, &t->decoder, o, err)
                   : qn__lora_begin(&t->trained, qn__model_decoder(t->model), &t->decoder,
                                    t->device, o, err);
}

/* The checkpoint of this trainer, as it stands or is to become. */
static qn__checkpoint checkpoint_of(qn_trainer *t)
{
    return (qn__checkpoint){.model = t->model,
                            .optimizer = &t->optimizer,
                            .objective = &t->objective,
                            .clip = t->clip,
                            .seed = t->seed,
                            .bound = t->bound,
                            .steps = t->steps};
}

static qn_status resume_trainer(qn_trainer *t, const char *directory, qn_error *err)
{
    qn__checkpoint c = checkpoint_of(t);
    qn_status status = qn__checkpoint_read(t->trained, &c, directory, err);
    t->note = c.noted;
    t->steps = c.steps;
    if (status == QN_OK)
        t->optimizer.learning_rate = c.learning_rate;
    return status;
}

static qn_status copy_bound(qn_trainer *t, const char *bound, qn_error *err)
{
    cJSON *tree = NULL;
    if (!bound)
        return QN_OK;
    if (qn__json_parse(&tree, "qn_trainer_options.bound", bound, strlen(bound), err) == QN_OK &&
        !cJSON_IsObject(tree))
        qn__fail(err, QN_INVALID, "qn_trainer_options.bound is no JSON object");
    cJSON_Delete(tree);
    if (err->code == QN_OK && !(t->bound = strdup(bound)))
        qn__fail_memory(err, "a trainer");
    return err->code;
}

qn_status qn_trainer_open(qn_trainer **out, qn_model *model, const qn_trainer_options *given,
                          qn_error *err)
{
    qn_error local = {0};
    qn_trainer_options o;
    err = err ? err : &local;
    *out = NULL;
    if (qn__trainer_options_read(&o, given, err) != QN_OK)
        return err->code;
    qn_trainer *t = calloc(1, sizeof *t);
    if (!t)
        return qn__fail_memory(err, "a trainer");
    const qn__decoder *m = qn__model_decoder(model);
    t->model = qn__model_retain(model);
    t->device = qn__model_device(model);
    t->clip = o.clip;
    t->seed = o.seed;
    t->objective = (qn__objective){o.loss, o.beta, o.label_smoothing};
    t->optimizer = (qn__optimizer){.kind = o.optimizer,
                                   .learning_rate = o.learning_rate,
                                   .beta1 = o.beta1,
                                   .beta2 = o.beta2,
                                   .eps = o.eps,
                                   .decay = o.weight_decay > 0 ? o.weight_decay : 0};
    if (copy_decoder(t, m, err) != QN_OK || copy_bound(t, o.bound, err) != QN_OK ||
        begin_trained(t, &o, err) != QN_OK ||
        (o.resume && resume_trainer(t, o.resume, err) != QN_OK)) {
        qn_trainer_close(t);
        return err->code;
    }
    t->decoder.keeps = o.checkpoint ? QN__KEEPS_STREAM : QN__KEEPS_PRODUCTS;
    t->reference = *m;
    if (o.full && m->products == QN_PRODUCTS_AUTO)
        t->reference.products = QN_PRODUCTS_F32; /* which those of the trained weights are */
    *out = t;
    return QN_OK;
}

void qn_trainer_close(qn_trainer *t)
{
    if (!t)
        return;
    qn__trained_end(t->trained);
    free(t->bound);
    free(t->note);
    free(t->decoder.layers);
    qn_model_close(t->model);
    free(t);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static bool of_pairs(const qn_trainer *t)
{
    return t->objective.kind == QN_LOSS_DPO;
}

/* What a step trains and makes. */
typedef struct step {
    int n, arrays;   /* what is trained; of each, itself and its moments */
    qn_array **wrt;  /* [n]: these, as the scope has them */
    qn_array **grad; /* [n] */
    qn_array **made; /* [1 + arrays n]: what is told, then of each what replaces its arrays */
    qn_array **old;  /* [arrays n]: the state that was donated */
    qn_array **sum;  /* [n]: gradients of the batches before, retained; NULL: none */
} step;

static qn_array **place_of_state(const qn__trained *t, int i)
{
    return &t->arrays[i / t->n_state].state[i % t->n_state];
}

static qn_status begin_step(step *p, const qn__trained *t, qn_error *err)
{
    int n = t->n, arrays = t->n_state;
    qn_array **room = calloc((size_t)((3 + 2 * arrays) * n) + 1, sizeof *room);
    if (!room)
        return qn__fail_memory(err, "a step");
    *p = (step){n, arrays, room};
    p->grad = p->wrt + n;
    p->sum = p->grad + n;
    p->made = p->sum + n;
    p->old = p->made + arrays * n + 1;
    return QN_OK;
}

static void end_step(step *p)
{
    for (int i = 0; i < p->n; i++)
        qn_release(p->sum[i]);
    free(p->wrt);
}

/* The batch's mask as numbers; NULL with the error filled. */
static qn_array *mask_array(qn_scope *s, const uint8_t *mask, int64_t rows, int64_t length,
                            qn_error *err)
{
    const int64_t shape[] = {rows, length};
    bool any = false;
    float *values = malloc((size_t)(rows * length) * sizeof *values);
    if (!values) {
        qn__fail_memory(err, "a mask");
        return NULL;
    }
    for (int64_t i = 0; i < rows * length; i++) {
        values[i] = !mask || mask[i];
        any |= values[i] != 0 && i % length;
    }
    qn_array *a = any ? qn_from(s, QN_F32, 2, shape, values) : NULL;
    if (!any)
        qn__fail(err, QN_INVALID, "no token counts: the mask is 0 behind the rows' first ones");
    free(values);
    return a;
}

static qn_status check_values(const qn__decoder_config *c, const qn_batch *b, qn_error *err)
{
    for (int64_t i = 0; i < b->rows * b->length; i++) {
        long long row = i / b->length, at = i % b->length;
        if (b->tokens[i] < 0 || b->tokens[i] >= c->vocab)
            return qn__fail(err, QN_INVALID, "row %lld, token %lld is %d, the vocabulary has %lld",
                            row, at, b->tokens[i], (long long)c->vocab);
        if (b->begins && (b->begins[i] < 0 || b->begins[i] > at))
            return qn__fail(err, QN_INVALID, "row %lld, token %lld: its text begins at %d", row, at,
                            b->begins[i]);
    }
    return QN_OK;
}

static qn_status check_batch(const qn_trainer *t, const qn_batch *b, qn_error *err)
{
    const qn__decoder_config *c = &t->decoder.config;
    long long rows = b->rows, length = b->length;
    if (t->spoiled)
        return qn__fail(err, QN_STATE,
                        "a step before this one failed and left what is trained unusable");
    if (rows < 1 || length < 2 || rows > INT32_MAX / length)
        return qn__fail(err, QN_INVALID, "tokens [%lld, %lld]: rows of two or more are trained on",
                        rows, length);
    if (of_pairs(t) && (rows % 2 || b->begins))
        return qn__fail(err, QN_INVALID,
                        "%lld rows%s: of two that belong together the first is preferred", rows,
                        b->begins ? " of several texts" : "");
    if (length > c->max_positions)
        return qn__fail(err, QN_LIMIT, "rows of %lld tokens; the model's context is %lld", length,
                        (long long)c->max_positions);
    return check_values(c, b, err);
}

/* A batch as it is recorded. */
typedef struct recorded {
    qn_array *loss, *report; /* report: [1], or [QN__REPORTED] */
} recorded;

/* The key of what is dropped in batch i of a step. */
static qn_array *dropout_key(const qn_trainer *t, qn_scope *s, size_t i)
{
    const uint64_t mark = 0x64726f70; /* "drop": A is drawn of the seed itself */
    qn_array *key = qn_random_key(s, qn__random_bits(t->seed, mark));
    key = qn_random_fold_in(s, key, qn_scalar(s, QN_I32, (double)t->steps));
    return qn_random_fold_in(s, key, qn_scalar(s, QN_I32, (double)i));
}

/* The loss of a step's batch i, or, loss_only, of one that nothing is learned from: the trainer's
 * decoder gets what is trained first. */
static qn_status record_loss(qn_trainer *t, qn_scope *s, const qn_batch *b, size_t i,
                             bool loss_only, recorded *out, qn_error *err)
{
    const int64_t shape[] = {b->rows, b->length};
    qn_array *counts = mask_array(s, b->mask, b->rows, b->length, err);
    if (!counts)
        return err->code;
    t->trained->kind->bind(t->trained, s, &t->decoder);
    bool drops = t->decoder.dropout > 0 && !loss_only;
    t->decoder.dropout_key = drops ? dropout_key(t, s, i) : NULL;
    qn_array *read = qn_from(s, QN_I32, 2, shape, b->tokens);
    qn_array *begins = b->begins ? qn_from(s, QN_I32, 2, shape, b->begins) : NULL;
    if (of_pairs(t))
        out->loss = qn__preference_loss(s, &t->decoder, &t->reference, read, counts, &t->objective,
                                        loss_only, &out->report);
    else
        out->report = out->loss = qn__text_loss(
            s, &t->decoder, read, counts, begins,
            qn__rows_that_count(s, &t->decoder, b->mask, b->rows, b->length), loss_only);
    return QN_OK;
}

/* Records the gradients of a batch whose loss is `weight` of the step's, and of those before. */
static bool record_gradients(qn_trainer *t, qn_scope *s, step *p, qn_array *loss, double weight)
{
    for (int i = 0; i < p->n; i++)
        p->wrt[i] = t->trained->arrays[i].leaf;
    qn_array *part = weight == 1 ? loss : qn_multiply(s, loss, qn_scalar(s, QN_F32, weight));
    if (qn_grad(s, part, p->wrt, p->n, p->grad) != QN_OK)
        return false;
    for (int i = 0; i < p->n; i++)
        if (p->sum[i])
            p->grad[i] = qn_add(s, p->sum[i], p->grad[i]);
    return true;
}

static void record_step(qn_trainer *t, qn_scope *s, step *p, const recorded *r, double weight)
{
    qn__optimizer o = t->optimizer;
    o.step = t->steps + 1;
    p->made[0] = r->report;
    if (!record_gradients(t, s, p, r->loss, weight))
        return;
    qn_array *factor = t->clip > 0 ? qn__clip_factor(s, p->grad, p->n, t->clip) : NULL;
    for (int i = 0; i < p->n; i++) {
        qn_array *g = factor ? qn_multiply(s, p->grad[i], factor) : p->grad[i];
        o.decay = t->trained->arrays[i].decays ? t->optimizer.decay : 0;
        qn__optimizer_record(s, &o, t->trained->arrays[i].state, g, p->made + 1 + p->arrays * i);
    }
}

/* Gives the state to the graph and runs it. What is then in its place is kept: what was made, or,
 * where the run was refused before it began, what had been there. */
static qn_status run_step(qn_trainer *t, qn_scope *s, const step *p)
{
    int n = p->arrays * p->n;
    for (int i = 0; i < n; i++)
        p->old[i] = qn_donate(s, *place_of_state(t->trained, i));
    bool ran = qn_eval_many(s, p->made, n + 1) == QN_OK;
    for (int i = 0; i < n; i++) {
        qn_array *kept = qn_retain(ran ? p->made[i + 1] : p->old[i]);
        *place_of_state(t->trained, i) = kept;
        t->spoiled |= !kept || atomic_load(&kept->buffer->invalid);
    }
    return qn_scope_status(s);
}

/* Evaluates gradients alone, which the next batch's are added to. */
static qn_status run_sum(qn_scope *s, step *p, qn_array *report)
{
    p->made[0] = report;
    for (int i = 0; i < p->n; i++)
        p->made[i + 1] = p->grad[i];
    if (qn_eval_many(s, p->made, p->n + 1) != QN_OK)
        return qn_scope_status(s);
    for (int i = 0; i < p->n; i++) {
        qn_release(p->sum[i]);
        p->sum[i] = qn_retain(p->grad[i]);
    }
    return QN_OK;
}

/* What a run has told: `told` grows by `weight` times it. */
static qn_status read_report(qn_trainer *t, qn_scope *s, qn_array *report, double weight,
                             double told[QN__REPORTED], qn_error *err)
{
    float values[QN__REPORTED] = {0};
    if (qn_scope_status(s) == QN_OK)
        qn_read_f32(s, report, values, of_pairs(t) ? QN__REPORTED : 1);
    if (qn_scope_status(s) != QN_OK)
        return qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    for (int i = 0; i < QN__REPORTED; i++)
        told[i] += weight * values[i];
    if (isfinite(values[QN__LOSS]))
        return QN_OK;
    t->spoiled = true;
    return qn__fail(err, QN_STATE,
                    "step %lld: the loss is %g: training has diverged; a lower learning rate may "
                    "help",
                    (long long)t->steps, (double)values[QN__LOSS]);
}

/* One batch of a step, and with the last one the step. */
static qn_status take_batch(qn_trainer *t, step *p, const qn_batch *batches, size_t i,
                            double weight, bool last, double told[QN__REPORTED], qn_error *err)
{
    qn_scope *s = qn_scope_begin(t->device);
    recorded r;
    if (record_loss(t, s, &batches[i], i, false, &r, err) == QN_OK) {
        if (last)
            record_step(t, s, p, &r, weight);
        else
            record_gradients(t, s, p, r.loss, weight);
        if (qn_scope_status(s) == QN_OK && !last)
            run_sum(s, p, r.report);
        else if (qn_scope_status(s) == QN_OK && run_step(t, s, p) == QN_OK)
            t->steps++;
        read_report(t, s, r.report, weight, told, err);
    }
    qn_scope_end(s);
    return err->code;
}

/* What of a batch counts alike: its tokens, or its pairs. */
static int64_t count_parts(const qn_trainer *t, const qn_batch *b)
{
    int64_t n = 0;
    if (of_pairs(t))
        return b->rows / 2;
    for (int64_t i = 0; i < b->rows * b->length; i++)
        n += i % b->length && (!b->mask || b->mask[i]);
    return n;
}

/* Keeps what was told, and gives the loss of it. */
static void keep_report(qn_trainer *t, const double told[QN__REPORTED], double *loss_out)
{
    memcpy(t->reported, told, sizeof t->reported);
    t->has_reported = true;
    if (loss_out)
        *loss_out = told[QN__LOSS];
}

qn_status qn_trainer_step_batches(qn_trainer *t, const qn_batch *batches, size_t n,
                                  double *loss_out, qn_error *err)
{
    qn_error local = {0};
    step p = {0};
    double all = 0, told[QN__REPORTED] = {0};
    err = err ? err : &local;
    if (n < 1)
        return qn__fail(err, QN_INVALID, "a step of no batches");
    for (size_t i = 0; i < n; i++) {
        if (check_batch(t, &batches[i], err) != QN_OK)
            return err->code;
        all += (double)count_parts(t, &batches[i]);
    }
    if (begin_step(&p, t->trained, err) != QN_OK)
        return err->code;
    for (size_t i = 0; i < n && err->code == QN_OK; i++) {
        double weight = n == 1 ? 1 : (double)count_parts(t, &batches[i]) / all;
        take_batch(t, &p, batches, i, weight, i == n - 1, told, err);
    }
    end_step(&p);
    if (err->code == QN_OK)
        keep_report(t, told, loss_out);
    return err->code;
}

qn_status qn_trainer_step(qn_trainer *t, const int32_t *tokens, const uint8_t *mask, int64_t rows,
                          int64_t length, double *loss_out, qn_error *err)
{
    const qn_batch one = {
        .tokens = (int32_t *)tokens, .mask = (uint8_t *)mask, .rows = rows, .length = length};
    return qn_trainer_step_batches(t, &one, 1, loss_out, err);
}

qn_status qn_trainer_loss(qn_trainer *t, const int32_t *tokens, const uint8_t *mask, int64_t rows,
                          int64_t length, double *loss_out, qn_error *err)
{
    qn_error local = {0};
    const qn_batch b = {
        .tokens = (int32_t *)tokens, .mask = (uint8_t *)mask, .rows = rows, .length = length};
    err = err ? err : &local;
    if (check_batch(t, &b, err) != QN_OK)
        return err->code;
    double told[QN__REPORTED] = {0};
    recorded r;
    qn_scope *s = qn_scope_begin(t->device);
    if (record_loss(t, s, &b, 0, true, &r, err) == QN_OK &&
        read_report(t, s, r.report, 1, told, err) == QN_OK)
        keep_report(t, told, loss_out);
    qn_scope_end(s);
    return err->code;
}

/* ---- the rest -------------------------------------------------------------------------------- */

qn_status qn_trainer_set_learning_rate(qn_trainer *t, double learning_rate, qn_error *err)
{
    if (!qn__is_learning_rate(learning_rate))
        return qn__fail(err, QN_INVALID, "learning rate %g, out of its range", learning_rate);
    t->optimizer.learning_rate = learning_rate;
    return QN_OK;
}

qn_status qn_trainer_get_rewards(const qn_trainer *t, qn_rewards *rewards)
{
    const double *r = t->reported;
    const qn_rewards all = {sizeof all, r[QN__CHOSEN], r[QN__REJECTED], r[QN__ACCURACY],
                            r[QN__CHOSEN] - r[QN__REJECTED]};
    return of_pairs(t) && t->has_reported ? qn__sized_out(rewards, &all, sizeof all) : QN_STATE;
}

int64_t qn_trainer_steps(const qn_trainer *t)
{
    return t->steps;
}

uint64_t qn_trainer_parameters(const qn_trainer *t)
{
    return qn__trained_numbers(t->trained);
}

const char *qn_trainer_note(const qn_trainer *t)
{
    return t->note ? t->note : "";
}

static qn_status check_whole(const qn_trainer *t, qn_error *err)
{
    return t->spoiled ? qn__fail(err, QN_STATE, "a step failed and left what is trained unusable")
                      : QN_OK;
}

qn_status qn_trainer_save(qn_trainer *t, const char *directory, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    return check_whole(t, err) == QN_OK ? qn__trained_save(t->trained, t->device, directory, err)
                                        : err->code;
}

qn_status qn_trainer_save_state(qn_trainer *t, const char *directory, const char *note,
                                qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    qn__checkpoint c = checkpoint_of(t);
    c.note = note;
    return check_whole(t, err) == QN_OK ? qn__checkpoint_save(t->trained, &c, directory, err)
                                        : err->code;
}
