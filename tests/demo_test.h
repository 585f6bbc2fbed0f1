/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in model's tokenizer, and chats with its template or another one.
 */
#ifndef QN_TESTS_DEMO_TEST_H
#define QN_TESTS_DEMO_TEST_H

#include "test.h"

#include "base/temp_dir.h"

#include <string.h>
#include <unistd.h>

static inline qn_tokenizer *open_demo(void)
{
    char path[600];
    qn_error err = {0};
    qn_tokenizer *t;
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    if (qn_tokenizer_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

/* With this source of a template; NULL: with the demo's own. */
static inline qn_chat *open_demo_chat(const qn_tokenizer *t, const char *source)
{
    char path[600];
    qn_error err = {0};
    qn_chat *chat;
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    if (source) {
        if (access(temp_path("chat"), F_OK) != 0)
            temp_mkdir("chat");
        temp_write("chat/chat_template.jinja", source, strlen(source));
        snprintf(path, sizeof path, "%s", temp_path("chat"));
    }
    if (qn_chat_open(&chat, t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return chat;
}

#endif
