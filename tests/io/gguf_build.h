/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF files for tests, byte by byte. Counts stand at fixed places, so that a test may lie about
 * them.
 */
#ifndef QN_TESTS_IO_GGUF_BUILD_H
#define QN_TESTS_IO_GGUF_BUILD_H

#include "base/buffers.h"
#include "base/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GGUF_AT_VERSION = 4, GGUF_AT_TENSORS = 8, GGUF_AT_VALUES = 16 };

static inline void put_bytes(qn_text *t, const void *data, size_t n)
{
    if (!qn__text_append(t, data, n))
        abort();
}

static inline void put_int(qn_text *t, uint64_t v, int n)
{
    for (int i = 0; i < n; i++, v >>= 8)
        put_bytes(t, &(char){(char)v}, 1);
}

static inline void put_text(qn_text *t, const char *s)
{
    put_int(t, strlen(s), 8);
    put_bytes(t, s, strlen(s));
}

static inline void add_to(qn_text *t, size_t at, int by)
{
    t->data[at] = (char)(t->data[at] + by);
}

static inline void put_header(qn_text *t, uint32_t version)
{
    put_bytes(t, "GGUF", 4);
    put_int(t, version, 4);
    put_int(t, 0, 8);
    put_int(t, 0, 8);
}

static inline void put_key(qn_text *t, const char *key, uint32_t type)
{
    add_to(t, GGUF_AT_VALUES, 1);
    put_text(t, key);
    put_int(t, type, 4);
}

static inline void put_u32(qn_text *t, const char *key, uint32_t value)
{
    put_key(t, key, QN__GGUF_U32);
    put_int(t, value, 4);
}

static inline void put_u16(qn_text *t, const char *key, uint32_t value)
{
    put_key(t, key, QN__GGUF_U16);
    put_int(t, value, 2);
}

static inline void put_f32(qn_text *t, const char *key, float value)
{
    put_key(t, key, QN__GGUF_F32);
    put_bytes(t, &value, 4);
}

static inline void put_string(qn_text *t, const char *key, const char *value)
{
    put_key(t, key, QN__GGUF_STRING);
    put_text(t, value);
}

static inline void put_array(qn_text *t, const char *key, uint32_t type, uint64_t n)
{
    put_key(t, key, QN__GGUF_ARRAY);
    put_int(t, type, 4);
    put_int(t, n, 8);
}

/* dims: the contiguous one first */
static inline void put_tensor(qn_text *t, const char *name, int ndim, const int64_t *dims,
                              uint32_t type, uint64_t offset)
{
    add_to(t, GGUF_AT_TENSORS, 1);
    put_text(t, name);
    put_int(t, (uint64_t)ndim, 4);
    for (int i = 0; i < ndim; i++)
        put_int(t, (uint64_t)dims[i], 8);
    put_int(t, type, 4);
    put_int(t, offset, 8);
}

static inline void put_padding(qn_text *t, size_t alignment)
{
    while (t->n % alignment)
        put_bytes(t, "", 1);
}

