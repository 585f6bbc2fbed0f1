/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat formats as a table, and the one renderer. Text between two control tokens is gathered and
 * encoded in one piece, as a tokenizer that saw the rendered string would, but without parsing
 * special tokens in it: what a message says stays text.
 */
#include "text/chat.h"

#include "text/tokenizer.h"
#include "base/unicode.h"

#include <string.h>

static const qn__chat_row chat_rows[QN_CHAT_COUNT] = {
    [QN_CHAT_NONE] = {.name = "none"},
    [QN_CHAT_CHATML] =
        {
            .name = "chatml",
            .begin = "",
            .turn = "<|im_start|>",
            .roles = {"system", "user", "assistant"},
            .header_end = "",
            .before = "\n",
            .end = {"<|im_end|>", "<|im_end|>", "<|im_end|>"},
            .after = "\n",
            .stops = {"<|im_end|>", "<|endoftext|>"},
        },
    [QN_CHAT_LLAMA3] =
        {
            .name = "llama3",
            .begin = "<|begin_of_text|>",
            .turn = "<|start_header_id|>",
            .roles = {"system", "user", "assistant"},
            .header_end = "<|end_header_id|>",
            .before = "\n\n",
            .end = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
            .after = "",
            .trim = true,
            .stops = {"<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"},
        },
    [QN_CHAT_GEMMA] =
        {
            .name = "gemma",
            .begin = "<bos>",
            .turn = "<start_of_turn>",
            .roles = {NULL, "user", "model"},
            .header_end = "",
            .before = "\n",
            .end = {"", "<end_of_turn>", "<end_of_turn>"},
            .after = "\n",
            .trim = true,
            .system_gap = "\n\n",
            .stops = {"<end_of_turn>", "<eos>"},
        },
    [QN_CHAT_DEEPSEEK] =
        {
            .name = "deepseek",
            .begin = "<\xef\xbd\x9c"
                     "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
            .turn = "",
            .roles = {"", "<\xef\xbd\x9cUser\xef\xbd\x9c>",
                      "<\xef\xbd\x9c"
                      "Assistant\xef\xbd\x9c>"},
            .header_end = "",
            .before = "",
            .end = {"", "",
                    "<\xef\xbd\x9c"
                    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
            .after = "",
            .think = "<think>\n",
            .drop_thoughts = true,
            .stops = {"<\xef\xbd\x9c"
                      "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
        },
};

static const char *const role_names[3] = {"system", "user", "assistant"};

/* ---- which format --------------------------------------------------------------------------- */

static bool has_control(const qn_tokenizer *t, const char *piece)
{
    if (!piece || !piece[0])
        return true;
    int32_t id = qn_tokenizer_find(t, piece);
    return id >= 0 && (t->bpe.vocab.flags[id] & QN__TOKEN_ADDED);
}

static bool fits_row(const qn_tokenizer *t, const qn__chat_row *row)
{
    bool fits =
        has_control(t, row->begin) && has_control(t, row->turn) && has_control(t, row->header_end);
    for (int i = 0; i < 3; i++)
        fits =
            fits && has_control(t, row->end[i]) && (row->turn[0] || has_control(t, row->roles[i]));
    return fits;
}

qn_chat_format qn__chat_detect(const qn_tokenizer *tokenizer)
{
    for (int i = QN_CHAT_NONE + 1; i < QN_CHAT_COUNT; i++)
        if (fits_row(tokenizer, &chat_rows[i]))
            return (qn_chat_format)i;
    return QN_CHAT_NONE;
}

qn_chat_format qn_chat_format_of(const qn_tokenizer *tokenizer)
{
    return tokenizer->chat;
}

const char *qn_chat_format_name(qn_chat_format format)
{
    return chat_rows[(unsigned)format < QN_CHAT_COUNT ? format : QN_CHAT_NONE].name;
}

size_t qn_chat_stop_tokens(const qn_tokenizer *tokenizer, int32_t *ids, size_t capacity)
{
    const qn__chat_row *row = &chat_rows[tokenizer->chat];
    int32_t found[5];
    size_t n = 0;
    for (int i = 0; i < 5; i++) {
        int32_t id = tokenizer->eos;
        if (i < 4)
            id = row->stops[i] ? qn_tokenizer_find(tokenizer, row->stops[i]) : -1;
        bool known = id < 0;
        for (size_t j = 0; j < n; j++)
            known = known || found[j] == id;
        if (known)
            continue;
        if (n < capacity)
            ids[n] = id;
        found[n++] = id;
    }
    return n;
}

/* ---- rendering ------------------------------------------------------------------------------ */

typedef struct rendering {
    const qn_tokenizer *tokenizer;
    const qn__chat_row *row;
    qn_tokens *out;
    qn_text text; /* gathered since the last control token */
    qn_error *err;
} rendering;

static qn_status render_text(rendering *r, const char *s, size_t n)
{
    return qn__text_append(&r->text, s, n) ? QN_OK : qn__fail_memory(r->err, "a conversation");
}

static qn_status flush_text(rendering *r)
{
    qn_status status = QN_OK;
    if (r->text.n > 0)
        status = qn_tokenizer_encode(r->tokenizer, r->text.data, r->text.n, 0, r->out, r->err);
    r->text.n = 0;
    return status;
}

static qn_status render_control(rendering *r, const char *piece)
{
    if (!piece[0])
        return QN_OK;
    qn_status status = flush_text(r);
    if (status == QN_OK && !qn__tokens_push(r->out, qn_tokenizer_find(r->tokenizer, piece)))
        status = qn__fail_memory(r->err, "a conversation");
    return status;
}

static qn_status render_header(rendering *r, int role)
{
    const qn__chat_row *row = r->row;
    qn_status status = render_control(r, row->turn);
    if (status == QN_OK)
        status = row->turn[0] ? render_text(r, row->roles[role], strlen(row->roles[role]))
                              : render_control(r, row->roles[role]);
    if (status == QN_OK)
        status = render_control(r, row->header_end);
    return status == QN_OK ? render_text(r, row->before, strlen(row->before)) : status;
}

static qn_status render_content(rendering *r, const qn_chat_message *message, int role)
{
    static const char thought_end[] = "</think>";
    const char *s = message->content, *hit;
    size_t n = message->content_size ? message->content_size : strlen(s), start = 0, k;
    size_t valid = qn__utf8_check(s, n);
    if (valid != n)
        return qn__fail(r->err, QN_FORMAT, "a message's content is not valid UTF-8 at byte %zu",
                        valid);
    if (r->row->drop_thoughts && role == 2)
        while ((hit = memmem(s + start, n - start, thought_end, sizeof thought_end - 1)))
            start = (size_t)(hit - s) + sizeof thought_end - 1;
    if (r->row->trim) {
        while (start < n && (qn__class_at(s, n, start, &k) & QN__SPACE))
            start += k;
        while (n > start && (qn__class_at(s, n, qn__char_before(s, n), &k) & QN__SPACE))
            n = qn__char_before(s, n);
    }
    return render_text(r, s + start, n - start);
}

static int role_of(const char *name)
{
    for (int i = 0; name && i < 3; i++)
        if (strcmp(name, role_names[i]) == 0)
            return i;
    return -1;
}

static qn_status render_messages(rendering *r, const qn_chat_message *messages, size_t n)
{
    const qn__chat_row *row = r->row;
    const qn_chat_message *system = NULL; /* waits for the first user's turn */
    qn_status status = render_control(r, row->begin);
    for (size_t i = 0; status == QN_OK && i < n; i++) {
        int role = role_of(messages[i].role);
        if (role < 0 || !messages[i].content)
            return qn__fail(r->err, QN_INVALID,
                            "message %zu: role \"%.40s\", expected system, user or assistant, "
                            "with content",
                            i, messages[i].role ? messages[i].role : "");
        if (!row->roles[role]) {
            if (i > 0)
                return qn__fail(r->err, QN_INVALID,
                                "message %zu: chat format %s takes a system message only first", i,
                                row->name);
            system = &messages[i];
            continue;
        }
        status = render_header(r, role);
        if (status == QN_OK && system) {
            status = render_content(r, system, 0);
            if (status == QN_OK)
                status = render_text(r, row->system_gap, strlen(row->system_gap));
            system = NULL;
        }
        if (status == QN_OK)
            status = render_content(r, &messages[i], role);
        if (status == QN_OK)
            status = render_control(r, row->end[role]);
        if (status == QN_OK)
            status = render_text(r, row->after, strlen(row->after));
    }
    return status;
}

qn_status qn_chat_encode(const qn_tokenizer *tokenizer, const qn_chat_message *messages, size_t n,
                         bool add_prompt, qn_tokens *out, qn_error *err)
{
    if (tokenizer->chat == QN_CHAT_NONE)
        return qn__fail(err, QN_UNSUPPORTED,
                        "the tokenizer has no chat tokens that a built-in format knows (chatml, "
                        "llama3, gemma, deepseek)");
    rendering r = {
        .tokenizer = tokenizer,
        .row = &chat_rows[tokenizer->chat],
        .out = out,
        .err = err,
    };
    size_t before = out->n;
    qn_status status = render_messages(&r, messages, n);
    if (status == QN_OK && add_prompt)
        status = render_header(&r, 2);
    if (status == QN_OK && add_prompt && r.row->think && has_control(tokenizer, "<think>"))
        status = render_text(&r, r.row->think, strlen(r.row->think));
    if (status == QN_OK)
        status = flush_text(&r);
    qn_text_free(&r.text);
    if (status != QN_OK)
        out->n = before;
    return status;
}
