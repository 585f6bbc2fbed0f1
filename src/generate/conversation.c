/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations with a session: replies behind what has run already, and sleep. The session knows
 * its own tokens, also after a reply that was cancelled or failed, so what a reply can take over is
 * a comparison with them.
 *
 * In a sleeping session's file the messages are "conversation", JSON, beside the tokens; metadata
 * have their checksum and bind tokenizer and template. What they say of the tokens is not believed:
 * the next reply compares.
 */
#include "text/conversation.h"

#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "generate/sleep.h"

#include <stdlib.h>
#include <string.h>

static const char entry[] = "conversation";

/* ---- replies --------------------------------------------------------------------------------- */

static qn_status begin_behind(qn_generation **out, qn_session *session, const qn_tokens *ids,
                              qn_generation_options *o, qn_error *err)
{
    int64_t context = qn_session_context(session);
    if (ids->n > (size_t)context)
        return qn__fail(err, QN_LIMIT, "the conversation takes %zu tokens, the context holds %lld",
                        ids->n, (long long)context);
    size_t kept = (size_t)qn_session_rewind_to(session, ids->ids, ids->n);
    o->before = ids->ids;
    o->n_before = kept;
    return qn_generation_begin(out, session, ids->ids + kept, ids->n - kept, o, err);
}

qn_status qn_conversation_begin_reply(qn_generation **out, const qn_conversation *c,
                                      qn_session *session, const qn_generation_options *options,
                                      qn_error *err)
{
    qn_error local = {0};
    qn_tokens ids = {0};
    qn_generation_options o;
    err = err ? err : &local;
    *out = NULL;
    if (qn__sized_in(&o, sizeof o, options, "qn_generation_options", err) != QN_OK)
        return err->code;
    o.size = sizeof o;
    if (qn_conversation_ids(c, true, &ids, err) == QN_OK)
        begin_behind(out, session, &ids, &o, err);
    qn_tokens_free(&ids);
    return err->code;
}

/* ---- sleep ----------------------------------------------------------------------------------- */

typedef struct reader_words {
    qn__sleep_word tokenizer, template;
} reader_words;

static qn_status words_of(const qn_conversation *c, reader_words *out, qn_error *err)
{
    uint64_t h;
    if (!c->chat)
        return qn__fail(err, QN_STATE, "the conversation is of messages alone: it has no chat");
    if (qn__tokenizer_fingerprint(qn__chat_tokenizer(c->chat), &h, err) != QN_OK)
        return err->code;
    out->tokenizer = qn__sleep_word_of(h);
    out->template = qn__sleep_word_of(qn__chat_fingerprint(c->chat));
    return QN_OK;
}

static qn_status sleep_with(const qn_text *json, const reader_words *words, qn_session *session,
                            const char *path, qn_error *err)
{
    qn__sleep_word sum = qn__sleep_sum(json->data, json->n);
    const qn__metadata metadata[] = {
        {entry, sum.hex}, {"tokenizer", words->tokenizer.hex}, {"template", words->template.hex}};
    if (json->n > QN__LARGEST_CONVERSATION)
        return qn__fail(err, QN_LIMIT,
                        "the conversation's JSON has %zu bytes, at most %d can sleep", json->n,
                        QN__LARGEST_CONVERSATION);
    qn__beside beside = {entry, json->data, json->n, metadata, 3};
    return qn__session_sleep(session, path, &beside, err);
}

qn_status qn_conversation_save(const qn_conversation *c, qn_session *session, const char *path,
                               qn_error *err)
{
    qn_error local = {0};
    qn_text json = {0};
    reader_words words;
    err = err ? err : &local;
    if (words_of(c, &words, err) == QN_OK && qn_conversation_to_json(c, &json, err) == QN_OK)
        sleep_with(&json, &words, session, path, err);
    qn_text_free(&json);
    return err->code;
}

/* The messages of a sleeping file. */
static qn_status read_messages(qn_conversation *c, const qn_tensors *file, const char *path,
                               qn_error *err)
{
    const qn_tensor_info *t = qn_tensors_find(file, entry);
    if (!t)
        return qn__fail(err, QN_NOT_FOUND, "%s: there is no conversation in it", path);
    if (t->dtype != QN_U8 || t->ndim != 1 || t->bytes > QN__LARGEST_CONVERSATION)
        return qn__fail(err, QN_INVALID, "%s: its conversation is not a text of at most %d bytes",
                        path, QN__LARGEST_CONVERSATION);
    size_t n = (size_t)t->bytes;
    char *json = malloc(n + 1);
    if (!json)
        return qn__fail_memory(err, "a conversation");
    const char *sum = qn_tensors_metadata(file, entry);
    if (qn_tensors_read_bytes(file, t, 0, n, json, err) == QN_OK) {
        if (!sum || strcmp(sum, qn__sleep_sum(json, n).hex) != 0)
            qn__fail(err, QN_INVALID, "%s: its conversation is not as it was written", path);
        else
            qn_conversation_parse(c, path, json, n, err);
    }
    free(json);
    return err->code;
}

/* Of a file that begins with 8 bytes of a length, which no text has. */
static qn_status is_sleeping(const char *path, bool *sleeping, qn_error *err)
{
    static const char zeros[3];
    char first[9];
    qn__file file;
    qn_status status = qn__file_open(&file, path, err);
    *sleeping = false;
    if (status == QN_OK && file.size >= sizeof first &&
        (status = qn__file_pread(&file, 0, first, sizeof first, err)) == QN_OK)
        *sleeping = !memcmp(first + 5, zeros, 3) && first[8] == '{';
    qn__file_close(&file);
    return status;
}

qn_status qn_conversation_read(qn_conversation *c, const char *path, qn_error *err)
{
    qn_error local = {0};
    qn_tensors *file = NULL;
    char *json = NULL;
    size_t n;
    bool sleeping;
    err = err ? err : &local;
    if (is_sleeping(path, &sleeping, err) != QN_OK)
        return err->code;
    if (!sleeping && qn__file_read(path, QN__LARGEST_CONVERSATION, &json, &n, err) == QN_OK)
        qn_conversation_parse(c, path, json, n, err);
    else if (sleeping && qn_tensors_open(&file, path, err) == QN_OK)
        read_messages(c, file, path, err);
    qn_tensors_close(file);
    free(json);
    return err->code;
}

static qn_status wake_both(qn_conversation *c, qn_session *session, const qn_tensors *file,
                           const char *path, qn_error *err)
{
    qn_conversation next = {.chat = c->chat};
    reader_words words;
    if (qn__session_check_file(session, file, path, err) != QN_OK ||
        words_of(c, &words, err) != QN_OK)
        return err->code;
    if (qn_tensors_find(file, entry) &&
        (qn__sleep_expect(file, path, "tokenizer", words.tokenizer.hex,
                          "it was made with another tokenizer", err) != QN_OK ||
         qn__sleep_expect(file, path, "template", words.template.hex,
                          "it was made with another chat template", err) != QN_OK))
        return err->code;
    if (read_messages(&next, file, path, err) != QN_OK ||
        qn__session_wake(session, file, path, err) != QN_OK) {
        qn__conversation_clear(&next);
        return err->code;
    }
    qn__conversation_clear(c);
    *c = next;
    return QN_OK;
}

qn_status qn_conversation_restore(qn_conversation *c, qn_session *session, const char *path,
                                  qn_error *err)
{
    qn_error local = {0};
    qn_tensors *file = NULL;
    err = err ? err : &local;
    if (qn_tensors_open(&file, path, err) == QN_OK)
        wake_both(c, session, file, path, err);
    qn_tensors_close(file);
    return err->code;
}
