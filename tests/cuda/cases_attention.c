/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, over arrays and over a cache.
 */
#include "cases.h"

static qn_array *op_attention(qn_scope *s)
{
    qn_attention_options o = {.size = sizeof o, .causal = true, .window = 6};
    return qn_attention(s, f32(s, SHAPE(2, 6, 9, 16)), f32(s, SHAPE(2, 2, 13, 16)),
                        f32(s, SHAPE(2, 2, 13, 24)), &o);
}
/* Of more queries than one block has, of keys that are no whole pieces, or fewer than queries. */
typedef struct shape_of {
    int64_t batch, heads, groups, rows, keys, d, e;
} shape_of;
static qn_array *attention(qn_scope *s, shape_of n, const qn_attention_options *o)
{
    return qn_attention(s, f32(s, SHAPE(n.batch, n.heads, n.rows, n.d)),
                        f32(s, SHAPE(n.batch, n.groups, n.keys, n.d)),
                        f32(s, SHAPE(n.batch, n.groups, n.keys, n.e)), o);
}
static qn_array *op_attention_64(qn_scope *s)
{
    return attention(s, (shape_of){2, 6, 3, 70, 133, 64, 64}, NULL);
}
static qn_array *op_attention_128(qn_scope *s)
{
    qn_attention_options o = {.size = sizeof o, .causal = true};
    return attention(s, (shape_of){1, 4, 1, 200, 328, 128, 96}, &o);
}
static qn_array *op_attention_more(qn_scope *s) /* whose first rows see nothing */
{
    qn_attention_options o = {.size = sizeof o, .causal = true};
    return attention(s, (shape_of){1, 2, 2, 300, 100, 33, 31}, &o);
}
static qn_array *op_attention_window(qn_scope *s)
{
    qn_attention_options o = {.size = sizeof o, .window = 100, .softcap = 2, .scale = 0.3f};
    return attention(s, (shape_of){1, 2, 2, 300, 300, 64, 128}, &o);
}
static qn_array *op_attention_sinks(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 70, .causal = true, .sinks = f32(s, SHAPE(4))};
    return attention(s, (shape_of){3, 4, 2, 90, 90, 64, 64}, &o);
}
static qn_array *op_attention_mask(qn_scope *s)
{
    qn_array *some = qn_greater(s, f32(s, SHAPE(6, 1, 133)), qn_scalar(s, QN_F32, -1));
    qn_attention_options o = {.size = sizeof o, .causal = true, .mask = some};
    return attention(s, (shape_of){2, 6, 3, 70, 133, 64, 64}, &o);
}
static qn_array *op_attention_bias(qn_scope *s)
{
    qn_attention_options o = {.size = sizeof o, .mask = f32(s, SHAPE(2, 1, 70, 133))};
    return attention(s, (shape_of){2, 6, 3, 70, 133, 64, 64}, &o);
}
static qn_array *op_attention_texts(qn_scope *s) /* which stand behind each other in a row */
{
    enum { ROWS = 150 };
    int32_t first[2 * ROWS];
    for (int i = 0; i < 2 * ROWS; i++)
        first[i] = i % ROWS < 80 ? 0 : 80 + (i % ROWS - 80) / 17 * 17;
    qn_attention_options o = {
        .size = sizeof o, .causal = true, .first = qn_from(s, QN_I32, SHAPE(2, ROWS), first)};
    return attention(s, (shape_of){2, 2, 2, ROWS, ROWS, 64, 64}, &o);
}
static qn_array *op_attention_views(qn_scope *s) /* rows that are no vectors, or lie apart */
{
    qn_array *q = qn_swap_axes(s, f32(s, SHAPE(1, 70, 4, 41)), 1, 2),
             *k = qn_swap_axes(s, f32(s, SHAPE(1, 90, 2, 40)), 1, 2),
             *v = qn_swap_axes(s, f32(s, SHAPE(1, 2, 24, 90)), 2, 3);
    return qn_attention(s, qn_slice(s, q, 3, 1, 41, 1), k, v, NULL);
}
static qn_array *op_attention_gradient(qn_scope *s)
{
    qn_array *q = f32(s, SHAPE(1, 4, 70, 64)), *k = f32(s, SHAPE(1, 2, 70, 64)),
             *v = f32(s, SHAPE(1, 2, 70, 64)), *grad[3] = {NULL};
    qn_attention_options o = {.size = sizeof o, .causal = true};
    qn_vjp(s, qn_attention(s, q, k, v, &o), f32(s, SHAPE(1, 4, 70, 64)), (qn_array *[]){q, k, v}, 3,
           grad);
    return qn_concatenate(s, grad, 3, 1);
}
static qn_array *op_cross_entropy(qn_scope *s)
{
    return qn_cross_entropy(s, f32(s, SHAPE(4, 3, 70)), indices(s, 70, false, SHAPE(4, 3)));
}

