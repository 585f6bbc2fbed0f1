/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree side of JSON; see json.h. Invariant: a tree that qn__json_parse returned has no
 * duplicate keys, only finite numbers, only valid UTF-8 without NUL, at most 64 levels and
 * QN__JSON_MAX_VALUES values, so that recursion over it is bounded.
 */
#include "base/json.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_scan.h"
#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- places and messages -------------------------------------------------------------------- */

qn__json_at qn__json_root(const char *file, const cJSON *root)
{
    return (qn__json_at){.file = file, .node = root};
}

/* "rope_scaling.factors[3]"; appends to out[used..size), returns the new length. */
static size_t write_tree_path(const qn__json_at *at, char *out, size_t size)
{
    if (!at->parent)
        return 0;
    size_t used = write_tree_path(at->parent, out, size);
    if (used + 80 > size)
        return used;
    int n;
    if (at->key) {
        char key[64];
        n = snprintf(out + used, size - used, "%s%s", used ? "." : "",
                     qn__utf8_quote(key, sizeof key, at->key, strlen(at->key)));
    } else {
        n = snprintf(out + used, size - used, "[%zu]", at->index);
    }
    return used + (size_t)n;
}

qn_status qn__json_fail(const qn__json_at *at, qn_status code, qn_error *err, const char *format,
                        ...)
{
    char path[256] = "", message[400];
    write_tree_path(at, path, sizeof path);
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return qn__fail(err, code, "%s: %s%s%s", at->file, path, path[0] ? ": " : "", message);
}

/* What stands there, for "expected ..., got ...". */
static const char *describe_node(const cJSON *node, char *out, size_t size)
{
    char text[48];
    if (cJSON_IsString(node))
        snprintf(out, size, "\"%s\"",
                 qn__utf8_quote(text, sizeof text, node->valuestring, strlen(node->valuestring)));
    else if (cJSON_IsNumber(node))
        snprintf(out, size, "%.17g", node->valuedouble);
    else
        snprintf(out, size, "%s",
                 !node                 ? "nothing"
                 : cJSON_IsNull(node)  ? "null"
                 : cJSON_IsTrue(node)  ? "true"
                 : cJSON_IsFalse(node) ? "false"
                 : cJSON_IsArray(node) ? "an array"
                                       : "an object");
    return out;
}

static qn_status fail_kind(const qn__json_at *at, qn_error *err, const char *expected)
{
    char got[64];
    if (!at->node)
        return qn__json_fail(at, QN_FORMAT, err, "missing; expected %s", expected);
    return qn__json_fail(at, QN_FORMAT, err, "expected %s, got %s", expected,
                         describe_node(at->node, got, sizeof got));
}

/* ---- parsing -------------------------------------------------------------------------------- */

/* The second of two equal keys of `object`, or NULL; *failed when memory is out. */
static const char *find_duplicate_key(const cJSON *object, bool *failed)
{
    size_t n = 0;
    for (const cJSON *c = object->child; c; c = c->next)
        n++;
    if (n <= 16) {
        for (const cJSON *c = object->child; c; c = c->next)
            for (const cJSON *d = object->child; d != c; d = d->next)
                if (strcmp(c->string, d->string) == 0)
                    return c->string;
        return NULL;
    }
    size_t slots = 64;
    while (slots < 2 * n)
        slots *= 2;
    const char **table = calloc(slots, sizeof *table);
    *failed = !table;
    if (!table)
        return NULL;
    uint64_t seed = qn__hash_seed();
    const char *duplicate = NULL;
    for (const cJSON *c = object->child; c && !duplicate; c = c->next) {
        size_t i = qn__hash_bytes(c->string, strlen(c->string), seed) & (slots - 1);
        for (; table[i] && !duplicate; i = (i + 1) & (slots - 1))
            if (strcmp(table[i], c->string) == 0)
                duplicate = c->string;
        table[i] = c->string;
    }
    free(table);
    return duplicate;
}

