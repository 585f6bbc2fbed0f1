/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding: ids to bytes to UTF-8. Whole decoding is streaming decoding in one go, so that both
 * give the same text. Up to three bytes of an unfinished character wait in the decoder; bytes
 * that cannot become a character give one U+FFFD for each maximal prefix of one, as Unicode
 * recommends.
 */
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct qn_decoder {
    const qn_tokenizer *tokenizer;
    unsigned flags;
    qn_text bytes; /* of the current token, the waiting ones before them */
};

/* A piece whose characters all stand for bytes gives those, any other its own text. */
static bool append_piece(const qn__vocab *vocab, int32_t id, qn_text *out)
{
    const char *piece = vocab->blob.data + vocab->offsets[id];
    size_t n = vocab->sizes[id], used = 0;
    if (!qn__text_reserve(out, n))
        return false;
    char *to = out->data + out->n;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t k = qn__utf8_decode(piece + i, n - i, &c);
        int byte = k ? qn__char_to_byte(c) : -1;
        if (byte < 0)
            return qn__text_append(out, piece, n);
        to[used++] = (char)byte;
        i += k;
    }
    out->n += used;
    out->data[out->n] = '\0';
    return true;
}

static bool has_token(const qn__vocab *vocab, int32_t id, unsigned flags)
{
    if (id < 0 || id >= vocab->n_ids || vocab->offsets[id] == UINT32_MAX)
        return false;
    return !((flags & QN_SKIP_SPECIAL) && (vocab->flags[id] & QN__TOKEN_SPECIAL));
}

qn_status qn_tokenizer_token_bytes(const qn_tokenizer *tokenizer, int32_t id, qn_text *out,
                                   qn_error *err)
{
    const qn__vocab *vocab = &tokenizer->bpe.vocab;
    if (!qn__text_append(out, "", 0) || (has_token(vocab, id, 0) && !append_piece(vocab, id, out)))
        return qn__fail_memory(err, "a token's text");
    return QN_OK;
}

/* Moves what is decided from d->bytes to `out`; at the end everything is. */
static bool drain_bytes(qn_decoder *d, qn_text *out, bool at_end)
{
    static const char replacement[] = "\xef\xbf\xbd";
    const char *s = d->bytes.data;
    size_t n = d->bytes.n, at = 0;
    bool ok = true;
    while (ok && at < n) {
        size_t valid = qn__utf8_check(s + at, n - at), length;
        ok = qn__text_append(out, s + at, valid);
        at += valid;
        if (!ok || at == n)
            break;
        if (qn__utf8_broken(s + at, n - at, &length) && !at_end)
            break;
        ok = qn__text_append(out, replacement, 3);
        at += length;
    }
    memmove(d->bytes.data, s + at, n - at);
    d->bytes.n = n - at;
    return ok;
}

qn_decoder *qn_decoder_new(const qn_tokenizer *tokenizer, unsigned flags)
{
    qn_decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return NULL;
    decoder->tokenizer = tokenizer;
    decoder->flags = flags;
    return decoder;
}

void qn_decoder_free(qn_decoder *decoder)
{
    if (!decoder)
        return;
    qn_text_free(&decoder->bytes);
    free(decoder);
}

qn_status qn_decoder_push(qn_decoder *decoder, int32_t id, qn_text *out, qn_error *err)
{
    const qn__vocab *vocab = &decoder->tokenizer->bpe.vocab;
    size_t before = out->n;
    bool ok = qn__text_append(out, "", 0);
    if (ok && has_token(vocab, id, decoder->flags))
        ok = append_piece(vocab, id, &decoder->bytes) && drain_bytes(decoder, out, false);
    if (ok)
        return QN_OK;
    out->n = before;
    return qn__fail_memory(err, "a token's text");
}

qn_status qn_decoder_flush(qn_decoder *decoder, qn_text *out, qn_error *err)
{
    bool ok = qn__text_append(out, "", 0);
    if (ok && decoder->bytes.n > 0)
        ok = drain_bytes(decoder, out, true);
    decoder->bytes.n = 0;
    return ok ? QN_OK : qn__fail_memory(err, "a token's text");
}

qn_status qn_tokenizer_decode(const qn_tokenizer *tokenizer, const int32_t *ids, size_t n,
                              unsigned flags, qn_text *out, qn_error *err)
{
    qn_decoder decoder = {.tokenizer = tokenizer, .flags = flags};
    size_t before = out->n;
    qn_status status = QN_OK;
    for (size_t i = 0; status == QN_OK && i < n; i++)
        status = qn_decoder_push(&decoder, ids[i], out, err);
    if (status == QN_OK)
        status = qn_decoder_flush(&decoder, out, err);
    qn_text_free(&decoder.bytes);
    if (status != QN_OK)
        out->n = before;
    return status;
}
