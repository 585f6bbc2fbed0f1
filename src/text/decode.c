/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding: ids to text. Whole decoding is streaming decoding in one go, so that both give the
 * same text. A token goes through the steps of decode.h; each step passes on what is decided and
 * keeps what isn't: bytes of an unfinished character, a run of byte tokens (which are U+FFFD, all
 * of them, if the run is not UTF-8), characters that Strip may still take off the end, the
 * beginning of what Replace looks for. In a byte-level vocabulary bytes that cannot become a
 * character give one U+FFFD for each maximal prefix of one, as Unicode recommends.
 */
#include "text/decode.h"

#include "base/utf8.h"
#include "text/tokenizer.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

static const char replacement_char[] = "\xef\xbf\xbd";

/* What one step keeps between tokens. */
typedef struct stage {
    qn_text kept; /* undecided bytes */
    qn_text made; /* scratch: the token for the next step */
    int64_t stripped, held;
    bool begun;     /* a token has come; SPM: there is text */
    bool done;      /* Strip: the beginning is over */
    bool mark_seen; /* SPM: the token before was a mark that went */
} stage;

struct qn_decoder {
    const qn_tokenizer *tokenizer;
    unsigned flags;
    size_t taken, given; /* bytes: of tokens, and of the text they became */
    bool over;           /* the text would have been too long */
    stage stages[QN__MAX_DECODE_STEPS];
};

/* Whether n more bytes of text, or n bytes on their way between steps, are not too many for the
 * tokens that came: rules that multiply a text run into it. */
static bool is_too_much(qn_decoder *d, size_t n)
{
    size_t limit = d->taken < SIZE_MAX / 128 ? 64 * d->taken + (64 << 10) : SIZE_MAX / 2;
    d->over = d->over || n > limit || d->given > limit - n;
    return d->over;
}

static bool pass_token(qn_decoder *d, int i, const char *s, size_t n, qn_text *out);

/* ---- bytes ---------------------------------------------------------------------------------- */

