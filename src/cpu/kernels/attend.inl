/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one KV head, written over vec_*.h and two products that each tier supplies:
 *   attend_scores: up to 4 query rows times the keys of 16-key groups j0 .. j1 - 1 of one block;
 * lane = key, one accumulator a score, fma in order of the dimension attend_values: up to 4 rows'
 * acc = acc * fade, then acc += p[s] v[s] for keys s0 .. s1 - 1 in order; lane = dimension Both may
 * fetch memory from `ahead` on (NULL: nothing) meanwhile: with few rows the scores fetch this
 * block's values and the values the next block's keys, which keeps both in the first cache.
 *
 * Problem: prefill wants many rows to share each key, decode streams the cache past a few rows, and
 * a row's bits must be the same in both. Approach: blocks of 64 keys anchored at key 0; for each
 * block all rows' scores, then the online softmax (the running maximum and sum merge left to right,
 * once a block), then all rows' values. With many rows a bf16 block is widened once. Invariants: a
 * score is a chain over the dimension; an output element is a chain over the row's own keys with
 * one rescale a block; masked lanes weigh exactly 0 and keys outside a row's range never meet its
 * accumulator, so rows that share a group change nothing. Scratch: see attend_scratch in
 * ref_attend.c.
 */

enum { ATTEND_BLOCK = 64, ATTEND_GROUP = 4, ATTEND_WIDEN_ROWS = 8 };

typedef struct attend_state {
    const qn__cpu_attend *a;
    size_t rows, dv16, high;   /* high: keys end here, for all rows */
    float *acc;                /* [rows][dv16] */
    float *p;                  /* [rows][64]: scores, then probabilities */
    float *top, *total, *fade; /* [rows] */
    float *wide_k, *wide_v;    /* f32 copies of a block */
} attend_state;

/* Up to 4 rows that see keys of the block, each s0 .. s1 - 1 of it; then where the next group
 * starts. */
typedef struct attend_group {
    int n;
    size_t row[ATTEND_GROUP], s0[ATTEND_GROUP], s1[ATTEND_GROUP];
    const float *q[ATTEND_GROUP];
    size_t token, head;
} attend_group;

/* The part of token t's range in block b; false when empty. */
static int attend_part(const qn__cpu_attend *a, size_t t, size_t b, size_t *s0, size_t *s1)
{
    size_t begin = a->begin[t] > 0 ? (size_t)a->begin[t] : 0,
           end = a->end[t] > 0 ? (size_t)a->end[t] : 0;
    if (a->keep && b == 0) {
        *s0 = 0;
        *s1 = a->keep;
        return begin < end;
    }
    size_t low = b * ATTEND_BLOCK, high = low + ATTEND_BLOCK;
    begin = begin > low ? begin : low;
    end = end < high ? end : high;
    *s0 = begin - low;
    *s1 = end - low;
    return begin < end;
}

/* The next rows that see block b, from g's token and head on; false at the end. */
static int attend_next(const attend_state *st, size_t b, attend_group *g)
{
    const qn__cpu_attend *a = st->a;
    g->n = 0;
    for (; g->token < a->tokens; g->token++, g->head = 0) {
        size_t s0, s1;
        if (!attend_part(a, g->token, b, &s0, &s1))
            continue;
        for (; g->head < a->heads; g->head++) {
            if (g->n == ATTEND_GROUP)
                return 1;
            g->row[g->n] = g->token * a->heads + g->head;
            g->q[g->n] = a->q + g->token * a->q_token + g->head * a->q_head;
            g->s0[g->n] = s0;
            g->s1[g->n++] = s1;
        }
    }
    return g->n > 0;
}

static void attend_block_scores(const attend_state *st, size_t b, qn__cpu_type type, const void *k,
                                const void *ahead)
{
    attend_group g = {.token = 0, .head = 0};
    while (attend_next(st, b, &g)) {
        float *p[ATTEND_GROUP];
        size_t low = ATTEND_BLOCK, high = 0;
        for (int i = 0; i < g.n; i++) {
            p[i] = st->p + g.row[i] * ATTEND_BLOCK;
            low = g.s0[i] < low ? g.s0[i] : low;
            high = g.s1[i] > high ? g.s1[i] : high;
        }
        attend_scores(g.n, type, g.q, st->a->d, k, low / 16, (high + 15) / 16, p, ahead);
        ahead = NULL;
    }
}

/* Scores of 16 keys at p, scaled and capped; -inf outside s0 .. s1 - 1 of the block, i the group's
 * first key. */
