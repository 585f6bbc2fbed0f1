/* SPDX-License-Identifier: Apache-2.0
 *
 * Generating and writing one reply.
 */
#include "cli/reply.h"
#include "base/buffers.h"
#include "base/error.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>

void reply_free(reply *r)
{
    qn_text_free(&r->text);
    qn_tokens_free(&r->ids);
    free(r->logprobs);
}

static bool keep_id(qn_tokens *ids, int32_t id)
{
    if (ids->n == ids->capacity) {
        size_t room = ids->capacity * 2 + 256;
        int32_t *more = realloc(ids->ids, room * sizeof *more);
        if (!more)
            return false;
        ids->ids = more;
        ids->capacity = room;
    }
    ids->ids[ids->n++] = id;
    return true;
}

/* Hands on what has been decoded. */
static qn_status emit(reply *r, qn_text *piece, bool print, qn_error *err)
{
    qn_text wrapped = {0};
    bool kept = qn__text_append(&r->text, piece->data, piece->n);
    if (kept && print && r->wrap)
        kept = wrap_text(r->wrap, piece->data, piece->n, &wrapped);
    const qn_text *shown = r->wrap ? &wrapped : piece;
    if (kept && print && shown->n &&
        (fwrite(shown->data, 1, shown->n, stdout) != shown->n || fflush(stdout) != 0)) {
        r->write_failed = true;
        qn__fail(err, QN_IO, "standard output cannot be written");
    }
    qn_text_free(&wrapped);
    if (r->write_failed)
        return QN_IO;
    piece->n = 0;
    return kept ? QN_OK : qn__fail_memory(err, "a reply");
}

/* Keeps what there is of log probabilities for the newest id. */
static bool keep_logprobs(reply *r, const qn_generation *g)
{
    size_t n;
    const qn_logprob *newest = qn_generation_logprobs(g, &n);
    if (!newest)
        return true;
    if (r->ids.n * n > r->logprobs_room) {
        size_t room = r->ids.n * n * 2;
        qn_logprob *more = realloc(r->logprobs, room * sizeof *more);
        if (!more)
            return false;
        r->logprobs = more;
        r->logprobs_room = room;
    }
    r->n_logprobs = n;
    memcpy(r->logprobs + (r->ids.n - 1) * n, newest, n * sizeof *newest);
    return true;
}

qn_status reply_run(reply *r, qn_generation *g, bool print, qn_error *err)
{
    qn_text piece = {0};
    qn_status status = QN_OK;
    int32_t id = 0;
    while (status == QN_OK && (status = qn_generation_next(g, &id, err)) == QN_OK && id >= 0) {
        if (!keep_id(&r->ids, id) || !keep_logprobs(r, g))
            status = qn__fail_memory(err, "a reply");
        else if ((status = qn_generation_text(g, false, &piece, err)) == QN_OK)
            status = emit(r, &piece, print, err);
    }
    /* What was held back, an unfinished character at the end, also where the run was cancelled. */
    if (!r->write_failed && qn_generation_text(g, true, &piece, NULL) == QN_OK) {
        qn_error late = {0};
        if (emit(r, &piece, print, &late) != QN_OK && status == QN_OK)
            status = qn__fail(err, late.code, "%s", late.message);
    }
    r->metrics.size = sizeof r->metrics;
    qn_generation_get_metrics(g, &r->metrics);
    qn_generation_end(g);
    qn_text_free(&piece);
    return status;
}

void reply_print_speed(const qn_metrics *m, size_t kept)
{
    double decoded = m->generated_tokens > 1 ? (double)(m->generated_tokens - 1) : 0;
    char before[48] = "";
    if (kept)
        snprintf(before, sizeof before, " behind %zu", kept);
    char guessed[64] = "";
    if (m->guessed_tokens)
        snprintf(guessed, sizeof guessed, "; %llu of %llu guesses right",
                 (unsigned long long)m->right_tokens, (unsigned long long)m->guessed_tokens);
    fprintf(stderr, "prompt %llu tokens%s, %.1f tok/s; generated %llu tokens, %.1f tok/s%s\n",
            (unsigned long long)m->prompt_tokens, before,
            m->prefill_seconds > 0 ? (double)m->prompt_tokens / m->prefill_seconds : 0,
            (unsigned long long)m->generated_tokens,
            m->decode_seconds > 0 ? decoded / m->decode_seconds : 0, guessed);
}
