/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects of JSON by tables of their fields: what is in no table is refused by its name, with the
 * names there are, and null is as good as absent.
 */
#ifndef QN_REQUEST_FIELDS_H
#define QN_REQUEST_FIELDS_H

#include "base/json.h"

typedef struct qn__field qn__field;

struct qn__field {
    const char *name;
    qn_status (*take)(void *to, const qn__field *f, const qn__json_at *value, qn_error *err);
    size_t offset; /* in *to; what follows is for the functions below */
    double least, most;
};

/* A table, and where its fields go. */
typedef struct qn__fields {
    const qn__field *fields;
    size_t n;
    void *to;
} qn__fields;

qn_status qn__fields_read(const qn__json_at *object, const qn__fields *tables, size_t n,
                          qn_error *err);

/* An int64_t or a double of least..most; a bool. */
qn_status qn__take_integer(void *to, const qn__field *f, const qn__json_at *value, qn_error *err);
qn_status qn__take_number(void *to, const qn__field *f, const qn__json_at *value, qn_error *err);
qn_status qn__take_flag(void *to, const qn__field *f, const qn__json_at *value, qn_error *err);

/* A qn__json_at, whatever it is, to be read later. */
qn_status qn__take_value(void *to, const qn__field *f, const qn__json_at *value, qn_error *err);

/* A const char * that is the tree's. */
qn_status qn__take_text(void *to, const qn__field *f, const qn__json_at *value, qn_error *err);

/* A text that says nothing here. */
qn_status qn__take_ignored(void *to, const qn__field *f, const qn__json_at *value, qn_error *err);

#endif