static inline vf attend_score_lanes(const qn__cpu_attend *a, const float *p, size_t i, size_t s0,
                                    size_t s1)
{
    if (i + 16 <= s0 || i >= s1)
        return v_set(-INFINITY);
    vf s = v_mul(v_load(p + i), v_set(a->scale));
    if (a->softcap > 0.0f)
        s = v_mul(v_set(a->softcap), v_tanh(v_div(s, v_set(a->softcap))));
    if (s1 < i + 16)
        s = v_pick(v_lt(v_lane_numbers(), v_set((float)(s1 - i))), s, v_set(-INFINITY));
    if (s0 > i)
        s = v_pick(v_lt(v_lane_numbers(), v_set((float)(s0 - i))), v_set(-INFINITY), s);
    return s;
}

static inline float attend_exp(float x)
{
    float lanes[16];
    v_store(lanes, v_exp(v_set(x)));
    return lanes[0];
}

static void attend_softmax_row(const attend_state *st, size_t row, size_t s0, size_t s1)
{
    float *p = st->p + row * ATTEND_BLOCK, old = st->top[row];
    vf s[4];
    for (int j = 0; j < 4; j++)
        s[j] = attend_score_lanes(st->a, p, (size_t)(16 * j), s0, s1);
    float top = v_top(v_max(v_max(s[0], s[1]), v_max(s[2], s[3])));
    top = top > old ? top : old;
    float base = top == -INFINITY ? 0.0f : top;
    float fade = old == base ? 1.0f : attend_exp(old - base); /* the same bits: exp(0) is 1 */
    for (int j = 0; j < 4; j++) {
        s[j] = v_exp(v_sub(s[j], v_set(base)));
        v_store(p + 16 * j, s[j]);
    }
    st->total[row] = st->total[row] * fade + v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
    st->top[row] = top;
    st->fade[row] = fade;
}

static void attend_block_softmax(const attend_state *st, size_t b)
{
    size_t heads = st->a->heads, s0, s1;
    for (size_t t = 0; t < st->a->tokens; t++)
        if (attend_part(st->a, t, b, &s0, &s1))
            for (size_t h = 0; h < heads; h++)
                attend_softmax_row(st, t * heads + h, s0, s1);
}

/* One row's keys s0 .. s1 - 1, if any. */
static void attend_values_one(const attend_state *st, size_t row, qn__cpu_type type, const void *v,
                              size_t ldv, size_t s0, size_t s1)
{
    float *acc = st->acc + row * st->dv16;
    const float *p = st->p + row * ATTEND_BLOCK;
    if (s0 < s1) {
        attend_values(1, type, &acc, &st->fade[row], &p, v, ldv, s0, s1, st->a->dv, NULL);
        st->fade[row] = 1.0f;
    }
}

static void attend_block_values(const attend_state *st, size_t b, qn__cpu_type type, const void *v,
                                size_t ldv, const void *ahead)
{
    attend_group g = {.token = 0, .head = 0};
    while (attend_next(st, b, &g)) {
        float *acc[ATTEND_GROUP], fade[ATTEND_GROUP];
        const float *p[ATTEND_GROUP];
        size_t low = 0, high = ATTEND_BLOCK; /* the keys that all rows see */
        for (int i = 0; i < g.n; i++) {
            low = g.s0[i] > low ? g.s0[i] : low;
            high = g.s1[i] < high ? g.s1[i] : high;
        }
        if (low >= high) {
            for (int i = 0; i < g.n; i++)
                attend_values_one(st, g.row[i], type, v, ldv, g.s0[i], g.s1[i]);
            continue;
        }
        for (int i = 0; i < g.n; i++) {
            attend_values_one(st, g.row[i], type, v, ldv, g.s0[i], low);
            acc[i] = st->acc + g.row[i] * st->dv16;
            p[i] = st->p + g.row[i] * ATTEND_BLOCK;
            fade[i] = st->fade[g.row[i]];
            st->fade[g.row[i]] = 1.0f;
        }
        attend_values(g.n, type, acc, fade, p, v, ldv, low, high, st->a->dv, ahead);
        ahead = NULL;
        for (int i = 0; i < g.n; i++)
            attend_values_one(st, g.row[i], type, v, ldv, high, g.s1[i]);
    }
}

