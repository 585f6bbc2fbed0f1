/* SPDX-License-Identifier: Apache-2.0
 *
 * A small Llama's decode step, which is one graph launch a token.
 */
#include "cases.h"

#include <string.h>

enum {
    VOCABULARY = 193,
    WIDTH = 64,
    HEADS = 4,
    GROUPS = 2,
    HEAD = 16,
    INNER = 160,
    LAYERS = 2,
    CAPACITY = 64,
    TOKENS = 40
};

typedef struct layer {
    qn_array *norm1, *q, *k, *v, *o, *norm2, *gate, *up, *down;
    qn_array *keys, *values; /* the caches: given to each step, kept from it */
} layer;

typedef struct model {
    qn_array *embedding, *norm, *head, *frequency;
    qn_array *token, *position;
    layer layers[LAYERS];
} model;

static bool make_model(qn_device *dev, qn_dtype type, model *m)
{
    seed = 7;
    qn_scope *s = qn_scope_begin(dev);
    m->embedding = keep(s, noise(s, type, 1, SHAPE(VOCABULARY, WIDTH)));
    m->norm = keep(s, f32(s, SHAPE(WIDTH)));
    m->head = keep(s, noise(s, type, 1, SHAPE(VOCABULARY, WIDTH)));
    m->frequency = keep(s, frequencies(s, HEAD / 2));
    int32_t token = 5, position = 0;
    m->token = keep(s, qn_from(s, QN_I32, SHAPE(1, 1), &token));
    m->position = keep(s, qn_from(s, QN_I32, SHAPE(1), &position));
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        l->norm1 = keep(s, f32(s, SHAPE(WIDTH)));
        l->q = keep(s, noise(s, type, 0.3, SHAPE(HEADS * HEAD, WIDTH)));
        l->k = keep(s, noise(s, type, 0.3, SHAPE(GROUPS * HEAD, WIDTH)));
        l->v = keep(s, noise(s, type, 0.3, SHAPE(GROUPS * HEAD, WIDTH)));
        l->o = keep(s, noise(s, type, 0.3, SHAPE(WIDTH, HEADS * HEAD)));
        l->norm2 = keep(s, f32(s, SHAPE(WIDTH)));
        l->gate = keep(s, noise(s, type, 0.3, SHAPE(INNER, WIDTH)));
        l->up = keep(s, noise(s, type, 0.3, SHAPE(INNER, WIDTH)));
        l->down = keep(s, noise(s, type, 0.3, SHAPE(WIDTH, INNER)));
        l->keys = keep(s, qn_zeros(s, QN_F32, SHAPE(CAPACITY / 64, GROUPS, 4, HEAD, 16)));
        l->values = keep(s, qn_zeros(s, QN_F32, SHAPE(CAPACITY / 64, GROUPS, 64, HEAD)));
    }
    bool ok = qn_scope_status(s) == QN_OK;
    check(ok, "llama", qn_scope_error(s));
    qn_scope_end(s);
    return ok;
}

static void release_model(model *m)
{
    qn_array **all = (qn_array **)m;
    for (size_t i = 0; i < sizeof *m / sizeof *all; i++)
        qn_release(all[i]);
}

/* x [1, 1, n * HEAD] as heads [1, n, 1, HEAD] */
static qn_array *heads(qn_scope *s, qn_array *x, int64_t n)
{
    return qn_swap_axes(s, qn_reshape(s, x, SHAPE(1, 1, n, HEAD)), 1, 2);
}

/* One row at `position` [1] of the sequence whose pages are 0, 1 .. in that order: {0, 0, 1,
 * position}. */
static qn_array *tile_at(qn_scope *s, qn_array *position)
{
    qn_array *field = qn_arange(s, QN_I32, 4);
    qn_array *rows = qn_cast(s, qn_equal(s, field, qn_scalar(s, QN_I32, 2)), QN_I32);
    qn_array *last = qn_equal(s, field, qn_scalar(s, QN_I32, 3));
    return qn_reshape(s, qn_where(s, last, position, rows), SHAPE(1, 4));
}

static qn_array *attention_block(qn_scope *s, const model *m, layer *l, qn_array *x,
                                 qn_array *position)
{
    qn_array *h = qn_rms_norm(s, x, l->norm1, 1e-5f);
    qn_array *q =
        qn_rope(s, heads(s, qn_linear(s, h, l->q, NULL), HEADS), position, m->frequency, false);
    qn_array *k =
        qn_rope(s, heads(s, qn_linear(s, h, l->k, NULL), GROUPS), position, m->frequency, false);
    qn_array *v = heads(s, qn_linear(s, h, l->v, NULL), GROUPS);
    l->keys = qn__write_keys(s, qn_donate(s, l->keys), k, position);
    l->values = qn__write_values(s, qn_donate(s, l->values), v, position);
    qn_array *y = qn__attend(s, q, l->keys, l->values, tile_at(s, position),
                             qn_reshape(s, qn_arange(s, QN_I32, 16), SHAPE(1, 16)), 0, NULL);
    y = qn_reshape(s, qn_swap_axes(s, y, 1, 2), SHAPE(1, 1, HEADS * HEAD));
    return qn_add(s, x, qn_linear(s, y, l->o, NULL));
}