static qn_status check_tree(const qn__json_at *at, qn_error *err)
{
    if (cJSON_IsNumber(at->node) && !isfinite(at->node->valuedouble))
        return qn__json_fail(at, QN_FORMAT, err, "the number is too large for a double");
    if (cJSON_IsObject(at->node)) {
        bool failed = false;
        const char *key = find_duplicate_key(at->node, &failed);
        char quoted[64];
        if (failed)
            return qn__fail_memory(err, "a table of JSON keys");
        if (key)
            return qn__json_fail(at, QN_FORMAT, err, "key \"%s\" stands twice",
                                 qn__utf8_quote(quoted, sizeof quoted, key, strlen(key)));
    }
    qn__json_at child;
    if (qn__json_first(at, &child)) {
        do {
            qn_status status = check_tree(&child, err);
            if (status != QN_OK)
                return status;
        } while (qn__json_next(&child));
    }
    return QN_OK;
}

qn_status qn__json_parse(cJSON **out, const char *file, const char *text, size_t size,
                         qn_error *err)
{
    *out = NULL;
    qn__json_scan scan;
    qn__json_scan_begin(&scan, file, text, size, err);
    const char *start = scan.at;
    qn__json_skip(&scan, NULL);
    qn_status status = qn__json_scan_end(&scan);
    if (status != QN_OK)
        return status;
    if (scan.n_values > QN__JSON_MAX_VALUES)
        return qn__fail(err, QN_LIMIT, "%s: %zu values, more than the limit of %d", file,
                        scan.n_values, QN__JSON_MAX_VALUES);
    cJSON *root = cJSON_ParseWithLength(start, (size_t)(text + size - start));
    if (!root)
        return qn__fail_memory(err, "a JSON tree");
    qn__json_at at = qn__json_root(file, root);
    status = check_tree(&at, err);
    if (status != QN_OK) {
        cJSON_Delete(root);
        return status;
    }
    *out = root;
    return QN_OK;
}

qn_status qn__json_read(cJSON **out, const char *path, size_t max_size, qn_error *err)
{
    *out = NULL;
    char *text = NULL;
    size_t size = 0;
    qn_status status = qn__file_read(path, max_size, &text, &size, err);
    if (status == QN_OK)
        status = qn__json_parse(out, path, text, size, err);
    free(text);
    return status;
}

qn_status qn__json_write(const cJSON *json, const char *directory, const char *name, qn_error *err)
{
    char *text = json ? cJSON_Print(json) : NULL, *path = qn__path_join(directory, name);
    qn_status status = text && path ? qn__file_write(path, text, strlen(text), 0, err)
                                    : qn__fail_memory(err, name);
    free(text);
    free(path);
    return status;
}

/* ---- walking -------------------------------------------------------------------------------- */

bool qn__json_find(const qn__json_at *object, const char *key, qn__json_at *child)
{
    *child = (qn__json_at){.file = object->file, .parent = object, .key = key};
    if (!cJSON_IsObject(object->node))
        return false;
    for (const cJSON *c = object->node->child; c; c = c->next)
        if (strcmp(c->string, key) == 0) {
            child->node = cJSON_IsNull(c) ? NULL : c;
            break;
        }
    return child->node != NULL;
}

bool qn__json_first(const qn__json_at *container, qn__json_at *child)
{
    bool has = cJSON_IsObject(container->node) || cJSON_IsArray(container->node);
    const cJSON *node = has ? container->node->child : NULL;
    *child = (qn__json_at){
        .file = container->file,
        .parent = container,
        .node = node,
        .key = node && cJSON_IsObject(container->node) ? node->string : NULL,
    };
    return node != NULL;
}

bool qn__json_next(qn__json_at *child)
{
    const cJSON *node = child->node->next;
    if (!node)
        return false;
    child->node = node;
    child->index++;
    if (child->key)
        child->key = node->string;
    return true;
}

/* ---- conversions ---------------------------------------------------------------------------- */

