/* SPDX-License-Identifier: Apache-2.0
 *
 * Random weights. Encoding values takes far longer than reading them, so that is done once: rows
 * are blocks drawn from a bank of 2^16 encoded values, as many different rows as a file has.
 */
#include "models/random_weights.h"

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BANK_VALUES = 1 << 16 };

/* transformers' default where config.json has no initializer_range. */
static const double usual_deviation = 0.02;

static char *make_bank(const qn__encoding *e, const float *values)
{
    size_t blocks = BANK_VALUES / e->block_elements;
    char *bank = malloc(blocks * e->block_bytes);
    if (bank)
        e->encode(e, values, NULL, blocks, bank);
    return bank;
}

qn_status qn__random_begin(qn__random_weights *r, int64_t columns, qn_error *err)
{
    if (r->initial)
        return QN_OK;
    float *values = malloc(BANK_VALUES * sizeof *values);
    for (uint64_t i = 0; values && i < BANK_VALUES; i++)
        values[i] = (float)((2 * qn__random_uniform(1, i) - 1) * sqrt(3.0 / (double)columns));
    if (values) {
        r->matrix_bank = make_bank(r->matrices, values);
        r->head_bank = make_bank(r->head, values);
    }
    free(values);
    return r->matrix_bank && r->head_bank ? QN_OK : qn__fail_memory(err, "random weights");
}

void qn__random_end(qn__random_weights *r)
{
    free(r->matrix_bank);
    free(r->head_bank);
}

static bool is_head(const qn__parameter *p)
{
    return p->id.role == QN__ROLE_EMBEDDING || p->id.role == QN__ROLE_HEAD;
}

static const qn__encoding *encoding_of(const qn__random_weights *r, const qn__parameter *p)
{
    return p->ndim == 1 ? &qn__encodings[QN__F32] : is_head(p) ? r->head : r->matrices;
}

qn_status qn__random_find(qn__weight *out, const qn__random_weights *r, const qn__parameter *p,
                          qn_error *err)
{
    const qn__encoding *e = encoding_of(r, p);
    int64_t columns = p->shape[p->ndim - 1], rows = p->ndim == 2 ? p->shape[0] : 1;
    *out =
        (qn__weight){.encoding = e, .bytes = (uint64_t)rows * qn__encoding_row_bytes(e, columns)};
    if (out->bytes)
        return QN_OK;
    return qn__fail(err, QN_UNSUPPORTED,
                    "%s has rows of %lld values, which blocks of %d, as %s has them, do not divide",
                    p->name, (long long)columns, e->block_elements, e->name);
}

qn_status qn__random_initial(qn__random_weights *r, const qn__json_at *config, uint64_t seed,
                             qn_error *err)
{
    *r = (qn__random_weights){.matrices = &qn__encodings[QN__F32],
                              .head = &qn__encodings[QN__F32],
                              .initial = true,
                              .seed = seed,
                              .deviation = usual_deviation,
                              .padding = -1};
    return qn__json_opt_number(config, "initializer_range", 0, 10, &r->deviation, err) == QN_OK
               ? qn__json_opt_int(config, "pad_token_id", -1, INT32_MAX, &r->padding, err)
               : err->code;
}

/* Number n of a normal distribution (Box and Muller, 1958). */
static double draw_normal(uint64_t seed, uint64_t n)
{
    double radius = sqrt(-2 * log(1 - qn__random_uniform(seed, 2 * n)));
    return radius * cos(2 * M_PI * qn__random_uniform(seed, 2 * n + 1));
}

static void draw_rows(const qn__random_weights *r, const qn__parameter *p, uint64_t number,
                      int64_t first, int64_t n, float *to)
{
    uint64_t seed = qn__random_bits(r->seed, number), columns = (uint64_t)p->shape[1];
    for (uint64_t i = 0; i < (uint64_t)n * columns; i++)
        to[i] = (float)(r->deviation * draw_normal(seed, (uint64_t)first * columns + i));
    if (p->id.role == QN__ROLE_EMBEDDING && r->padding >= first && r->padding < first + n)
        memset(to + (uint64_t)(r->padding - first) * columns, 0, columns * sizeof *to);
}

void qn__random_read(const qn__random_weights *r, const qn__parameter *p, uint64_t number,
                     int64_t first, int64_t n, void *to)
{
    if (p->ndim == 1) {
        bool bias = !strcmp(p->id.part, "bias");
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = bias || p->plus_one ? 0 : 1;
        return;
    }
    if (r->initial) {
        draw_rows(r, p, number, first, n, to);
        return;
    }
    const qn__encoding *e = encoding_of(r, p);
    const char *bank = is_head(p) ? r->head_bank : r->matrix_bank;
    size_t count = BANK_VALUES / e->block_elements, size = e->block_bytes;
    uint64_t blocks = (uint64_t)p->shape[1] / e->block_elements, at = (uint64_t)first * blocks;
    for (uint64_t i = 0; i < blocks * (uint64_t)n; i++)
        memcpy((char *)to + i * size, bank + qn__random_bits(number, at + i) % count * size, size);
}
