/* SPDX-License-Identifier: Apache-2.0
 *
 * A pull scanner for JSON in memory, for two uses: to check a text completely before cJSON sees
 * it (json.c), and to read large tables (a vocabulary, a safetensors header) without a tree.
 *
 * It accepts RFC 8259 and nothing else, and refuses besides: invalid UTF-8, lone surrogates, NUL
 * in strings, more than 64 levels, numbers longer than 63 characters. Duplicate keys are the
 * reader's business, since only it has a table of them. Time is linear, memory constant but for
 * one buffer for strings with escapes.
 *
 *     qn__json_scan scan;
 *     qn__json_scan_begin(&scan, "x.json", text, size, err);
 *     qn__json_text key;
 *     qn__json_enter_object(&scan);
 *     while (qn__json_next_key(&scan, &key))
 *         ... exactly one of read_string, read_int, enter_..., skip ...
 *     qn_status status = qn__json_scan_end(&scan);
 *
 * The first failure sticks: later calls return false, and `status` and the qn_error hold it, with
 * file, path ("model.merges[3]") and byte.
 */
#ifndef QN_BASE_JSON_SCAN_H
#define QN_BASE_JSON_SCAN_H

#include "base/error.h"

#include <stdbool.h>
#include <string.h>

#define QN__JSON_MAX_DEPTH  64
#define QN__JSON_MAX_NUMBER 63

typedef enum qn__json_kind {
    QN__JSON_FAILED,
    QN__JSON_NULL,
    QN__JSON_FALSE,
    QN__JSON_TRUE,
    QN__JSON_NUMBER,
    QN__JSON_STRING,
    QN__JSON_ARRAY,
    QN__JSON_OBJECT
} qn__json_kind;

/* Bytes without a terminator; valid until the scanner reads the next string or key. */
typedef struct qn__json_text {
    const char *data;
    size_t size;
} qn__json_text;

static inline bool qn__json_text_is(const qn__json_text *text, const char *word)
{
    return text->size == strlen(word) && memcmp(text->data, word, text->size) == 0;
}

/* One open object or array. */
typedef struct qn__json_level {
    const char *key; /* as written, for messages; NULL in an array */
    size_t key_size;
    size_t count; /* members begun */
    bool is_object;
} qn__json_level;

typedef struct qn__json_scan {
    const char *file;
    const char *begin, *at, *end;
    qn_error *err;
    qn_status status;
    bool allow_nul; /* set it after begin: \u0000 in strings is then let through */
    int depth;
    size_t n_values; /* values begun so far */
    char *scratch;
    size_t scratch_size;
    qn__json_level levels[QN__JSON_MAX_DEPTH];
} qn__json_scan;

/* `file` (for messages) and `text` are borrowed. A byte order mark is skipped. */
void qn__json_scan_begin(qn__json_scan *scan, const char *file, const char *text, size_t size,
                         qn_error *err);

/* After the outermost value: checks that nothing follows, frees the buffer, returns the status.
 * Also to be called after a failure. */
qn_status qn__json_scan_end(qn__json_scan *scan);

/* The kind of the next value, which is not consumed. */
qn__json_kind qn__json_peek(qn__json_scan *scan);

bool qn__json_enter_object(qn__json_scan *scan);
bool qn__json_next_key(qn__json_scan *scan,
                       qn__json_text *key); /* false: end of object, or failed */
bool qn__json_enter_array(qn__json_scan *scan);
bool qn__json_next_item(qn__json_scan *scan); /* false: end of array, or failed */

bool qn__json_read_string(qn__json_scan *scan, qn__json_text *text);
bool qn__json_read_int(qn__json_scan *scan, int64_t min, int64_t max, int64_t *value);
bool qn__json_read_bool(qn__json_scan *scan, bool *value);

/* Checks and passes over the next value, whatever it is; `span` (NULL: not wanted) receives its
 * text as written. */
bool qn__json_skip(qn__json_scan *scan, qn__json_text *span);

/* Fails with "file: path: ..." at the scanner's place; always false. */
bool qn__json_scan_fail(qn__json_scan *scan, qn_status code, const char *format, ...)
    QN_PRINTF(3, 4);

#endif
