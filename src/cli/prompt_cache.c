/* SPDX-License-Identifier: Apache-2.0
 *
 * A prompt's keys and values in a file.
 */
#include "cli/prompt_cache.h"

#include <unistd.h>

qn_status prompt_cache_wake(const arguments *a, qn_session *session, const qn_tokens *ids,
                            size_t *kept, qn_error *err)
{
    *kept = 0;
    if (!a->prompt_cache || access(a->prompt_cache, F_OK) != 0)
        return QN_OK;
    if (qn_session_restore(session, a->prompt_cache, err) != QN_OK)
        return err->code;
    *kept = (size_t)qn_session_rewind_to(session, ids->ids, ids->n);
    return QN_OK;
}

qn_status prompt_cache_keep(const arguments *a, qn_session *session, const qn_tokens *ids,
                            size_t *kept, qn_error *err)
{
    size_t n = ids->n - 1;
    if (!a->prompt_cache || a->prompt_cache_ro || a->prompt_cache_all || *kept == n)
        return QN_OK;
    if (qn_session_append(session, ids->ids + *kept, n - *kept, err) != QN_OK)
        return err->code;
    *kept = n;
    return qn_session_save(session, a->prompt_cache, err);
}

qn_status prompt_cache_keep_all(const arguments *a, qn_session *session, qn_error *err)
{
    if (!a->prompt_cache || a->prompt_cache_ro || !a->prompt_cache_all)
        return QN_OK;
    return qn_session_save(session, a->prompt_cache, err);
}