qn_status qn__json_as_int(const qn__json_at *at, int64_t min, int64_t max, int64_t *out,
                          qn_error *err)
{
    double v = cJSON_IsNumber(at->node) ? at->node->valuedouble : NAN;
    const double limit = 9007199254740991.0;
    /* The comparisons are false for NaN; beyond 2^53 neighbours would be confused. */
    if (v >= -limit && v <= limit && v == floor(v) && (int64_t)v >= min && (int64_t)v <= max) {
        *out = (int64_t)v;
        return QN_OK;
    }
    char expected[80];
    snprintf(expected, sizeof expected, "an integer in %lld..%lld", (long long)min, (long long)max);
    return fail_kind(at, err, expected);
}

qn_status qn__json_as_number(const qn__json_at *at, double min, double max, double *out,
                             qn_error *err)
{
    double v = cJSON_IsNumber(at->node) ? at->node->valuedouble : NAN;
    if (v >= min && v <= max) {
        *out = v;
        return QN_OK;
    }
    char expected[80];
    snprintf(expected, sizeof expected, "a number in %g..%g", min, max);
    return fail_kind(at, err, expected);
}

qn_status qn__json_as_bool(const qn__json_at *at, bool *out, qn_error *err)
{
    if (!cJSON_IsBool(at->node))
        return fail_kind(at, err, "true or false");
    *out = cJSON_IsTrue(at->node);
    return QN_OK;
}

qn_status qn__json_as_string(const qn__json_at *at, const char **out, qn_error *err)
{
    if (!cJSON_IsString(at->node))
        return fail_kind(at, err, "a string");
    *out = at->node->valuestring;
    return QN_OK;
}

qn_status qn__json_get_int(const qn__json_at *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, qn_error *err)
{
    qn__json_at at;
    qn__json_find(object, key, &at);
    return qn__json_as_int(&at, min, max, out, err);
}

qn_status qn__json_get_number(const qn__json_at *object, const char *key, double min, double max,
                              double *out, qn_error *err)
{
    qn__json_at at;
    qn__json_find(object, key, &at);
    return qn__json_as_number(&at, min, max, out, err);
}

qn_status qn__json_get_string(const qn__json_at *object, const char *key, const char **out,
                              qn_error *err)
{
    qn__json_at at;
    qn__json_find(object, key, &at);
    return qn__json_as_string(&at, out, err);
}

qn_status qn__json_get_object(const qn__json_at *object, const char *key, qn__json_at *child,
                              qn_error *err)
{
    qn__json_find(object, key, child);
    return cJSON_IsObject(child->node) ? QN_OK : fail_kind(child, err, "an object");
}

qn_status qn__json_get_array(const qn__json_at *object, const char *key, qn__json_at *child,
                             qn_error *err)
{
    qn__json_find(object, key, child);
    return cJSON_IsArray(child->node) ? QN_OK : fail_kind(child, err, "an array");
}

qn_status qn__json_opt_int(const qn__json_at *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, qn_error *err)
{
    qn__json_at at;
    return qn__json_find(object, key, &at) ? qn__json_as_int(&at, min, max, out, err) : QN_OK;
}

qn_status qn__json_opt_number(const qn__json_at *object, const char *key, double min, double max,
                              double *out, qn_error *err)
{
    qn__json_at at;
    return qn__json_find(object, key, &at) ? qn__json_as_number(&at, min, max, out, err) : QN_OK;
}

qn_status qn__json_opt_bool(const qn__json_at *object, const char *key, bool *out, qn_error *err)
{
    qn__json_at at;
    return qn__json_find(object, key, &at) ? qn__json_as_bool(&at, out, err) : QN_OK;
}

qn_status qn__json_opt_string(const qn__json_at *object, const char *key, const char **out,
                              qn_error *err)
{
    qn__json_at at;
    return qn__json_find(object, key, &at) ? qn__json_as_string(&at, out, err) : QN_OK;
}
