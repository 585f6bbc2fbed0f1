/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one KV head, written over vec_*.h and two products that each tier supplies:
 *   attend_scores: up to 4 query rows times the keys of 16-key groups j0 .. j1 - 1 of one page;
 * lane = key, one accumulator a score, fma in order of the dimension attend_values: up to 4 rows'
 * acc = acc * fade, then acc += p[s] v[s] for keys s0 .. s1 - 1 in order; lane = dimension Both may
 * fetch memory from `ahead` on (NULL: nothing) meanwhile: with few rows the scores fetch this
 * page's values and the values the next page's keys, which keeps both in the first cache.
 *
 * Problem: prefill wants many rows to share each key, decode streams the cache past a few rows, and
 * a row's bits must be the same in both. Approach: a page holds 64 positions; for each page of a
 * span all rows' scores, then the online softmax (the running maximum and sum merge left to right,
 * once a page), then all rows' values; spans merge left to right, too. With many rows a bf16 page
 * is widened once. Invariants: a score is a chain over the dimension; an output element is a chain
 * over the row's own keys with one rescale a page, and one a span; masked lanes weigh exactly 0 and
 * keys outside a row's range never meet its accumulator, so rows that share a group change nothing.
 * Scratch and state: see ref_attend.c.
 */

enum { ATTEND_BLOCK = QN__CPU_PAGE, ATTEND_GROUP = 4, ATTEND_WIDEN_ROWS = 8 };

typedef struct attend_state {
    const qn__cpu_attend *a;
    size_t rows, dv16, high; /* high: keys end here, for all rows */
    float *acc;              /* [rows][dv16] */
    float *top, *total;      /* [rows] */
    float *fade;             /* [rows] */
    float *p;                /* [rows][64]: scores, then probabilities */
    float *wide_k, *wide_v;  /* f32 copies of a page */
} attend_state;

/* Up to 4 rows that see keys of the page, each s0 .. s1 - 1 of it; then where the next group
 * starts. */
typedef struct attend_group {
    int n;
    size_t row[ATTEND_GROUP], s0[ATTEND_GROUP], s1[ATTEND_GROUP];
    const float *q[ATTEND_GROUP];
    size_t token, head;
} attend_group;

/* The part of token t's range in block b, with the hole between kept keys and the others where that
 * lies in it; false when empty. */