/* A piece whose characters all stand for bytes gives those, any other its own text. */
static bool append_bytes(const char *piece, size_t n, qn_text *out)
{
    size_t used = 0;
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

/* Passes on what is decided of the kept bytes; at the end everything is. One U+FFFD stands for a
 * maximal prefix of a character, or, with single, for each byte of it. */
static bool drain_bytes(qn_decoder *d, int i, bool single, bool at_end, qn_text *out)
{
    qn_text *kept = &d->stages[i].kept;
    size_t n = kept->n, at = 0;
    bool ok = true;
    while (ok && at < n) {
        size_t valid = qn__utf8_check(kept->data + at, n - at), length;
        if (valid > 0)
            ok = pass_token(d, i + 1, kept->data + at, valid, out);
        at += valid;
        if (!ok || at == n)
            break;
        if (qn__utf8_broken(kept->data + at, n - at, &length) && !at_end)
            break;
        ok = pass_token(d, i + 1, replacement_char, 3, out);
        at += single ? 1 : length;
    }
    if (n > 0)
        memmove(kept->data, kept->data + at, n - at);
    kept->n = n - at;
    return ok;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int qn__byte_of_token(const char *token, size_t n)
{
    if (n != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    int high = token[3] == '+' ? 0 : hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* The end of a run of byte tokens: its text, or as many U+FFFD. */
static bool end_run(qn_decoder *d, int i, qn_text *out)
{
    qn_text *kept = &d->stages[i].kept;
    size_t n = kept->n;
    kept->n = 0;
    if (n > 0 && qn__utf8_check(kept->data, n) == n)
        return pass_token(d, i + 1, kept->data, n, out);
    bool ok = true;
    for (size_t k = 0; ok && k < n; k++)
        ok = pass_token(d, i + 1, replacement_char, 3, out);
    return ok;
}

static bool run_fallback(qn_decoder *d, int i, const char *s, size_t n, qn_text *out)
{
    int byte = qn__byte_of_token(s, n);
    char c = (char)byte;
    if (byte >= 0)
        return qn__text_append(&d->stages[i].kept, &c, 1);
    return end_run(d, i, out) && pass_token(d, i + 1, s, n, out);
}

/* ---- text ----------------------------------------------------------------------------------- */

/* Appends s[0..n) with every `find` replaced; returns how many bytes at the end are left, because
 * they may begin a `find` (with all, none are). SIZE_MAX: memory is out, or it is too much for d
 * (which may be NULL). */
static size_t append_replaced(qn_decoder *d, qn_text *to, const char *s, size_t n,
                              const qn_text *find, const char *put, size_t put_n, bool all)
{
    size_t at = 0, left = 0;
    for (const char *hit; (hit = memmem(s + at, n - at, find->data, find->n));) {
        if ((d && is_too_much(d, to->n + put_n)) ||
            !qn__text_append(to, s + at, (size_t)(hit - s) - at) ||
            !qn__text_append(to, put, put_n))
            return SIZE_MAX;
        at = (size_t)(hit - s) + find->n;
    }
    if (!all) {
        left = find->n - 1 < n - at ? find->n - 1 : n - at;
        while (left > 0 && memcmp(s + n - left, find->data, left) != 0)
            left--;
    }
    return qn__text_append(to, s + at, n - at - left) ? left : SIZE_MAX;
}

static bool run_replace(qn_decoder *d, int i, const qn__decode_step *step, const char *s, size_t n,
                        qn_text *out)
{
    stage *g = &d->stages[i];
    g->made.n = 0;
    if (!step->fused)
        return append_replaced(d, &g->made, s, n, &step->find, step->put.data, step->put.n, true) !=
                   SIZE_MAX &&
               pass_token(d, i + 1, g->made.data, g->made.n, out);
    if (!qn__text_append(&g->kept, s, n))
        return false;
    size_t left = append_replaced(d, &g->made, g->kept.data, g->kept.n, &step->find, step->put.data,
                                  step->put.n, false);
    if (left == SIZE_MAX)
        return false;
    memmove(g->kept.data, g->kept.data + g->kept.n - left, left);
    g->kept.n = left;
    return g->made.n == 0 || pass_token(d, i + 1, g->made.data, g->made.n, out);
}

static bool is_at(const qn_text *find, const char *s, size_t n)
{
    return n >= find->n && memcmp(s, find->data, find->n) == 0;
}

/* Takes up to step->start characters off the beginning and as many as step->stop off the end: of
 * each token, or of the one in fragments. */
static bool run_strip(qn_decoder *d, int i, const qn__decode_step *step, const char *s, size_t n,
                      qn_text *out)
{
    stage *g = &d->stages[i];
    const qn_text *find = &step->find;
    if (!step->fused) {
        g->stripped = g->held = 0;
        g->done = false;
    }
    while (!g->done && g->stripped < step->start && is_at(find, s, n)) {
        g->stripped++;
        s += find->n;
        n -= find->n;
    }
    if (n > 0 || g->stripped == step->start)
        g->done = true;
    if (step->stop == 0)
        return (step->fused && n == 0) || pass_token(d, i + 1, s, n, out);
    /* What is held back is `held` times the character; of a run of them the last ones go. */
    bool ok = true;
    g->made.n = 0;
    for (size_t at = 0; ok && at < n;) {
        if (is_at(find, s + at, n - at)) {
            if (g->held == step->stop)
                ok = qn__text_append(&g->made, find->data, find->n);
            else
                g->held++;
            at += find->n;
            continue;
        }
        for (; ok && g->held > 0; g->held--)
            ok = qn__text_append(&g->made, find->data, find->n);
        size_t k = qn__char_behind(s, n, at);
        ok = ok && qn__text_append(&g->made, s + at, k - at);
        at = k;
    }
    return ok && ((step->fused && g->made.n == 0) ||
                  pass_token(d, i + 1, g->made.data ? g->made.data : "", g->made.n, out));
}

static bool run_metaspace(qn_decoder *d, int i, const qn__decode_step *step, const char *s,
                          size_t n, qn_text *out)
{
    stage *g = &d->stages[i];
    bool first = !g->begun && step->strip_first;
    g->begun = true;
    g->made.n = 0;
    return append_replaced(d, &g->made, s, n, &step->find, " ", first ? 0 : 1, true) != SIZE_MAX &&
           pass_token(d, i + 1, g->made.data, g->made.n, out);
}

static bool run_join(qn_decoder *d, int i, const char *s, size_t n, qn_text *out)
{
    stage *g = &d->stages[i];
    bool ok = !g->begun || pass_token(d, i + 1, " ", 1, out);
    g->begun = true;
    return ok && pass_token(d, i + 1, s, n, out);
}

/* Marks become spaces, but for one that would begin the text; bytes become characters, one by one
 * U+FFFD where they form none. */
static bool run_spm(qn_decoder *d, int i, const qn__decode_step *step, const char *s, size_t n,
                    qn_text *out)
{
    stage *g = &d->stages[i];
    int byte = qn__byte_of_token(s, n);
    char c = (char)byte;
    if (byte >= 0) {
        g->begun = true;
        return qn__text_append(&g->kept, &c, 1) && drain_bytes(d, i, true, false, out);
    }
    if (!drain_bytes(d, i, true, true, out))
        return false;
    g->begun = g->begun || g->mark_seen;
    g->mark_seen = false;
    if (!g->begun && step->strip_first && is_at(&step->find, s, n)) {
        g->mark_seen = !step->strip_more;
        s += step->find.n;
        n -= step->find.n;
    }
    g->made.n = 0;
    g->begun = g->begun || n > 0;
    return append_replaced(d, &g->made, s, n, &step->find, " ", 1, true) != SIZE_MAX &&
           pass_token(d, i + 1, g->made.data, g->made.n, out);
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* Gives a token, or a fragment of the one token, to step i. */
static bool pass_token(qn_decoder *d, int i, const char *s, size_t n, qn_text *out)
{
    const qn__decode_chain *chain = &d->tokenizer->decoder;
    if (i == chain->n) {
        if (is_too_much(d, n))
            return false;
        d->given += n;
        return qn__text_append(out, s, n);
    }
    const qn__decode_step *step = &chain->steps[i];
    switch (step->kind) {
    case QN__DECODE_BYTE_LEVEL:
        return append_bytes(s, n, &d->stages[i].kept) && drain_bytes(d, i, false, false, out);
    case QN__DECODE_BYTE_FALLBACK: return run_fallback(d, i, s, n, out);
    case QN__DECODE_REPLACE: return run_replace(d, i, step, s, n, out);
    case QN__DECODE_STRIP: return run_strip(d, i, step, s, n, out);
    case QN__DECODE_METASPACE: return run_metaspace(d, i, step, s, n, out);
    case QN__DECODE_JOIN: return run_join(d, i, s, n, out);
    case QN__DECODE_SPM: return run_spm(d, i, step, s, n, out);
    case QN__DECODE_FUSE: break;
    }
    return pass_token(d, i + 1, s, n, out);
}

/* No more tokens: passes on what steps have kept, first to last. */
static bool finish_tokens(qn_decoder *d, qn_text *out)
{
    const qn__decode_chain *chain = &d->tokenizer->decoder;
    bool ok = true;
    for (int i = 0; ok && i < chain->n; i++) {
        qn_text *kept = &d->stages[i].kept;
        switch (chain->steps[i].kind) {
        case QN__DECODE_BYTE_LEVEL: ok = drain_bytes(d, i, false, true, out); break;
        case QN__DECODE_SPM: ok = drain_bytes(d, i, true, true, out); break;
        case QN__DECODE_BYTE_FALLBACK: ok = end_run(d, i, out); break;
        default:
            if (kept->n > 0)
                ok = pass_token(d, i + 1, kept->data, kept->n, out);
        }
    }
    return ok;
}

/* Ready for another text; buffers stay. */
static void reset_stages(qn_decoder *d)
{
    d->taken = d->given = 0;
    d->over = false;
    for (int i = 0; i < QN__MAX_DECODE_STEPS; i++) {
        stage *g = &d->stages[i];
        qn_text kept = g->kept, made = g->made;
        kept.n = made.n = 0;
        *g = (stage){.kept = kept, .made = made};
    }
}

static void free_stages(qn_decoder *d)
{
    for (int i = 0; i < QN__MAX_DECODE_STEPS; i++) {
        qn_text_free(&d->stages[i].kept);
        qn_text_free(&d->stages[i].made);
    }
}

static bool has_token(const qn__vocab *vocab, int32_t id, unsigned flags)
{
    if (id < 0 || id >= vocab->n_ids || vocab->offsets[id] == UINT32_MAX)
        return false;
    return !((flags & QN_SKIP_SPECIAL) && (vocab->flags[id] & QN__TOKEN_SPECIAL));
}

/* What a token that is there decodes from: its piece, or its normalized text. */
static const char *token_text(const qn_tokenizer *t, int32_t id, size_t *n)
{
    const qn__vocab *vocab = &t->bpe.vocab;
    if (vocab->flags[id] & QN__TOKEN_RENAMED)
        for (size_t i = 0; i < t->normalized.n; i++)
            if (t->normalized.tokens[i].id == id) {
                *n = t->normalized.tokens[i].n;
                return t->normalized.tokens[i].text;
            }
    *n = vocab->sizes[id];
    return vocab->blob.data + vocab->offsets[id];
}

/* ---- public --------------------------------------------------------------------------------- */

qn_status qn_tokenizer_token_bytes(const qn_tokenizer *tokenizer, int32_t id, qn_text *out,
                                   qn_error *err)
{
    const qn__vocab *vocab = &tokenizer->bpe.vocab;
    if (!qn__text_append(out, "", 0))
        return qn__fail_memory(err, "a token's text");
    if (!has_token(vocab, id, 0))
        return QN_OK;
    size_t n;
    const char *piece = token_text(tokenizer, id, &n);
    const qn__decode_step *step = tokenizer->decoder.n > 0 ? &tokenizer->decoder.steps[0] : NULL;
    int byte = tokenizer->bpe.byte_fallback ? qn__byte_of_token(piece, n) : -1;
    char c = (char)byte;
    bool ok;
    if (byte >= 0)
        ok = qn__text_append(out, &c, 1);
    else if (tokenizer->bpe.byte_level)
        ok = append_bytes(piece, n, out);
    else if (step && step->kind == QN__DECODE_REPLACE)
        ok = append_replaced(NULL, out, piece, n, &step->find, step->put.data, step->put.n, true) !=
             SIZE_MAX;
    else if (step && (step->kind == QN__DECODE_METASPACE || step->kind == QN__DECODE_SPM))
        ok = append_replaced(NULL, out, piece, n, &step->find, " ", 1, true) != SIZE_MAX;
    else
        ok = qn__text_append(out, piece, n);
    return ok ? QN_OK : qn__fail_memory(err, "a token's text");
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
    free_stages(decoder);
    free(decoder);
}

static qn_status fail_decoding(const qn_decoder *decoder, qn_error *err)
{
    return decoder->over ? qn__fail(err, QN_LIMIT,
                                    "the decoder makes more than 64 times the tokens' size of them")
                         : qn__fail_memory(err, "a token's text");
}

qn_status qn_decoder_push(qn_decoder *decoder, int32_t id, qn_text *out, qn_error *err)
{
    const qn__vocab *vocab = &decoder->tokenizer->bpe.vocab;
    size_t before = out->n;
    bool ok = qn__text_append(out, "", 0);
    if (ok && has_token(vocab, id, decoder->flags)) {
        size_t n;
        const char *text = token_text(decoder->tokenizer, id, &n);
        decoder->taken += n;
        ok = pass_token(decoder, 0, text, n, out);
    }
    if (ok)
        return QN_OK;
    out->n = before;
    return fail_decoding(decoder, err);
}

qn_status qn_decoder_flush(qn_decoder *decoder, qn_text *out, qn_error *err)
{
    bool ok = qn__text_append(out, "", 0) && finish_tokens(decoder, out);
    qn_status status = ok ? QN_OK : fail_decoding(decoder, err);
    reset_stages(decoder);
    return status;
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
    free_stages(&decoder);
    if (status != QN_OK)
        out->n = before;
    return status;
}
