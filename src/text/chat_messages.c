/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing messages as JSON; see chat_messages.h.
 */
#include "text/chat_messages.h"

#include "base/error.h"
#include "base/utf8.h"
#include "base/buffers.h"

#include <string.h>

qn_status qn__chat_messages_json(const qn_chat_message *messages, size_t n, bool add_prompt,
                                 qn_text *json, qn_error *err)
{
    bool ok = qn__text_puts(json, "{\"messages\":[");
    for (size_t i = 0; ok && i < n; i++) {
        const qn_chat_message *m = &messages[i];
        if (!m->role || !m->content)
            return qn__fail(err, QN_INVALID, "message %zu has no %s", i,
                            m->role ? "content" : "role");
        size_t size = m->content_size ? m->content_size : strlen(m->content);
        size_t valid = qn__utf8_check(m->content, size);
        if (valid != size || qn__utf8_check(m->role, strlen(m->role)) != strlen(m->role))
            return qn__fail(err, QN_FORMAT, "message %zu is not valid UTF-8 at byte %zu", i, valid);
        ok = qn__text_puts(json, i ? ",{\"role\":" : "{\"role\":") &&
             qn__text_append_json(json, m->role, strlen(m->role)) &&
             qn__text_puts(json, ",\"content\":") && qn__text_append_json(json, m->content, size) &&
             qn__text_puts(json, "}");
    }
    ok = ok && qn__text_puts(json, add_prompt ? "],\"add_generation_prompt\":true}"
                                              : "],\"add_generation_prompt\":false}");
    return ok ? QN_OK : qn__fail_memory(err, "a chat");
}
