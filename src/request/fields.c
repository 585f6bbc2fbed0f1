/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects by tables; see fields.h.
 */
#include "request/fields.h"

#include <stdio.h>
#include <string.h>

static qn_status fail_unknown(const qn__json_at *at, const qn__fields *tables, size_t n,
                              qn_error *err)
{
    char names[400] = "";
    size_t used = 0;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < tables[t].n && used < sizeof names; i++)
            used += (size_t)snprintf(names + used, sizeof names - used, " %s",
                                     tables[t].fields[i].name);
    return qn__json_fail(at, QN_UNSUPPORTED, err, "not supported; what is:%s", names);
}

static qn_status take_field(const qn__json_at *at, const qn__fields *tables, size_t n,
                            qn_error *err)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < tables[t].n; i++) {
            const qn__field *f = &tables[t].fields[i];
            if (!strcmp(f->name, at->key))
                return cJSON_IsNull(at->node) ? QN_OK : f->take(tables[t].to, f, at, err);
        }
    return fail_unknown(at, tables, n, err);
}

qn_status qn__fields_read(const qn__json_at *object, const qn__fields *tables, size_t n,
                          qn_error *err)
{
    qn__json_at at;
    qn_status status = QN_OK;
    if (!cJSON_IsObject(object->node))
        return qn__json_fail(object, QN_FORMAT, err, "expected an object");
    bool any = qn__json_first(object, &at);
    for (; any && status == QN_OK; any = qn__json_next(&at))
        status = take_field(&at, tables, n, err);
    return status;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void *place_of(void *to, const qn__field *f)
{
    return (char *)to + f->offset;
}

qn_status qn__take_integer(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    return qn__json_as_int(value, (int64_t)f->least, (int64_t)f->most, place_of(to, f), err);
}

qn_status qn__take_number(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    return qn__json_as_number(value, f->least, f->most, place_of(to, f), err);
}

qn_status qn__take_flag(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    return qn__json_as_bool(value, place_of(to, f), err);
}

qn_status qn__take_value(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    (void)err;
    *(qn__json_at *)place_of(to, f) = *value;
    return QN_OK;
}

qn_status qn__take_text(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    return qn__json_as_string(value, place_of(to, f), err);
}

qn_status qn__take_ignored(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    const char *text;
    (void)to;
    (void)f;
    return qn__json_as_string(value, &text, err);
}
