/* SPDX-License-Identifier: Apache-2.0
 *
 * A tiny quantised model of tests/golden against the logits beside it, and copies of it with
 * something changed.
 */
#ifndef QN_TESTS_MODELS_PACKED_MODEL_H
#define QN_TESTS_MODELS_PACKED_MODEL_H

#include "golden_model.h"
#include "quern/quern.h"

enum { PACKED_MOST = 24 * 96 };

static inline qn_model *packed_open(qn_device *device, const char *path, qn_products products,
                                    qn_error *err)
{
    qn_model *model;
    qn_model_options options = {.size = sizeof options, .no_tokenizer = true, .products = products};
    *err = (qn_error){0};
    return qn_model_open(&model, device, path, &options, err) == QN_OK ? model : NULL;
}

/* The model's logits of the tokens in golden.safetensors of `golden`, and those there. Returns how
 * many. */
static inline int packed_logits(const char *path, const char *golden, qn_products products,
                                float *logits, float *want)
{
    int32_t ids[64];
    char file_path[PATH_MAX];
    qn_device *device;
    qn_session *session;
    qn_error err;
    qn_tensors *file;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    snprintf(file_path, sizeof file_path, "%s/golden.safetensors", golden);
    assert_int_equal(qn_tensors_open(&file, file_path, NULL), QN_OK);
    const qn_tensor_info *t = qn_tensors_find(file, "logits");
    int length = (int)t->shape[1], n = length * (int)t->shape[2];
    assert_true(n <= PACKED_MOST && length <= 64);
    qn_scope *s = qn_scope_begin(device);
    assert_int_equal(qn_read(s, qn_tensors_read(s, file, "tokens"), ids, (size_t)length * 4), 0);
    assert_int_equal(qn_read(s, qn_tensors_read(s, file, "logits"), want, (size_t)n * 4), 0);
    qn_scope_end(s);
    qn_tensors_close(file);
    qn_model *model = packed_open(device, path, products, &err);
    if (!model)
        fail_msg("%s", err.message);
    assert_int_equal(qn_session_open(&session, model, NULL, NULL), QN_OK);
    assert_int_equal(qn_session_score(session, ids, length, logits, NULL), QN_OK);
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
    return n;
}

/* Distance of the model's logits from those of `golden`. */
static inline double packed_nmse(const char *path, const char *golden, qn_products products)
{
    static float logits[PACKED_MOST], want[PACKED_MOST];
    double error = 0, size = 0;
    int n = packed_logits(path, golden, products, logits, want);
    for (int i = 0; i < n; i++) {
        error += ((double)logits[i] - want[i]) * ((double)logits[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    return error / size;
}

/* Puts a copy of a file of a model into the directory of temporary files, with one text for another
 * where there is one; gives that directory. */
static inline const char *packed_copy(const char *model, const char *name, const char *was,
                                      const char *is)
{
    char path[PATH_MAX];
    char *text;
    size_t n;
    golden_path(path, sizeof path, model, name);
    assert_int_equal(qn__file_read(path, 1 << 20, &text, &n, NULL), QN_OK);
    char *at = was ? memmem(text, n, was, strlen(was)) : NULL;
    if (was && !at)
        fail_msg("%s: there is no %s", path, was);
    size_t head = at ? (size_t)(at - text) : n,
           size = n - (was ? strlen(was) : 0) + (is ? strlen(is) : 0);
    char *changed = malloc(size + 1);
    memcpy(changed, text, head);
    if (at) {
        memcpy(changed + head, is, strlen(is));
        memcpy(changed + head + strlen(is), at + strlen(was), n - head - strlen(was));
    }
    temp_write(name, changed, size);
    free(changed);
    free(text);
    return temp_root;
}

/* That a model cannot be opened, and why. */
static inline void packed_refused(const char *path, const char *words)
{
    qn_device *device;
    qn_error err;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    assert_null(packed_open(device, path, QN_PRODUCTS_AUTO, &err));
    for (const char *w = words, *end; *w; w = *end ? end + 1 : end) {
        char word[200];
        end = strchr(w, '|');
        end = end ? end : w + strlen(w);
        snprintf(word, sizeof word, "%.*s", (int)(end - w), w);
        if (!strstr(err.message, word))
            fail_msg("%s\nlacks: %s", err.message, word);
    }
    assert_null(strchr(err.message, '\n'));
    qn_device_close(device);
}

#endif
