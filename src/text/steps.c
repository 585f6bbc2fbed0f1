/* SPDX-License-Identifier: Apache-2.0
 *
 * Walking the steps of a tokenizer.json; see steps.h. The reader of JSON bounds the depth.
 */
#include "text/steps.h"

#include <stdio.h>
#include <string.h>

static qn_status refuse_type(const qn__json_at *at, const char *type, const char *const *names,
                             int n, qn_error *err)
{
    char all[256] = "Sequence";
    size_t used = strlen(all);
    for (int i = 0; i < n && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, ", %s", names[i]);
    return qn__json_fail(at, QN_UNSUPPORTED, err, "type \"%.40s\" is not supported (supported: %s)",
                         type, all);
}

qn_status qn__steps_parse(const qn__json_at *at, const char *list, const char *const *names, int n,
                          qn__step_fn add, void *user, qn_error *err)
{
    const char *type;
    if (!at->node || cJSON_IsNull(at->node))
        return QN_OK;
    qn_status status = qn__json_get_string(at, "type", &type, err);
    if (status != QN_OK)
        return status;
    if (strcmp(type, "Sequence") == 0) {
        qn__json_at items, item;
        status = qn__json_get_array(at, list, &items, err);
        if (status == QN_OK && qn__json_first(&items, &item))
            do
                status = qn__steps_parse(&item, list, names, n, add, user, err);
            while (status == QN_OK && qn__json_next(&item));
        return status;
    }
    for (int kind = 0; kind < n; kind++)
        if (strcmp(type, names[kind]) == 0)
            return add(user, kind, at, err);
    return refuse_type(at, type, names, n, err);
}