/* Widens what the rows see of a bf16 block, keys low .. high - 1. */
static void attend_widen(const attend_state *st, const uint16_t *k, const uint16_t *v, size_t low,
                         size_t high)
{
    size_t d = st->a->d, dv = st->a->dv, ldv = st->a->ldv;
    for (size_t i = low / 16 * d; i < (high + 15) / 16 * d; i++)
        v_store(st->wide_k + 16 * i, v_load_bf16(k + 16 * i));
    for (size_t s = low; s < high; s++) {
        size_t i = 0;
        for (; i + 16 <= dv; i += 16)
            v_store(st->wide_v + s * st->dv16 + i, v_load_bf16(v + s * ldv + i));
        for (; i < dv; i++)
            st->wide_v[s * st->dv16 + i] = qn__cpu_f32_of_bf16(v[s * ldv + i]);
    }
}

static void attend_block(const attend_state *st, size_t b)
{
    const qn__cpu_attend *a = st->a;
    size_t low = ATTEND_BLOCK, high = 0, s0, s1, seen = 0;
    for (size_t t = 0; t < a->tokens; t++)
        if (attend_part(a, t, b, &s0, &s1)) {
            low = s0 < low ? s0 : low;
            high = s1 > high ? s1 : high;
            seen += a->heads;
        }
    if (low >= high)
        return;
    size_t at = (a->pages ? (size_t)a->pages[b] : b) * ATTEND_BLOCK,
           size = a->type == QN__CPU_F32 ? 4 : 2, ldv = a->ldv;
    const void *k = (const char *)a->k + at * a->d * size,
               *v = (const char *)a->v + at * ldv * size;
    const void *next = (b + 1) * ATTEND_BLOCK < st->high && !a->pages
                           ? (const char *)k + ATTEND_BLOCK * a->d * size
                           : NULL;
    const void *values = ldv == a->dv ? v : NULL;
    qn__cpu_type type = a->type;
    if (type == QN__CPU_BF16 && seen >= ATTEND_WIDEN_ROWS) {
        attend_widen(st, k, v, low, high);
        type = QN__CPU_F32;
        k = st->wide_k;
        v = st->wide_v;
        ldv = st->dv16;
        next = values = NULL;
    }
    attend_block_scores(st, b, type, k, values);
    attend_block_softmax(st, b);
    attend_block_values(st, b, type, v, ldv, next);
}

static void attend_finish(const attend_state *st, size_t row)
{
    const qn__cpu_attend *a = st->a;
    size_t t = row / a->heads, h = row % a->heads;
    float *o = a->o + t * a->o_token + h * a->o_head, *acc = st->acc + row * st->dv16;
    float total = st->total[row], fade = 1.0f;
    if (a->sink && a->begin[t] < a->end[t]) {
        float top = a->sink[h] > st->top[row] ? a->sink[h] : st->top[row],
              base = top == -INFINITY ? 0.0f : top;
        fade = attend_exp(st->top[row] - base);
        total = total * fade + attend_exp(a->sink[h] - base);
    }
    if (total == 0.0f)
        fade = 0.0f, total = 1.0f;
    for (size_t i = 0; i < a->dv; i += 16)
        v_store_n(o + i, a->dv - i < 16 ? a->dv - i : 16,
                  v_div(v_mul(v_load(acc + i), v_set(fade)), v_set(total)));
}

static void attend_rows(const qn__cpu_attend *a, void *scratch)
{
    size_t rows = a->tokens * a->heads, dv16 = (a->dv + 15) / 16 * 16, r16 = (rows + 15) / 16 * 16;
    attend_state st = {a, rows, dv16, 0, scratch, NULL, NULL, NULL, NULL, NULL, NULL};
    st.p = st.acc + rows * dv16;
    st.top = st.p + rows * ATTEND_BLOCK;
    st.total = st.top + r16;
    st.fade = st.total + r16;
    st.wide_k = st.fade + r16;
    st.wide_v = st.wide_k + ATTEND_BLOCK * a->d;
    memset(st.acc, 0, rows * dv16 * sizeof(float));
    size_t low = SIZE_MAX, high = 0;
    for (size_t t = 0; t < a->tokens; t++) {
        size_t begin = a->begin[t] > 0 ? (size_t)a->begin[t] : 0;
        if (a->end[t] <= 0 || begin >= (size_t)a->end[t])
            continue;
        low = a->keep ? 0 : begin < low ? begin : low;
        high = (size_t)a->end[t] > high ? (size_t)a->end[t] : high;
    }
    for (size_t r = 0; r < rows; r++) {
        st.top[r] = -INFINITY;
        st.total[r] = 0.0f;
        st.fade[r] = 1.0f;
    }
    st.high = high;
    for (size_t b = low / ATTEND_BLOCK; low < high && b * ATTEND_BLOCK < high; b++)
        attend_block(&st, b);
    for (size_t r = 0; r < rows; r++)
        attend_finish(&st, r);
}
