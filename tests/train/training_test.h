/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of training share: what tests/golden has of a run, the model it begins with, a
 * trainer.
 */
#ifndef QN_TESTS_TRAIN_TRAINING_TEST_H
#define QN_TESTS_TRAIN_TRAINING_TEST_H

#include "models/golden_model.h"

#include "quern/train.h"

typedef struct data {
    int32_t *tokens;
    uint8_t *mask;
    double *losses, *settings;
    double *more; /* what else a test compares; NULL: nothing */
} data;

/* Closes the file. */
static inline data take_data(qn_tensors *file, const char *more, size_t n_settings)
{
    size_t n;
    data d = {golden_tensor(file, "tokens", &n), golden_tensor(file, "mask", &n),
              golden_tensor(file, "losses", &n), NULL, NULL};
    d.more = more ? golden_tensor(file, more, &n) : NULL;
    d.settings = golden_tensor(file, "settings", &n);
    assert_int_equal(n, 2 * n_settings);
    qn_tensors_close(file);
    return d;
}

static inline void free_data(data *d)
{
    free(d->tokens);
    free(d->mask);
    free(d->losses);
    free(d->settings);
    free(d->more);
}

/* Products in f32, as PyTorch's. */
static inline qn_model *open_exact(qn_device *device, const char *path, const qn_adapter *adapter)
{
    qn_error err = {0};
    qn_model *model;
    qn_model_options o = {.size = sizeof o,
                          .no_tokenizer = true,
                          .products = QN_PRODUCTS_F32,
                          .adapters = adapter,
                          .n_adapters = adapter != NULL};
    if (qn_model_open(&model, device, path, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return model;
}

/* One of tests/golden's models. */
static inline qn_model *open_base(qn_device *device, const char *base, const qn_adapter *adapter)
{
    char path[600];
    golden_directory(path, sizeof path, base);
    return open_exact(device, path, adapter);
}

static inline qn_trainer *open_trainer(qn_model *model, const qn_trainer_options *o)
{
    qn_error err = {0};
    qn_trainer *t;
    if (qn_trainer_open(&t, model, o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

#endif
