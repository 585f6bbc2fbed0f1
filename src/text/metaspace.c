/* SPDX-License-Identifier: Apache-2.0
 *
 * Both spellings of Metaspace; see metaspace.h.
 */
#include "text/metaspace.h"

#include <string.h>

qn_status qn__metaspace_parse(qn__metaspace *out, const qn__json_at *at, qn_error *err)
{
    static const char *const names[] = {"always", "first", "never"};
    const char *scheme = NULL;
    bool add_prefix_space = true;
    qn_status status = qn__json_opt_string(at, "prepend_scheme", &scheme, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "add_prefix_space", &add_prefix_space, err);
    if (status != QN_OK)
        return status;
    int i = add_prefix_space ? 0 : QN__METASPACE_NEVER;
    if (scheme)
        for (i = 0; i < 3 && strcmp(scheme, names[i]) != 0;)
            i++;
    if (i == 3)
        return qn__json_fail(at, QN_UNSUPPORTED, err,
                             "prepend_scheme \"%.40s\" is not supported (supported: always, first, "
                             "never)",
                             scheme);
    *out = (qn__metaspace)i;
    if (!add_prefix_space && i != QN__METASPACE_NEVER)
        return qn__json_fail(at, QN_FORMAT, err,
                             "add_prefix_space is false, but prepend_scheme is \"%s\"", names[i]);
    return QN_OK;
}
