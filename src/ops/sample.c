/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: from each row of logits a token, by settings of the row's own, which are data. For
 * inference: no derivatives.
 */
#include "ops/ops.h"

static bool are_words(const qn_array *a, int64_t n)
{
    return a->ndim == 2 && a->dtype == QN_I32 && a->shape[1] == n;
}

qn_array *qn__sample(qn_scope *s, qn_array *logits, qn_array *rows, qn_array *entries)
{
    logits = qn__input(s, logits, "sample");
    rows = logits ? qn__input(s, rows, "sample") : NULL;
    entries = rows ? qn__input(s, entries, "sample") : NULL;
    if (!entries)
        return qn__poison(s);
    if (logits->ndim != 2 || logits->layout || !logits->shape[1] || logits->shape[1] > INT32_MAX)
        return qn__op_fail(s, "sample", logits, NULL, "logits are [N, V]");
    if (!are_words(rows, QN__SAMPLE_ROW_WORDS) || rows->shape[0] != logits->shape[0])
        return qn__op_fail(s, "sample", logits, rows, "settings are i32, 14 for each row");
    if (!are_words(entries, QN__SAMPLE_ENTRY_WORDS))
        return qn__op_fail(s, "sample", entries, NULL, "entries are i32 [M, 4]");
    qn_array *in[] = {qn_contiguous(s, qn_cast(s, logits, QN_F32)), qn_contiguous(s, rows),
                      qn_contiguous(s, entries)};
    return s->error.code == QN_OK
               ? qn__record(s, QN__OP_SAMPLE, QN_I32, 1, logits->shape, 3, in, NULL)
               : qn__poison(s);
}

_Static_assert(QN__SAMPLE_ROW_WORDS == 14, "as the error says");

const qn__op_def qn__sample_op = {.name = "sample", .class = QN__KERNEL};
