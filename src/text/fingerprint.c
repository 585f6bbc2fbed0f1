/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokenizer's fingerprint. What it has tables of is hashed whole; how it cuts and changes texts
 * shows in the ids of one text that has a little of everything. The tables' order in memory is
 * drawn anew in each process, so merges are added up.
 */
#include "text/conversation.h"
#include "text/tokenizer.h"

#include "base/hash.h"

#include <string.h>

static const char of_everything[] =
    " Hello  world, it's 12345.67 o'clock!\n\n\tdef f(x):\r\n    return x**2  # caf\xc3\xa9 "
    "e\xcc\x81 "
    "\xef\xac\x81 \xe2\x91\xa0 \xe4\xbd\xa0\xe5\xa5\xbd \xd0\xbf\xd1\x80 \xd8\xb9\xd8\xb1 "
    "\xf0\x9f\xa6\x8a\xe2\x80\x8d\xf0\x9f\x92\xbb \xe2\x96\x81<s> <|im_end|>\xc2\xa0 1st AAAaaa ";

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    return n ? qn__hash_bytes(data, n, h) : h;
}

static uint64_t mix_added(uint64_t h, const qn__added_set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        const qn__added_token *t = &set->tokens[i];
        const uint32_t numbers[] = {(uint32_t)t->id, t->flags};
        h = mix(mix(h, t->text, t->n), numbers, sizeof numbers);
    }
    return h;
}

static uint64_t sum_merges(const qn__bpe *bpe)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bpe->n_merge_slots; i++) {
        const qn__merge *m = &bpe->merges[i];
        const uint32_t numbers[] = {m->a, m->b, m->rank, (uint32_t)m->id};
        sum += m->a == UINT32_MAX ? 0 : mix(1, numbers, sizeof numbers);
    }
    return sum;
}

qn_status qn__tokenizer_fingerprint(const qn_tokenizer *t, uint64_t *out, qn_error *err)
{
    qn_tokens ids = {0};
    const qn__vocab *vocab = &t->bpe.vocab;
    const qn__unigram *unigram = &t->unigram;
    qn_status status = qn_tokenizer_encode(t, of_everything, sizeof of_everything - 1,
                                           QN_ADD_SPECIAL | QN_PARSE_SPECIAL, &ids, err);
    if (status == QN_OK) {
        uint64_t h = mix(1, vocab->blob.data, vocab->blob.n), merges = sum_merges(&t->bpe);
        h = mix(h, vocab->flags, (size_t)vocab->n_ids);
        h = mix(h, &merges, sizeof merges);
        h = mix(h, unigram->scores, unigram->n_scores * sizeof *unigram->scores);
        h = mix_added(mix_added(h, &t->raw), &t->normalized);
        *out = mix(h, ids.ids, ids.n * sizeof *ids.ids);
    }
    qn_tokens_free(&ids);
    return status;
}
