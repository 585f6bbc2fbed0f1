/* SPDX-License-Identifier: Apache-2.0
 *
 * Putting metadata together; see gguf_keys.h. Everything is little-endian, as the machines are that
 * this library runs on.
 */
#include "convert/gguf_keys.h"

#include <stdio.h>
#include <string.h>

void qn__keys_free(qn__gguf_keys *k)
{
    qn_text_free(&k->text);
}

void qn__put_bytes(qn__gguf_keys *k, const void *data, size_t n)
{
    k->failed = k->failed || !qn__text_append(&k->text, data, n);
}

void qn__put_element(qn__gguf_keys *k, const char *text, size_t n)
{
    uint64_t length = n;
    qn__put_bytes(k, &length, sizeof length);
    qn__put_bytes(k, text, n);
}

static void put_type(qn__gguf_keys *k, qn__gguf_type type)
{
    uint32_t number = (uint32_t)type;
    qn__put_bytes(k, &number, sizeof number);
}

static void put_key(qn__gguf_keys *k, const char *key, qn__gguf_type type)
{
    qn__put_element(k, key, strlen(key));
    put_type(k, type);
    k->n++;
}

void qn__put_u16(qn__gguf_keys *k, const char *key, uint16_t value)
{
    put_key(k, key, QN__GGUF_U16);
    qn__put_bytes(k, &value, sizeof value);
}

void qn__put_u32(qn__gguf_keys *k, const char *key, uint32_t value)
{
    put_key(k, key, QN__GGUF_U32);
    qn__put_bytes(k, &value, sizeof value);
}

void qn__put_i32(qn__gguf_keys *k, const char *key, int32_t value)
{
    put_key(k, key, QN__GGUF_I32);
    qn__put_bytes(k, &value, sizeof value);
}

void qn__put_f32(qn__gguf_keys *k, const char *key, double value)
{
    float single = (float)value;
    put_key(k, key, QN__GGUF_F32);
    qn__put_bytes(k, &single, sizeof single);
}

void qn__put_bool(qn__gguf_keys *k, const char *key, bool value)
{
    uint8_t byte = value;
    put_key(k, key, QN__GGUF_BOOL);
    qn__put_bytes(k, &byte, 1);
}

void qn__put_text(qn__gguf_keys *k, const char *key, const char *text, size_t n)
{
    put_key(k, key, QN__GGUF_STRING);
    qn__put_element(k, text, n);
}

static const char *own(const qn__gguf_keys *k, const char *key, char name[100])
{
    snprintf(name, 100, "%s.%s", k->prefix, key);
    return name;
}

void qn__put_own_u32(qn__gguf_keys *k, const char *key, int64_t value)
{
    char name[100];
    qn__put_u32(k, own(k, key, name), (uint32_t)value);
}

void qn__put_own_f32(qn__gguf_keys *k, const char *key, double value)
{
    char name[100];
    qn__put_f32(k, own(k, key, name), value);
}

void qn__put_own_text(qn__gguf_keys *k, const char *key, const char *text)
{
    char name[100];
    qn__put_text(k, own(k, key, name), text, strlen(text));
}

void qn__put_array(qn__gguf_keys *k, const char *key, qn__gguf_type type, uint64_t n)
{
    put_key(k, key, QN__GGUF_ARRAY);
    put_type(k, type);
    qn__put_bytes(k, &n, sizeof n);
}

void qn__put_value(qn__gguf_keys *k, const qn__gguf_value *v)
{
    if (v->is_array)
        qn__put_array(k, v->key, v->type, v->n);
    else
        put_key(k, v->key, v->type);
    qn__put_bytes(k, v->data, v->size);
}
