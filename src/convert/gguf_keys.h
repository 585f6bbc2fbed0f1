/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata of a GGUF file as it is put together: keys with their values, in the order they are put.
 */
#ifndef QN_CONVERT_GGUF_KEYS_H
#define QN_CONVERT_GGUF_KEYS_H

#include "base/buffers.h"
#include "base/gguf.h"

/* Zero it first; `failed` sticks: memory is out. */
typedef struct qn__gguf_keys {
    qn_text text;
    uint64_t n;
    const char *prefix; /* before the keys of qn__put_own...: the architecture */
    bool failed;
} qn__gguf_keys;

void qn__keys_free(qn__gguf_keys *k);

void qn__put_u16(qn__gguf_keys *k, const char *key, uint16_t value);
void qn__put_u32(qn__gguf_keys *k, const char *key, uint32_t value);
void qn__put_i32(qn__gguf_keys *k, const char *key, int32_t value);
void qn__put_f32(qn__gguf_keys *k, const char *key, double value);
void qn__put_bool(qn__gguf_keys *k, const char *key, bool value);
void qn__put_text(qn__gguf_keys *k, const char *key, const char *text, size_t n);

/* The same behind "ARCHITECTURE.". */
void qn__put_own_u32(qn__gguf_keys *k, const char *key, int64_t value);
void qn__put_own_f32(qn__gguf_keys *k, const char *key, double value);
void qn__put_own_text(qn__gguf_keys *k, const char *key, const char *text);

/* The head of an array; its n elements are put behind it. */
void qn__put_array(qn__gguf_keys *k, const char *key, qn__gguf_type type, uint64_t n);
void qn__put_bytes(qn__gguf_keys *k, const void *data, size_t n);
void qn__put_element(qn__gguf_keys *k, const char *text, size_t n); /* of texts */

/* A value of another file, as it is. */
void qn__put_value(qn__gguf_keys *k, const qn__gguf_value *v);

#endif