/* Two sequences of 537 and 40 positions, whose newest two rows run: their tiles, and their pages,
 * which lie anywhere. */
enum { CACHE_PAGES = 20, CACHE_D = 24, CACHE_E = 40, CACHE_H = 6, CACHE_G = 2 };

static qn_array *pages_of_two(qn_scope *s)
{
    int32_t table[2][16];
    for (int i = 0; i < 16; i++) {
        table[0][i] = i < 9 ? 2 * i + 1 : -1;
        table[1][i] = i < 1 ? 4 : -1;
    }
    return qn_from(s, QN_I32, 2, (const int64_t[]){2, 16}, table);
}

/* Slots of positions first .. end - 1 of the first sequence, and of the second. */
static qn_array *slots_of_two(qn_scope *s, int first, int end, int first_2, int end_2)
{
    int32_t slots[700], n = 0;
    for (int p = first; p < end; p++)
        slots[n++] = (2 * (p / 64) + 1) * 64 + p % 64;
    for (int p = first_2; p < end_2; p++)
        slots[n++] = 4 * 64 + p;
    return qn_from_i32(s, slots, n);
}

/* A cache written twice (prompts, then a step), and attended to. what: 0 the keys, 1 the values, 2
 * the attention. */
static qn_array *cached(qn_scope *s, qn_dtype type, int what, int64_t keep,
                        const qn_attention_options *o)
{
    static const int32_t tiles[3][4] = {{0, 0, 2, 535}, {1, 2, 2, 38}, {0, 0, 0, 0}};
    qn_array *then = slots_of_two(s, 0, 535, 0, 38), *now = slots_of_two(s, 535, 537, 38, 40);
    qn_array *k = qn_zeros(s, type, SHAPE(CACHE_PAGES, CACHE_G, 4, CACHE_D, 16));
    qn_array *v = qn_zeros(s, type, SHAPE(CACHE_PAGES, CACHE_G, 64, CACHE_E));
    k = qn__write_keys(s, k, f32(s, SHAPE(1, CACHE_G, 573, CACHE_D)), then);
    v = qn__write_values(s, v, f32(s, SHAPE(1, CACHE_G, 573, CACHE_E)), then);
    k = qn__write_keys(s, k, qn_swap_axes(s, f32(s, SHAPE(1, 4, CACHE_G, CACHE_D)), 1, 2), now);
    v = qn__write_values(s, v, qn_swap_axes(s, f32(s, SHAPE(1, 4, CACHE_G, CACHE_E)), 1, 2), now);
    qn_array *y = qn__attend(s, qn_swap_axes(s, f32(s, SHAPE(1, 4, CACHE_H, CACHE_D)), 1, 2), k, v,
                             qn_from(s, QN_I32, SHAPE(3, 4), tiles), pages_of_two(s), keep, o);
    return what == 0 ? k : what == 1 ? v : y;
}
static qn_array *op_keys(qn_scope *s)
{
    return cached(s, QN_F32, 0, 0, NULL);
}
static qn_array *op_keys_bf16(qn_scope *s)
{
    return cached(s, QN_BF16, 0, 0, NULL);
}
static qn_array *op_values_bf16(qn_scope *s)
{
    return cached(s, QN_BF16, 1, 0, NULL);
}
static qn_array *op_keys_f16(qn_scope *s)
{
    return cached(s, QN_F16, 0, 0, NULL);
}
static qn_array *op_values_f16(qn_scope *s)
{
    return cached(s, QN_F16, 1, 0, NULL);
}
static qn_array *op_attend(qn_scope *s)
{
    return cached(s, QN_F32, 2, 0, NULL);
}
static qn_array *op_attend_bf16(qn_scope *s)
{
    return cached(s, QN_BF16, 2, 0, NULL);
}
static qn_array *op_attend_f16(qn_scope *s)
{
    return cached(s, QN_F16, 2, 0, NULL);
}
static qn_array *op_attend_window(qn_scope *s)
{
    return cached(
        s, QN_F32, 2, 0,
        &(qn_attention_options){.size = sizeof(qn_attention_options), .window = 19, .softcap = 2});
}
static qn_array *op_attend_keep(qn_scope *s)
{
    qn_attention_options o = {.size = sizeof o, .window = 30, .sinks = f32(s, SHAPE(CACHE_H))};
    return cached(s, QN_F32, 2, 11, &o);
}