static qn_array *mlp_block(qn_scope *s, const layer *l, qn_array *x)
{
    qn_array *h = qn_rms_norm(s, x, l->norm2, 1e-5f);
    qn_array *gate = qn_silu(s, qn_linear(s, h, l->gate, NULL));
    h = qn_multiply(s, gate, qn_linear(s, h, l->up, NULL));
    return qn_add(s, x, qn_linear(s, h, l->down, NULL));
}

/* One token: everything that changes is donated and comes back; only the token is read. */
static bool decode_step(qn_device *dev, model *m, int32_t *token)
{
    qn_scope *s = qn_scope_begin(dev);
    qn_array *old = qn_donate(s, m->token), *position = qn_donate(s, m->position);
    qn_array *x = qn_cast(s, qn_take(s, m->embedding, old, 0), QN_F32);
    for (int i = 0; i < LAYERS; i++)
        x = mlp_block(s, &m->layers[i], attention_block(s, m, &m->layers[i], x, position));
    qn_array *logits = qn_linear(s, qn_rms_norm(s, x, m->norm, 1e-5f), m->head, NULL);
    qn_array *best = qn_argmax(s, logits, -1, false); /* [1, 1] */
    m->token = qn_add(s, best, qn_multiply(s, old, qn_scalar(s, QN_I32, 0)));
    m->position = qn_add(s, position, qn_scalar(s, QN_I32, 1));
    qn_array *results[2 + 2 * LAYERS] = {m->token, m->position};
    for (int i = 0; i < LAYERS; i++) {
        results[2 + 2 * i] = m->layers[i].keys;
        results[3 + 2 * i] = m->layers[i].values;
    }
    bool ok = qn_eval_async(s, results, 2 + 2 * LAYERS) == QN_OK &&
              qn_read(s, m->token, token, sizeof *token) == QN_OK;
    check(ok, "decode step", qn_scope_error(s));
    m->token = qn_retain(m->token);
    m->position = qn_retain(m->position);
    for (int i = 0; i < LAYERS; i++) {
        m->layers[i].keys = qn_retain(m->layers[i].keys);
        m->layers[i].values = qn_retain(m->layers[i].values);
    }
    qn_scope_end(s);
    return ok;
}

enum { WARM = 3 }; /* steps after which nothing is captured any more */

static bool decode(qn_device *dev, qn_dtype type, bool cuda, int32_t *tokens)
{
    model m;
    if (!make_model(dev, type, &m))
        return false;
    qn__cuda_stats before = {0}, after = {0};
    double begun = 0;
    for (int i = 0; i < TOKENS; i++) {
        if (cuda && i == WARM) {
            before = qn__cuda_stats_get(dev);
            begun = now();
        }
        if (!decode_step(dev, &m, &tokens[i]))
            return false;
    }
    double seconds = now() - begun;
    qn_plan_stats plans = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(dev, &plans);
    CHECK("llama", plans.donation_copies == 0);
    if (cuda) {
        uint64_t n = TOKENS - WARM;
        after = qn__cuda_stats_get(dev);
        CHECK("one graph launch a token", after.launches - before.launches == n);
        CHECK("nothing captured again", after.captures == before.captures);
        CHECK("only the token is read", after.host_reads - before.host_reads == n);
        CHECK("nothing is written", after.host_writes == before.host_writes);
        printf("llama %s: %d tokens; the last %d took %.1f us each; %llu launches, %llu captures, "
               "%llu reads, %llu writes among them; %llu programs\n",
               qn_dtype_name(type), TOKENS, (int)n, seconds * 1e6 / (double)n,
               (unsigned long long)(after.launches - before.launches),
               (unsigned long long)(after.captures - before.captures),
               (unsigned long long)(after.host_reads - before.host_reads),
               (unsigned long long)(after.host_writes - before.host_writes),
               (unsigned long long)after.programs);
    }
    release_model(&m);
    return true;
}

void compare_llama(qn_device *cpu, qn_device *cuda, qn_dtype type)
{
    int32_t want[TOKENS] = {0}, got[TOKENS] = {0};
    bool seen[VOCABULARY] = {0};
    if (!decode(cpu, type, false, want))
        return;
    int distinct = 0;
    for (int i = 0; i < TOKENS; i++) {
        distinct += want[i] >= 0 && want[i] < VOCABULARY && !seen[want[i]];
        if (want[i] >= 0 && want[i] < VOCABULARY)
            seen[want[i]] = true;
    }
    printf("llama %s: %d distinct tokens:", qn_dtype_name(type), distinct);
    for (int i = 0; i < TOKENS; i++)
        printf(" %d", want[i]);
    printf("\n");
    CHECK("llama", distinct >= 8);
    if (cuda && decode(cuda, type, true, got))
        CHECK("the same greedy tokens", !memcmp(want, got, sizeof want));
}