/* Two tensors, f32 [3, 2] and q4_0 [2, 32], and values of every type. */
static inline qn_text gguf_sample(uint32_t version)
{
    qn_text t = {0};
    put_header(&t, version);
    put_string(&t, "general.name", "a name");
    put_key(&t, "a.u8", QN__GGUF_U8);
    put_int(&t, 200, 1);
    put_key(&t, "a.i8", QN__GGUF_I8);
    put_int(&t, 200, 1);
    put_key(&t, "a.i16", QN__GGUF_I16);
    put_int(&t, 0xfffe, 2);
    put_u16(&t, "a.u16", 0xfffe);
    put_u32(&t, "a.u32", 0xfffffffe);
    put_key(&t, "a.i32", QN__GGUF_I32);
    put_int(&t, 0xfffffffe, 4);
    put_key(&t, "a.u64", QN__GGUF_U64);
    put_int(&t, UINT64_MAX, 8);
    put_key(&t, "a.i64", QN__GGUF_I64);
    put_int(&t, UINT64_MAX, 8);
    put_f32(&t, "a.f32", 0.5f);
    put_key(&t, "a.f64", QN__GGUF_F64);
    put_bytes(&t, &(double){0.25}, 8);
    put_key(&t, "a.bool", QN__GGUF_BOOL);
    put_int(&t, 1, 1);
    put_array(&t, "a.texts", QN__GGUF_STRING, 3);
    put_text(&t, "one");
    put_text(&t, "");
    put_text(&t, "three");
    put_array(&t, "a.numbers", QN__GGUF_I32, 2);
    put_int(&t, 7, 4);
    put_int(&t, 0xffffffff, 4);
    put_array(&t, "a.none", QN__GGUF_F32, 0);
    put_tensor(&t, "w", 2, (const int64_t[]){2, 3}, 0, 0);
    put_tensor(&t, "q", 2, (const int64_t[]){32, 2}, 2, 32);
    put_padding(&t, 32);
    for (int i = 0; i < 6; i++)
        put_bytes(&t, &(float){(float)i}, 4);
    put_padding(&t, 32);
    for (int i = 0; i < 36; i++)
        put_int(&t, (uint64_t)i, 1);
    return t;
}

/* One metadata key, written by `put` where the usual one would stand; NULL: left out. */
typedef struct gguf_change {
    const char *key;
    void (*put)(qn_text *t, const char *key);
} gguf_change;

/* A llama of one layer, all zeros, f32: hidden 8, 2 heads of 4, ffn 16, 10 tokens;
 * without a tensor, with one that is too wide. */
static inline qn_text gguf_llama(const gguf_change *c, const char *without, const char *misshapen)
{
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"block_count", 1},          {"embedding_length", 8},
                {"feed_forward_length", 16}, {"attention.head_count", 2},
                {"context_length", 64},      {"attention.head_count_kv", 1},
                {"rope.dimension_count", 4}, {"attention.key_length", 4}};
    static const struct {
        const char *name;
        int64_t columns, rows;
    } tensors[] = {{"token_embd", 8, 10},    {"output_norm", 8, 0},       {"blk.0.attn_norm", 8, 0},
                   {"blk.0.ffn_norm", 8, 0}, {"blk.0.attn_q", 8, 8},      {"blk.0.attn_k", 8, 4},
                   {"blk.0.attn_v", 8, 4},   {"blk.0.attn_output", 8, 8}, {"blk.0.ffn_gate", 8, 16},
                   {"blk.0.ffn_up", 8, 16},  {"blk.0.ffn_down", 16, 8}};
    qn_text file = {0};
    char name[100];
    put_header(&file, 3);
    if (!c || strcmp(c->key, "general.architecture") != 0)
        put_string(&file, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(name, sizeof name, "llama.%s", keys[i].key);
        if (!c || strcmp(name, c->key) != 0)
            put_u32(&file, name, keys[i].value);
    }
    if (!c || strcmp(c->key, "llama.attention.layer_norm_rms_epsilon") != 0)
        put_f32(&file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (c && c->put)
        c->put(&file, c->key);
    uint64_t at = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        int64_t dims[2] = {tensors[i].columns, tensors[i].rows};
        snprintf(name, sizeof name, "%s.weight", tensors[i].name);
        if (without && !strcmp(name, without))
            continue;
        if (misshapen && !strcmp(name, misshapen))
            dims[0] += 4;
        put_tensor(&file, name, dims[1] ? 2 : 1, dims, 0, at);
        at += ((uint64_t)(dims[0] * (dims[1] ? dims[1] : 1)) * 4 + 31) / 32 * 32;
    }
    put_padding(&file, 32);
    for (uint64_t i = 0; i < at; i += 8)
        put_int(&file, 0, 8);
    return file;
}

#endif
