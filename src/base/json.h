/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON trees: cJSON behind a complete check, and typed getters that say what was wrong.
 *
 * cJSON alone is lenient, so the text first passes json_scan.h (grammar, UTF-8, depth, size); the
 * tree is then walked once for what needs it: duplicate keys (a hash set per object, linear) and
 * numbers that overflow to infinity. What a getter returns can therefore be trusted as far as its
 * stated range. Big tables (vocabularies, safetensors headers) use json_scan.h directly.
 *
 *     cJSON *root = NULL;
 *     if (qn__json_read(&root, "dir/config.json", 1 << 20, err) != QN_OK)
 *         return err->code;
 *     qn__json_at config = qn__json_root("config.json", root);
 *     int64_t hidden;
 *     qn__json_get_int(&config, "hidden_size", 1, 1 << 20, &hidden, err);
 *     cJSON_Delete(root);
 *
 * gives, at worst: config.json: hidden_size: expected an integer in 1..1048576, got "abc".
 */
#ifndef QN_BASE_JSON_H
#define QN_BASE_JSON_H

#include "base/error.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* A tree has at most this many values (a value costs about 100 bytes). */
#define QN__JSON_MAX_VALUES 500000

/* Parses text[0..size) into *out (to be freed with cJSON_Delete); `file` is for messages. */
qn_status qn__json_parse(cJSON **out, const char *file, const char *text, size_t size,
                         qn_error *err);

/* Reads and parses a file of at most max_size bytes; messages name `path` as given. */
qn_status qn__json_read(cJSON **out, const char *path, size_t max_size, qn_error *err);

/* Writes a value as a new file of a directory. A json that is NULL is QN_MEMORY: there was none to
 * make it. */
qn_status qn__json_write(const cJSON *json, const char *directory, const char *name, qn_error *err);

/* A value and how it was reached, for messages. Lives on the stack; the parent must outlive it. */
typedef struct qn__json_at {
    const char *file;
    const struct qn__json_at *parent; /* NULL at the root */
    const cJSON *node;                /* NULL: absent */
    const char *key;                  /* in an object, else NULL */
    size_t index;                     /* in an array */
} qn__json_at;

qn__json_at qn__json_root(const char *file, const cJSON *root);

/* The member `key`; false where it's absent or null (then child->node is NULL). Linear in the
 * size of the object: for configurations, not for tables. */
bool qn__json_find(const qn__json_at *object, const char *key, qn__json_at *child);

/* Iteration over an object or array, each step constant: if (first) do ... while (next). */
bool qn__json_first(const qn__json_at *container, qn__json_at *child);
bool qn__json_next(qn__json_at *child);

/* Records "file: path: ..." and returns code. */
qn_status qn__json_fail(const qn__json_at *at, qn_status code, qn_error *err, const char *format,
                        ...) QN_PRINTF(4, 5);

/* Checked conversions. Integers: |value| < 2^53, also when written 3.0 or 3e0. */
qn_status qn__json_as_int(const qn__json_at *at, int64_t min, int64_t max, int64_t *out,
                          qn_error *err);
qn_status qn__json_as_number(const qn__json_at *at, double min, double max, double *out,
                             qn_error *err);
qn_status qn__json_as_bool(const qn__json_at *at, bool *out, qn_error *err);
qn_status qn__json_as_string(const qn__json_at *at, const char **out, qn_error *err);

/* A required member. Strings live as long as the tree. */
qn_status qn__json_get_int(const qn__json_at *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, qn_error *err);
qn_status qn__json_get_number(const qn__json_at *object, const char *key, double min, double max,
                              double *out, qn_error *err);
qn_status qn__json_get_string(const qn__json_at *object, const char *key, const char **out,
                              qn_error *err);
qn_status qn__json_get_object(const qn__json_at *object, const char *key, qn__json_at *child,
                              qn_error *err);
qn_status qn__json_get_array(const qn__json_at *object, const char *key, qn__json_at *child,
                             qn_error *err);

/* An optional member: *out keeps the default that the caller put there when it's absent or null. */
qn_status qn__json_opt_int(const qn__json_at *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, qn_error *err);
qn_status qn__json_opt_number(const qn__json_at *object, const char *key, double min, double max,
                              double *out, qn_error *err);
qn_status qn__json_opt_bool(const qn__json_at *object, const char *key, bool *out, qn_error *err);
qn_status qn__json_opt_string(const qn__json_at *object, const char *key, const char **out,
                              qn_error *err);

#endif
