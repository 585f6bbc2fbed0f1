/* SPDX-License-Identifier: Apache-2.0
 *
 * quern train: a LoRA adapter from a file of texts. Names of options are mlx-lm's.
 */
#include "base/error.h"
#include "base/random.h"
#include "cli/commands.h"
#include "cli/train_data.h"
#include "quern/train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ITERS = 1000, BATCH = 4, REPORT = 10, SAVE = 100, SEQUENCE = 2048 };

/* The texts in a shuffled order, again and again; and a batch of them. */
typedef struct feed {
    const train_data *data;
    uint64_t seed, draws;
    size_t *order, at; /* [n] */
    int32_t *tokens;   /* [rows, length] of the newest batch */
    uint8_t *mask;
    int64_t most, rows, length;
    uint64_t counted; /* its tokens that count */
} feed;

static int64_t given(int64_t value, int64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

/* ---- batches --------------------------------------------------------------------------------- */

static void shuffle(feed *f)
{
    for (size_t i = f->data->n; i > 1; i--) {
        size_t k = (size_t)(qn__random_uniform(f->seed, f->draws++) * (double)i);
        size_t other = f->order[k];
        f->order[k] = f->order[i - 1];
        f->order[i - 1] = other;
    }
    f->at = 0;
}

static qn_status feed_begin(feed *f, const train_data *data, const arguments *a, qn_error *err)
{
    size_t longest = 0, rows = (size_t)given(a->batch_size, BATCH);
    rows = rows < data->n ? rows : data->n;
    for (size_t i = 0; i < data->n; i++)
        longest = data->texts[i].n > longest ? data->texts[i].n : longest;
    *f = (feed){.data = data,
                .seed = a->settings.seed > 0 ? (uint64_t)a->settings.seed : 0,
                .most = (int64_t)rows};
    f->order = malloc(data->n * sizeof *f->order);
    f->tokens = calloc(rows * longest, sizeof *f->tokens);
    f->mask = malloc(rows * longest);
    if (!f->order || !f->tokens || !f->mask)
        return qn__fail_memory(err, "a batch");
    for (size_t i = 0; i < data->n; i++)
        f->order[i] = i;
    shuffle(f);
    return QN_OK;
}

static void feed_end(feed *f)
{
    free(f->order);
    free(f->tokens);
    free(f->mask);
}

/* The next rows, fewer where no more are left, as long as the longest of them; what is behind a
 * shorter one's end does not count. */
static void feed_next(feed *f)
{
    size_t n = f->data->n;
    if (f->at == n)
        shuffle(f);
    size_t left = n - f->at, rows = left < (size_t)f->most ? left : (size_t)f->most;
    const size_t *chosen = f->order + f->at;
    f->at += rows;
    f->rows = (int64_t)rows;
    f->length = 0;
    f->counted = 0;
    for (size_t i = 0; i < rows; i++) {
        int64_t length = (int64_t)f->data->texts[chosen[i]].n;
        f->length = length > f->length ? length : f->length;
        f->counted += (uint64_t)length - 1;
    }
    memset(f->mask, 0, rows * (size_t)f->length);
    for (size_t i = 0; i < rows; i++) {
        const qn_tokens *t = &f->data->texts[chosen[i]];
        memcpy(f->tokens + i * (size_t)f->length, t->ids, t->n * sizeof *t->ids);
        memset(f->mask + i * (size_t)f->length, 1, t->n);
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static qn_status open_for(qn_trainer **out, qn_model *model, const arguments *a, qn_error *err)
{
    double decay = isnan(a->weight_decay) ? 0 : a->weight_decay > 0 ? a->weight_decay : -1;
    qn_trainer_options o = {.size = sizeof o,
                            .rank = given(a->rank, 0),
                            .alpha = isnan(a->alpha) ? 0 : a->alpha,
                            .targets = a->targets.word,
                            .n_targets = a->targets.n,
                            .learning_rate = isnan(a->learning_rate) ? 0 : a->learning_rate,
                            .weight_decay = decay,
                            .clip = isnan(a->max_grad_norm) ? 0 : a->max_grad_norm,
                            .seed = a->settings.seed > 0 ? (uint64_t)a->settings.seed : 0};
    return qn_trainer_open(out, model, &o, err);
}

/* What a line of progress tells of. */
typedef struct report {
    double sum, begun;
    uint64_t n, tokens;
} report;

static void print_report(report *r, int64_t step, int64_t iters)
{
    double now = qn__seconds();
    fprintf(stderr, "step %lld of %lld, loss %.4f, %.0f tok/s\n", (long long)step, (long long)iters,
            r->sum / (double)r->n, now > r->begun ? (double)r->tokens / (now - r->begun) : 0);
    *r = (report){.begun = now};
}

/* The adapter is written every so many steps and at the end, also where Ctrl-C is the end. */
static qn_status run_steps(qn_trainer *t, feed *f, const arguments *a, qn_error *err)
{
    int64_t iters = given(a->iters, ITERS), every = given(a->steps_per_report, REPORT);
    int64_t save = given(a->save_every, SAVE), i = 0;
    report r = {.begun = qn__seconds()};
    while (i < iters && !interrupted) {
        double loss;
        feed_next(f);
        if (qn_trainer_step(t, f->tokens, f->mask, f->rows, f->length, &loss, err) != QN_OK)
            return err->code;
        r.sum += loss;
        r.tokens += f->counted;
        r.n++;
        if (++i % every == 0 || i == iters)
            print_report(&r, i, iters);
        if (i % save == 0 && i < iters && qn_trainer_save(t, a->output, err) != QN_OK)
            return err->code;
    }
    if (i > 0 && qn_trainer_save(t, a->output, err) != QN_OK)
        return err->code;
    return interrupted ? qn__fail(err, QN_CANCELLED, "cancelled behind step %lld", (long long)i)
                       : QN_OK;
}

static int train_model(const loaded *l, const arguments *a)
{
    qn_error err = {0};
    train_data data = {0};
    feed f = {0};
    qn_trainer *trainer = NULL;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(l->model, &info);
    const qn_tokenizer *t = qn_model_tokenizer(l->model);
    int64_t longest = given(a->max_seq_length, SEQUENCE);
    longest = longest < info.max_positions ? longest : info.max_positions;
    if (!t)
        qn__fail(&err, QN_NOT_FOUND, "the model has no tokenizer");
    if (t && train_data_read(&data, a, t, (size_t)longest, &err) == QN_OK &&
        open_for(&trainer, l->model, a, &err) == QN_OK && feed_begin(&f, &data, a, &err) == QN_OK) {
        fprintf(stderr, "%zu texts, an adapter of %llu numbers\n", data.n,
                (unsigned long long)qn_trainer_parameters(trainer));
        run_steps(trainer, &f, a, &err);
    }
    feed_end(&f);
    qn_trainer_close(trainer);
    train_data_free(&data);
    return err.code == QN_OK ? 0 : failed(&err);
}

/* That the adapter cannot be written is to be said before hours of work. */
static bool can_write(const char *path)
{
    if (mkdir(path, 0777) == 0 && rmdir(path) == 0)
        return true;
    fprintf(stderr, "quern train: %s: %s\n", path,
            errno == EEXIST ? "exists already" : strerror(errno));
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
    if (!can_write(a->output))
        return 1;
    catch_interrupts(true);
    loaded l;
    int code = open_loaded(&l, a, false);
    if (!code)
        code = train_model(&l, a);
    close_loaded(&l);
    return code;
}
