/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of chats share: a tokenizer made here, with one token a byte and control tokens,
 * so that decoding ids gives the rendered text; and the folder of test data.
 */
#ifndef QN_TESTS_CHAT_TEST_H
#define QN_TESTS_CHAT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "quern/text.h"
#include "text/bpe.h"
#include "../base/temp_dir.h"

#define DS_BEGIN                                                                                   \
    "<\xef\xbd\x9c"                                                                                \
    "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define DS_END                                                                                     \
    "<\xef\xbd\x9c"                                                                                \
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define DS_USER "<\xef\xbd\x9cUser\xef\xbd\x9c>"
#define DS_ASSISTANT                                                                               \
    "<\xef\xbd\x9c"                                                                                \
    "Assistant\xef\xbd\x9c>"

/* A tokenizer with one token a byte and these added tokens, special but for "think" ones. */
static inline qn_tokenizer *make_tokenizer(const char *const *tokens, size_t n)
{
    char json[16384], bytes[5];
    size_t used = (size_t)sprintf(json, "{\"model\":{\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        bytes[qn__utf8_encode(qn__byte_to_char((uint8_t)i), bytes)] = '\0';
        bool escape = bytes[0] == '"' || bytes[0] == '\\';
        used += (size_t)sprintf(json + used, "%s\"%s%s\":%d", i ? "," : "", escape ? "\\" : "",
                                bytes, i);
    }
    used += (size_t)sprintf(json + used,
                            "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                            "false},\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[");
    for (size_t i = 0; i < n && tokens[i]; i++)
        used += (size_t)sprintf(json + used,
                                "%s{\"id\":%d,\"content\":\"%s\",\"normalized\":false,"
                                "\"special\":%s}",
                                i ? "," : "", 256 + (int)i, tokens[i],
                                strstr(tokens[i], "think") ? "false" : "true");
    used += (size_t)sprintf(json + used, "]}");
    qn_tokenizer *t;
    qn_error err = {0};
    if (qn_tokenizer_open(&t, temp_write("chat.json", json, used), &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static inline const char *chat_data(const char *name)
{
    static char path[PATH_MAX];
    const char *data = getenv("QUERN_TEST_DATA");
    if (!data) {
        print_message("skipped: QUERN_TEST_DATA is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/%s", data, name);
    return path;
}

#endif
