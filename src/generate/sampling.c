/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of sampling: ranges, and the chain by its names. What the chain does is in
 * sampler.c.
 */
#include "generate/sampling.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

const qn_sampler *qn__sampling_chain(const qn_sampling *p)
{
    static const qn_sampler usual[] = {QN_SAMPLER_PENALTIES,   QN_SAMPLER_TOP_P,
                                       QN_SAMPLER_MIN_P,       QN_SAMPLER_TOP_K,
                                       QN_SAMPLER_TEMPERATURE, QN_SAMPLER_END};
    return p->chain[0] == QN_SAMPLER_END ? usual : p->chain;
}

static bool has_step(const qn_sampling *p, qn_sampler step)
{
    const qn_sampler *chain = qn__sampling_chain(p);
    while (*chain != QN_SAMPLER_END && *chain != step)
        chain++;
    return *chain == step;
}

bool qn__sampling_penalises(const qn_sampling *p)
{
    return has_step(p, QN_SAMPLER_PENALTIES) &&
           ((p->repeat_penalty != 0 && p->repeat_penalty != 1) || p->presence_penalty != 0 ||
            p->frequency_penalty != 0);
}

bool qn__sampling_is_argmax(const qn_sampling *p)
{
    return p->temperature == 0 && has_step(p, QN_SAMPLER_TEMPERATURE) &&
           !qn__sampling_penalises(p) && p->n_bias == 0;
}

static qn_status check_chain(const qn_sampling *p, qn_error *err)
{
    unsigned seen = 0;
    for (int i = 0; i <= QN_MAX_SAMPLERS; i++) {
        unsigned step = (unsigned)p->chain[i];
        if (step == QN_SAMPLER_END)
            return QN_OK;
        if (step >= QN_SAMPLER_COUNT || seen & 1u << step)
            return qn__fail(err, QN_INVALID, "step %d of the sampling chain %s", i,
                            step >= QN_SAMPLER_COUNT ? "is no sampler" : "stands twice");
        seen |= 1u << step;
    }
    return qn__fail(err, QN_INVALID, "the sampling chain does not end");
}

static qn_status check_penalty(const char *name, float value, qn_error *err)
{
    return fabsf(value) <= 1e6f
               ? QN_OK
               : qn__fail(err, QN_INVALID, "%s %g; give 0 (none) or a number up to 1e6 either way",
                          name, (double)value);
}

static qn_status check_biases(const qn_sampling *p, size_t vocab, qn_error *err)
{
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || (size_t)p->bias[i].id >= vocab)
            return qn__fail(err, QN_INVALID, "a bias for token %d, the vocabulary has %zu",
                            p->bias[i].id, vocab);
        if (!(p->bias[i].bias <= 1e6f))
            return qn__fail(err, QN_INVALID, "a bias of %g for token %d; give 1e6 or less",
                            (double)p->bias[i].bias, p->bias[i].id);
    }
    return QN_OK;
}

qn_status qn__sampling_check(const qn_sampling *p, size_t vocab, qn_error *err)
{
    if (!(p->temperature >= 0 && p->temperature <= 1e6f))
        return qn__fail(err, QN_INVALID, "temperature %g; give 0 or more", (double)p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1) || !(p->min_p >= 0 && p->min_p <= 1))
        return qn__fail(err, QN_INVALID, "top_p %g and min_p %g must lie in 0..1", (double)p->top_p,
                        (double)p->min_p);
    if (p->top_k < 0)
        return qn__fail(err, QN_INVALID, "top_k %d; give 0 (all) or more", p->top_k);
    if (!(p->repeat_penalty >= 0 && p->repeat_penalty <= 1e6f))
        return qn__fail(err, QN_INVALID, "repeat_penalty %g; give 1 (none) or more",
                        (double)p->repeat_penalty);
    qn_status status = check_penalty("presence_penalty", p->presence_penalty, err);
    if (status == QN_OK)
        status = check_penalty("frequency_penalty", p->frequency_penalty, err);
    if (status == QN_OK)
        status = check_chain(p, err);
    return status == QN_OK ? check_biases(p, vocab, err) : status;
}

/* ---- names ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    qn_sampler step;
} sampler_names[] = {
#define SAMPLER_NAME(name, text) {text, QN_SAMPLER_##name},
    QN_SAMPLER_LIST(SAMPLER_NAME)
#undef SAMPLER_NAME
        {"top-k", QN_SAMPLER_TOP_K},
    {"top-p", QN_SAMPLER_TOP_P},
    {"nucleus", QN_SAMPLER_TOP_P},
    {"min-p", QN_SAMPLER_MIN_P},
    {"temp", QN_SAMPLER_TEMPERATURE}};

static qn_sampler sampler_named(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof sampler_names / sizeof *sampler_names; i++)
        if (strlen(sampler_names[i].name) == n && !memcmp(sampler_names[i].name, name, n))
            return sampler_names[i].step;
    return QN_SAMPLER_END;
}

qn_status qn_sampling_set_chain(qn_sampling *sampling, const char *names, qn_error *err)
{
    qn_sampler chain[QN_MAX_SAMPLERS + 1] = {QN_SAMPLER_END};
    unsigned seen = 0;
    if (sampling->size < offsetof(qn_sampling, chain) + sizeof chain)
        return qn__fail(err, QN_INVALID, "qn_sampling.size is %zu; begin with QN_INIT(qn_sampling)",
                        sampling->size);
    for (int i = 0;; i++) {
        size_t n = strcspn(names, ";");
        qn_sampler step = sampler_named(names, n);
        if (step == QN_SAMPLER_END)
            return qn__fail(err, QN_INVALID,
                            "\"%.*s\" is no sampler; there are penalties, top_k, top_p, min_p and "
                            "temperature, to be joined by ;",
                            n < 40 ? (int)n : 40, names);
        if (seen & 1u << step)
            return qn__fail(err, QN_INVALID, "sampler %.*s stands twice", (int)n, names);
        seen |= 1u << step;
        chain[i] = step; /* none twice: there is room, and an END behind */
        if (!names[n])
            break;
        names += n + 1;
    }
    memcpy(sampling->chain, chain, sizeof chain);
    return QN_OK;
}