/* The same sequences with heads that are read by pages. */
static qn_array *paged(qn_scope *s, qn_dtype type, int64_t heads, int64_t groups, int64_t d,
                       int64_t keep, const qn_attention_options *o)
{
    static const int32_t tiles[3][4] = {{0, 0, 2, 535}, {1, 2, 2, 38}, {0, 0, 0, 0}};
    qn_array *slots = slots_of_two(s, 0, 537, 0, 40);
    qn_array *k = qn_zeros(s, type, SHAPE(CACHE_PAGES, groups, 4, d, 16));
    qn_array *v = qn_zeros(s, type, SHAPE(CACHE_PAGES, groups, 64, d));
    k = qn__write_keys(s, k, f32(s, SHAPE(1, groups, 577, d)), slots);
    v = qn__write_values(s, v, f32(s, SHAPE(1, groups, 577, d)), slots);
    return qn__attend(s, f32(s, SHAPE(1, heads, 4, d)), k, v,
                      qn_from(s, QN_I32, SHAPE(3, 4), tiles), pages_of_two(s), keep, o);
}
static qn_array *op_paged(qn_scope *s)
{
    return paged(s, QN_F32, 8, 2, 64, 0, NULL);
}
static qn_array *op_paged_bf16(qn_scope *s)
{
    return paged(s, QN_BF16, 8, 2, 64, 0, NULL);
}
static qn_array *op_paged_7(qn_scope *s)
{
    return paged(s, QN_BF16, 14, 2, 128, 0, NULL);
}
static qn_array *op_paged_rotating(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return paged(s, QN_BF16, 6, 2, 64, 11, &o);
}
static qn_array *op_paged_256(qn_scope *s)
{
    return paged(s, QN_F32, 10, 1, 256, 0, NULL);
}
static qn_array *op_paged_f16(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return paged(s, QN_F16, 6, 2, 64, 11, &o);
}
static qn_array *op_paged_256_bf16(qn_scope *s)
{
    return paged(s, QN_BF16, 4, 1, 256, 0, NULL);
}

/* Many rows of one token each, anywhere in both sequences, but for the last ones, which are one
 * tile's. There are as many tiles as rows, or one more. */
static qn_array *crowded(qn_scope *s, qn_dtype type, int64_t heads, int64_t groups, int64_t d,
                         int64_t keep, int more, const qn_attention_options *o)
{
    enum { ROWS = 70, LAST = 8 };
    int32_t tiles[ROWS + 1][4] = {{0}};
    for (int i = 0; i <= ROWS - LAST; i++) {
        const int32_t tile[] = {i % 2, i, i < ROWS - LAST ? 1 : LAST, i % 2 ? i % 40 : 536 - 7 * i};
        memcpy(tiles[i], tile, sizeof tile);
    }
    qn_array *slots = slots_of_two(s, 0, 537, 0, 40);
    qn_array *k = qn_zeros(s, type, SHAPE(CACHE_PAGES, groups, 4, d, 16));
    qn_array *v = qn_zeros(s, type, SHAPE(CACHE_PAGES, groups, 64, d));
    k = qn__write_keys(s, k, f32(s, SHAPE(1, groups, 577, d)), slots);
    v = qn__write_values(s, v, f32(s, SHAPE(1, groups, 577, d)), slots);
    return qn__attend(s, f32(s, SHAPE(1, heads, ROWS, d)), k, v,
                      qn_from(s, QN_I32, SHAPE(ROWS + more, 4), tiles), pages_of_two(s), keep, o);
}
static qn_array *op_crowded_64(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return crowded(s, QN_BF16, 6, 2, 64, 11, 0, &o);
}
static qn_array *op_crowded_128(qn_scope *s)
{
    return crowded(s, QN_BF16, 8, 2, 128, 0, 0, NULL);
}
static qn_array *op_crowded_64_tiles(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return crowded(s, QN_BF16, 6, 2, 64, 11, 1, &o);
}
static qn_array *op_crowded_128_tiles(qn_scope *s)
{
    return crowded(s, QN_BF16, 8, 2, 128, 0, 1, NULL);
}
static qn_array *op_crowded_256(qn_scope *s)
{
    return crowded(s, QN_BF16, 4, 1, 256, 0, 0, NULL);
}
static qn_array *op_crowded_128_f16(qn_scope *s)
{
    return crowded(s, QN_F16, 8, 2, 128, 0, 1, NULL);
}
static qn_array *op_paged_keep(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return paged(s, QN_BF16, 6, 2, 96, 11, &o);
}

