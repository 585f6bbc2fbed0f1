/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages as the JSON that chat templates take.
 */
#ifndef QN_TEXT_CHAT_MESSAGES_H
#define QN_TEXT_CHAT_MESSAGES_H

#include "quern/text.h"

/* Appends {"messages": [...], "add_generation_prompt": ...} to *json. A role or a content that is
 * not UTF-8 is QN_FORMAT. */
qn_status qn__chat_messages_json(const qn_chat_message *messages, size_t n, bool add_prompt,
                                 qn_text *json, qn_error *err);

#endif
