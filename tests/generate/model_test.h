/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of generation share: opening the models that lie in the repository, tokens to run.
 */
#ifndef QN_TESTS_GENERATE_MODEL_TEST_H
#define QN_TESTS_GENERATE_MODEL_TEST_H

#include "test.h"

#include "core/device.h"

#include <stdbool.h>
#include <string.h>

static inline qn_model *open_model_at(qn_device *device, const char *path, bool with_tokenizer)
{
    qn_error err = {0};
    qn_model *model;
    qn_model_options o = {
        .size = sizeof o, .no_tokenizer = !with_tokenizer, .batch_invariant = true};
    if (qn_model_open(&model, device, path, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return model;
}

/* `name` is a folder of the repository. */
static inline qn_model *open_model(qn_device *device, const char *name, bool with_tokenizer)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", getenv("QUERN_SOURCE"), name);
    return open_model_at(device, path, with_tokenizer);
}

/* A small model of random weights with so many tokens. */
static inline qn_model *open_other(qn_device *device, size_t vocab)
{
    char config[400];
    qn_error err = {0};
    qn_model *model;
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
             "\"vocab_size\":%zu,\"max_position_embeddings\":100,\"rms_norm_eps\":1e-5,"
             "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\"}",
             vocab);
    if (qn_model_open_random(&model, device, config, strlen(config), "bf16", "bf16", NULL, &err) !=
        QN_OK)
        fail_msg("%s", err.message);
    return model;
}

static inline size_t vocab_of(const qn_model *model)
{
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    return (size_t)info.vocab_size;
}

static inline qn_session *open_session(qn_model *model, int64_t chunk, int batch)
{
    qn_error err = {0};
    qn_session *session;
    qn_session_options o = {.size = sizeof o, .prefill_chunk = chunk, .batch = batch};
    if (qn_session_open(&session, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return session;
}

static inline void random_tokens(int32_t *ids, size_t n, size_t vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((test_random(&seed) + 1) / 2 * (double)vocab);
}

/* The device of the tests, where steps are enqueued ahead in any case. */
static inline qn_device *open_ahead(void **state)
{
    static qn__device_ops ops; /* written once: the last device's thread may still be ending */
    qn_device *device = open_device(state);
    if (!ops.runs_ahead) {
        ops = *device->ops;
        ops.runs_ahead = true;
    }
    device->ops = &ops;
    return device;
}

#endif