/* A prompt's rows behind `behind` positions of the first sequence, and a short prompt: tiles for
 * all processors. */
enum { FIRST = 520, SECOND = 40, FAR_PAGES = 96, FAR_WIDTH = 80 };

typedef struct prompt {
    qn_array *q, *k, *v, *table;
    int64_t heads, groups, d, keep;
    int32_t behind;
    const qn_attention_options *o;
} prompt;

static prompt prompt_of(qn_scope *s, qn_dtype type, int64_t heads, int64_t groups, int64_t d,
                        int32_t behind, int64_t keep, const qn_attention_options *o)
{
    prompt p = {.heads = heads, .groups = groups, .d = d, .keep = keep, .behind = behind, .o = o};
    int32_t table[2][FAR_WIDTH], n = behind + FIRST;
    int32_t *slots = malloc(sizeof *slots * (size_t)(n + SECOND));
    for (int i = 0; i < FAR_WIDTH; i++) {
        table[0][i] = i * 64 < n ? i * 5 % 89 : -1; /* anywhere, each once */
        table[1][i] = i == 0 ? 91 : -1;
    }
    for (int i = 0; i < n + SECOND; i++)
        slots[i] = i < n ? table[0][i / 64] * 64 + i % 64 : 91 * 64 + i - n;
    qn_array *to = qn_from_i32(s, slots, n + SECOND);
    free(slots);
    p.table = qn_from(s, QN_I32, SHAPE(2, FAR_WIDTH), table);
    p.k = qn_zeros(s, type, SHAPE(FAR_PAGES, groups, 4, d, 16));
    p.v = qn_zeros(s, type, SHAPE(FAR_PAGES, groups, 64, d));
    p.k = qn__write_keys(s, p.k, f32(s, SHAPE(1, groups, n + SECOND, d)), to);
    p.v = qn__write_values(s, p.v, f32(s, SHAPE(1, groups, n + SECOND, d)), to);
    p.q = qn_swap_axes(s, f32(s, SHAPE(1, FIRST + SECOND, heads, d)), 1, 2);
    return p;
}

static qn_array *attend_all(qn_scope *s, const prompt *p)
{
    int32_t tiles[64][4] = {{0}}, n = 0;
    const int tile = (int)qn__attend_tile(p->heads / p->groups);
    for (int row = 0; row < FIRST; row += tile, n++) {
        const int32_t own[] = {0, row, FIRST - row < tile ? FIRST - row : tile, p->behind + row};
        memcpy(tiles[n], own, sizeof own);
    }
    for (int row = 0; row < SECOND; row += tile, n++) {
        const int32_t own[] = {1, FIRST + row, SECOND - row < tile ? SECOND - row : tile, row};
        memcpy(tiles[n], own, sizeof own);
    }
    n++; /* one that is not there */
    return qn__attend(s, p->q, p->k, p->v, qn_from(s, QN_I32, SHAPE(n, 4), tiles), p->table,
                      p->keep, p->o);
}

/* Some of its rows among all less the same rows alone: zeros. */
static qn_array *alone_of(qn_scope *s, const prompt *p)
{
    static const int32_t rows[] = {0, 63, 64, 300, FIRST - 1, FIRST, FIRST + SECOND - 1};
    enum { N = sizeof rows / sizeof *rows };
    int32_t tiles[N][4];
    for (int i = 0; i < N; i++) {
        const bool second = rows[i] >= FIRST;
        const int32_t own[] = {second, i, 1, second ? rows[i] - FIRST : p->behind + rows[i]};
        memcpy(tiles[i], own, sizeof own);
    }
    qn_array *these = qn_from_i32(s, rows, N);
    qn_array *alone = qn__attend(s, qn_take(s, p->q, these, 2), p->k, p->v,
                                 qn_from(s, QN_I32, SHAPE(N, 4), tiles), p->table, p->keep, p->o);
    return qn_subtract(s, qn_take(s, attend_all(s, p), these, 2), alone);
}