static int attend_part(const qn__cpu_attend *a, size_t t, size_t b, size_t *s0, size_t *s1)
{
    size_t begin = a->begin[t] > 0 ? (size_t)a->begin[t] : 0,
           end = a->end[t] > 0 ? (size_t)a->end[t] : 0;
    if (begin >= end)
        return 0;
    size_t low = b * ATTEND_BLOCK, high = low + ATTEND_BLOCK;
    if (a->keep && b == 0) {
        *s0 = 0;
        *s1 = begin >= high ? a->keep : end < high ? end : high;
        return 1;
    }
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

/* x where lanes count less than n, y elsewhere. */
static inline vf attend_first(size_t n, vf x, vf y)
{
    return v_pick(v_lt(v_lane_numbers(), v_set((float)n)), x, y);
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
        s = attend_first(s1 - i, s, v_set(-INFINITY));
    if (s0 > i)
        s = attend_first(s0 - i, v_set(-INFINITY), s);
    return s;
}

/* -inf for keys h0 .. h1 - 1, of 16 from i on. */
static inline vf attend_hole(vf s, size_t i, size_t h0, size_t h1)
{
    size_t a = h0 > i ? h0 - i : 0, b = h1 > i ? h1 - i : 0;
    return a < b ? attend_first(a, s, attend_first(b, v_set(-INFINITY), s)) : s;
}

static inline float attend_exp(float x)
{
    float lanes[16];
    v_store(lanes, v_exp(v_set(x)));
    return lanes[0];
}

/* hole: keys from keep on that the row does not see, up to this one; 0: there are none. */
static void attend_softmax_row(const attend_state *st, size_t row, size_t s0, size_t s1,
                               size_t hole)
{
    float *p = st->p + row * ATTEND_BLOCK, old = st->top[row];
    vf s[4];
    for (size_t j = 0; j < 4; j++) {
        s[j] = attend_score_lanes(st->a, p, 16 * j, s0, s1);
        if (hole)
            s[j] = attend_hole(s[j], 16 * j, st->a->keep, hole);
    }
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
    for (size_t t = 0; t < st->a->tokens; t++) {
        size_t hole = st->a->keep && b == 0 ? (size_t)st->a->begin[t] : 0;
        if (attend_part(st->a, t, b, &s0, &s1))
            for (size_t h = 0; h < heads; h++)
                attend_softmax_row(st, t * heads + h, s0, s1, hole);
    }
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

static const void *attend_page(const qn__cpu_pages *p, int32_t page)
{
    return (const char *)p->at + (size_t)page * p->page;
}

/* Whether the products read pages as they are. */
static bool attend_direct(const qn__cpu_pages *p, size_t rows)
{
    return !p->layout &&
           (p->type == QN__CPU_F32 || (p->type == QN__CPU_BF16 && rows < ATTEND_WIDEN_ROWS));
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
    const void *k = attend_page(&a->k, a->pages[b]), *v = attend_page(&a->v, a->pages[b]),
               *values = v, *next = NULL;
    if ((b + 1) * ATTEND_BLOCK < st->high && a->pages[b + 1] >= 0)
        next = attend_page(&a->k, a->pages[b + 1]);
    size_t ldv = a->dv;
    qn__cpu_type k_type = a->k.type, v_type = a->v.type;
    if (!attend_direct(&a->k, seen)) {
        widen_keys(&a->k, k, a->d, low / 16, (high + 15) / 16, st->wide_k);
        k_type = QN__CPU_F32;
        k = st->wide_k;
        next = NULL;
    }
    if (!attend_direct(&a->v, seen)) {
        widen_values(&a->v, v, a->dv, st->dv16, low, high, st->wide_v);
        v_type = QN__CPU_F32;
        v = st->wide_v;
        ldv = st->dv16;
        values = NULL;
    }
    attend_block_scores(st, b, k_type, k, values);
    attend_block_softmax(st, b);
    attend_block_values(st, b, v_type, v, ldv, next);
}

static attend_state attend_rows_of(const qn__cpu_attend *a, float *state)
{
    attend_state st = {.a = a, .rows = a->tokens * a->heads, .dv16 = (a->dv + 15) / 16 * 16};
    st.acc = state;
    st.top = st.acc + st.rows * st.dv16;
    st.total = st.top + (st.rows + 15) / 16 * 16;
    return st;
}

/* The keys of the span that some row sees: from *low to st->high. */
static void attend_bounds(attend_state *st, size_t span, size_t *low)
{
    const qn__cpu_attend *a = st->a;
    *low = SIZE_MAX;
    for (size_t t = 0; t < a->tokens; t++) {
        size_t begin = a->begin[t] > 0 ? (size_t)a->begin[t] : 0;
        if (a->end[t] <= 0 || begin >= (size_t)a->end[t])
            continue;
        *low = a->keep ? 0 : begin < *low ? begin : *low;
        st->high = (size_t)a->end[t] > st->high ? (size_t)a->end[t] : st->high;
    }
    size_t first = span * QN__CPU_SPAN, end = first + QN__CPU_SPAN;
    *low = *low > first ? *low : first;
    st->high = st->high < end ? st->high : end;
}

static void attend_span(const qn__cpu_attend *a, size_t span, float *state, void *scratch)
{
    attend_state st = attend_rows_of(a, state);
    st.p = scratch;
    st.fade = st.p + st.rows * ATTEND_BLOCK;
    st.wide_k = st.fade + (st.rows + 15) / 16 * 16;
    st.wide_v = st.wide_k + ATTEND_BLOCK * a->d;
    memset(st.acc, 0, st.rows * st.dv16 * sizeof(float));
    for (size_t r = 0; r < st.rows; r++) {
        st.top[r] = -INFINITY;
        st.total[r] = 0.0f;
        st.fade[r] = 1.0f;
    }
    size_t low;
    attend_bounds(&st, span, &low);
    for (size_t b = low / ATTEND_BLOCK; low < st.high && b * ATTEND_BLOCK < st.high; b++)
        attend_block(&st, b);
}

static void attend_merge(const qn__cpu_attend *a, float *state, const float *later)
{
    attend_state x = attend_rows_of(a, state), y = attend_rows_of(a, (float *)(uintptr_t)later);
    for (size_t r = 0; r < x.rows; r++) {
        float *to = x.acc + r * x.dv16, *from = y.acc + r * x.dv16;
        if (y.total[r] == 0.0f) /* it sees nothing there */
            continue;
        if (x.total[r] == 0.0f) {
            memcpy(to, from, x.dv16 * sizeof *to);
            x.top[r] = y.top[r];
            x.total[r] = y.total[r];
            continue;
        }
        float top = x.top[r] > y.top[r] ? x.top[r] : y.top[r];
        float fade = attend_exp(x.top[r] - top), grow = attend_exp(y.top[r] - top);
        for (size_t i = 0; i < x.dv16; i += 16)
            v_store(to + i, v_add(v_mul(v_load(to + i), v_set(fade)),
                                  v_mul(v_load(from + i), v_set(grow))));
        x.total[r] = x.total[r] * fade + y.total[r] * grow;
        x.top[r] = top;
    }
}

static void attend_finish_row(const attend_state *st, size_t row)
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

static void attend_finish(const qn__cpu_attend *a, const float *state)
{
    attend_state st = attend_rows_of(a, (float *)(uintptr_t)state);
    for (size_t r = 0; r < st.rows; r++)
        attend_finish_row(&st, r);
}

static void attend_fill(qn__cpu_kernels *t)
{
    t->attend = attend_span;
    t->attend_merge = attend_merge;
    t->attend_finish = attend_finish;
}
