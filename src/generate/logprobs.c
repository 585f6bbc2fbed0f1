/* SPDX-License-Identifier: Apache-2.0
 *
 * Logarithms of probabilities: log softmax of a few logits. The most probable tokens are kept in a
 * short sorted list, which nearly no logit gets into.
 */
#include "generate/logprobs.h"

#include "base/error.h"
#include "core/device.h"

#include <math.h>

enum { MOST_LOGPROBS = 1000 };

/* The n largest logits, equal ones by id, as logprob. */
static void find_largest(const float *logits, size_t vocab, size_t n, qn_logprob *out)
{
    size_t kept = 0;
    for (size_t id = 0; id < vocab; id++) {
        float logit = logits[id];
        if (isnan(logit) || (kept == n && !(logit > out[n - 1].logprob)))
            continue;
        size_t at = kept < n ? kept++ : n - 1;
        for (; at > 0 && out[at - 1].logprob < logit; at--)
            out[at] = out[at - 1];
        out[at] = (qn_logprob){(int32_t)id, logit};
    }
    for (; kept < n; kept++)
        out[kept] = (qn_logprob){-1, -INFINITY};
}

qn_status qn__log_total(const qn_device *device, const float *logits, size_t vocab, double *total,
                        qn_error *err)
{
    float max = -INFINITY;
    for (size_t i = 0; i < vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    if (!isfinite(max))
        return qn__fail(err, QN_INVALID,
                        "the model's logits are not numbers: its weights may be damaged");
    *total = (double)max + log(device->weigh(logits, vocab, NULL, max, 1, -INFINITY, NULL));
    return QN_OK;
}

qn_status qn_logprobs(const qn_device *device, const float *logits, size_t vocab, int32_t id,
                      size_t n, qn_logprob *out, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    if (id < 0 || (size_t)id >= vocab || n > MOST_LOGPROBS)
        return qn__fail(
            err, QN_INVALID,
            "logprobs of token %d of %zu and of the %zu most probable ones; at most %d are given",
            id, vocab, n, MOST_LOGPROBS);
    double all = 0;
    if (qn__log_total(device, logits, vocab, &all, err) != QN_OK)
        return err->code;
    out[0] = (qn_logprob){id, logits[id]};
    if (n)
        find_largest(logits, vocab, n, out + 1);
    for (size_t i = 0; i <= n; i++)
        out[i].logprob = (float)((double)out[i].logprob - all);
    return QN_OK;
}