#define PROMPT(name, type, heads, groups, d, behind, keep, ...)                                    \
    static qn_array *op_prompt_##name(qn_scope *s)                                                 \
    {                                                                                              \
        qn_attention_options o = {.size = sizeof o, __VA_ARGS__};                                  \
        prompt p = prompt_of(s, type, heads, groups, d, behind, keep, &o);                         \
        return attend_all(s, &p);                                                                  \
    }                                                                                              \
    static qn_array *op_alone_##name(qn_scope *s)                                                  \
    {                                                                                              \
        qn_attention_options o = {.size = sizeof o, __VA_ARGS__};                                  \
        prompt p = prompt_of(s, type, heads, groups, d, behind, keep, &o);                         \
        return alone_of(s, &p);                                                                    \
    }
PROMPT(64, QN_BF16, 16, 8, 64, 17, 0, .window = 0)
PROMPT(128, QN_BF16, 16, 8, 128, 17, 0, .window = 0)
PROMPT(256, QN_BF16, 8, 4, 256, 17, 0, .window = 0)
PROMPT(window, QN_BF16, 16, 8, 64, 100, 5, .window = 200, .sinks = f32(s, SHAPE(16)))
PROMPT(far_64, QN_BF16, 16, 8, 64, 4500, 0, .window = 0)
PROMPT(far_128, QN_BF16, 16, 8, 128, 4500, 0, .sinks = f32(s, SHAPE(16)))
PROMPT(far_256, QN_BF16, 8, 4, 256, 4500, 0, .window = 0)
PROMPT(f16_64, QN_F16, 16, 8, 64, 17, 0, .window = 0)
PROMPT(f16_128, QN_F16, 16, 8, 128, 17, 5, .window = 200, .sinks = f32(s, SHAPE(16)))
PROMPT(f16_256, QN_F16, 8, 4, 256, 17, 0, .window = 0)
PROMPT(f16_far_64, QN_F16, 16, 8, 64, 4500, 0, .sinks = f32(s, SHAPE(16)))
PROMPT(f16_far_128, QN_F16, 16, 8, 128, 4500, 0, .window = 0)
PROMPT(f16_far_256, QN_F16, 8, 4, 256, 4500, 0, .window = 0)

void compare_attention(qn_device *cpu, qn_device *cuda)
{
    static const op_case cases[] = {
        CLOSE(attention),
        CLOSE(attention_64),
        CLOSE(attention_128),
        CLOSE(attention_more),
        CLOSE(attention_window),
        CLOSE(attention_sinks),
        CLOSE(attention_mask),
        CLOSE(attention_bias),
        CLOSE(attention_texts),
        CLOSE(attention_views),
        CLOSE(attention_gradient),
        CLOSE(cross_entropy),
        EXACT(keys),
        EXACT(keys_bf16),
        EXACT(values_bf16),
        EXACT(keys_f16),
        EXACT(values_f16),
        CLOSE(attend),
        CLOSE(attend_bf16),
        CLOSE(attend_f16),
        CLOSE(attend_window),
        CLOSE(attend_keep),
        CLOSE(paged),
        ROUNDED(paged_bf16),
        ROUNDED(paged_7),
        CLOSE(paged_256),
        ROUNDED(paged_256_bf16),
        FINER(paged_f16),
        ROUNDED(crowded_64),
        ROUNDED(crowded_128),
        ROUNDED(crowded_64_tiles),
        ROUNDED(crowded_128_tiles),
        ROUNDED(crowded_256),
        FINER(crowded_128_f16),
        CLOSE(paged_keep),
        ROUNDED(paged_rotating),
        ROUNDED(prompt_64),
        ROUNDED(prompt_128),
        ROUNDED(prompt_256),
        ROUNDED(prompt_window),
        ROUNDED(prompt_far_64),
        ROUNDED(prompt_far_128),
        ROUNDED(prompt_far_256),
        FINER(prompt_f16_64),
        FINER(prompt_f16_128),
        FINER(prompt_f16_256),
        FINER(prompt_f16_far_64),
        FINER(prompt_f16_far_128),
        FINER(prompt_f16_far_256),
        EXACT(alone_64),
        EXACT(alone_128),
        EXACT(alone_256),
        EXACT(alone_window),
        EXACT(alone_far_64),
        EXACT(alone_far_128),
        EXACT(alone_far_256),
        EXACT(alone_f16_64),
        EXACT(alone_f16_128),
        EXACT(alone_f16_256),
        EXACT(alone_f16_far_64),
        EXACT(alone_f16_far_128),
        EXACT(alone_f16_far_256),
    };
    compare_list(cases, sizeof cases / sizeof *cases, cpu, cuda);
}
