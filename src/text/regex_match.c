/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a pattern's program; see regex.h. A place where something else can be tried is a frame of
 * a stack; so is the old value of a register, so that going back undoes what was set since. What
 * stands on its own (atomic groups, looks) marks the stack, and throws away the choices above the
 * mark when it is done. All state is in the work; steps and frames are bounded.
 */
#include "text/regex.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    STEP_BUDGET = 150000000, /* less than a second */
    STEPS_PER_BYTE = 64,
    FRAMES_PER_BYTE = 4,
    FEWEST_FRAMES = 1 << 16,
    NO_MATCH = -1,
    TOO_LONG = -2,
    TOO_DEEP = -3,
    NO_MEMORY = -4
};

typedef enum frame_kind {
    FRAME_CHOICE, /* go on at step `at`, place b */
    FRAME_STAR,   /* the STAR at `at` can give back a characters, the last of which ends at b */
    FRAME_LAZY,   /* the STAR at `at` has taken a characters, up to b, and can take more */
    FRAME_SET,    /* register `at` was b */
    FRAME_TURN,   /* registers `at` and the next were a and b */
    FRAME_MARK,
    FRAME_BACK /* the BACK at `at` has gone a characters back, to b */
} frame_kind;

typedef struct qn__regex_frame {
    uint32_t kind : 3, at : 29;
    uint32_t a;
    int64_t b;
} qn__regex_frame;

typedef struct matcher {
    const qn__regex *regex;
    qn__regex_work *work;
    const char *s;
    int64_t n, begin; /* of the text; where the search began */
    uint64_t budget;
    size_t most_frames;
    int failure;
} matcher;

/* ---- text ----------------------------------------------------------------------------------- */

static uint32_t char_here(const matcher *m, int64_t at, int64_t *behind)
{
    uint32_t c = (unsigned char)m->s[at];
    size_t k = 1;
    if (c >= 0x80 && !(k = qn__utf8_decode(m->s + at, (size_t)(m->n - at), &c)))
        k = 1;
    *behind = at + (int64_t)k;
    return c;
}

static int64_t place_before(const matcher *m, int64_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)m->s[at] & 0xc0) == 0x80);
    return at;
}

static bool is_word(const matcher *m, int64_t at)
{
    int64_t behind;
    return at < m->n && qn__charset_has(m->regex->word, char_here(m, at, &behind));
}

static bool holds(const matcher *m, qn__regex_anchor anchor, int64_t at)
{
    switch (anchor) {
    case QN__RX_LINE_BEGIN: return at == 0 || (m->s[at - 1] == '\n' && at < m->n);
    case QN__RX_LINE_END: return at == m->n || m->s[at] == '\n';
    case QN__RX_TEXT_BEGIN: return at == 0;
    case QN__RX_TEXT_END: return at == m->n;
    case QN__RX_TEXT_LAST: return at == m->n || (at == m->n - 1 && m->s[at] == '\n');
    case QN__RX_SEARCH_BEGIN: return at == m->begin;
    default: break;
    }
    bool edge = (at > 0 && is_word(m, place_before(m, at))) != is_word(m, at);
    return edge == (anchor == QN__RX_WORD_EDGE);
}

/* ---- the stack ------------------------------------------------------------------------------ */

static bool push(matcher *m, frame_kind kind, int32_t at, uint32_t a, int64_t b)
{
    qn__regex_work *w = m->work;
    if (w->n_frames == w->capacity) {
        size_t capacity = w->capacity ? w->capacity * 2 : 256;
        if (w->n_frames >= m->most_frames) {
            m->failure = TOO_DEEP;
            return false;
        }
        qn__regex_frame *grown = realloc(w->frames, capacity * sizeof *grown);
        if (!grown) {
            m->failure = NO_MEMORY;
            return false;
        }
        w->frames = grown;
        w->capacity = capacity;
    }
    w->frames[w->n_frames++] = (qn__regex_frame){kind, (uint32_t)at, a, b};
    return true;
}

static bool set_register(matcher *m, int32_t r, int64_t value)
{
    if (!push(m, FRAME_SET, r, 0, m->work->registers[r]))
        return false;
    m->work->registers[r] = value;
    return true;
}

static bool set_turn(matcher *m, int32_t r, int64_t count, int64_t place)
{
    int64_t *registers = m->work->registers;
    if (!push(m, FRAME_TURN, r, (uint32_t)registers[r], registers[r + 1]))
        return false;
    registers[r] = count;
    registers[r + 1] = place;
    return true;
}

static void undo(matcher *m, const qn__regex_frame *f)
{
    if (f->kind == FRAME_SET) {
        m->work->registers[f->at] = f->b;
    } else if (f->kind == FRAME_TURN) {
        m->work->registers[f->at] = (int32_t)f->a;
        m->work->registers[f->at + 1] = f->b;
    }
}

/* Choices above the mark go, and the mark; what undoes registers stays. */
static void commit(matcher *m, size_t mark)
{
    qn__regex_work *w = m->work;
    size_t kept = mark;
    w->spent += w->n_frames - mark;
    for (size_t i = mark + 1; i < w->n_frames; i++)
        if (w->frames[i].kind == FRAME_SET || w->frames[i].kind == FRAME_TURN)
            w->frames[kept++] = w->frames[i];
    w->n_frames = kept;
}

static void unwind(matcher *m, size_t mark)
{
    qn__regex_work *w = m->work;
    w->spent += w->n_frames - mark;
    while (w->n_frames > mark)
        undo(m, &w->frames[--w->n_frames]);
}

/* Goes back to the last choice: the step, and its place in *at; -1: there is none. */
static int32_t go_back(matcher *m, int64_t *at)
{
    qn__regex_work *w = m->work;
    while (w->n_frames > 0) {
        qn__regex_frame *f = &w->frames[w->n_frames - 1];
        int32_t step = (int32_t)f->at;
        const qn__regex_step *s = &m->regex->steps[step];
        int64_t behind;
        switch ((frame_kind)f->kind) {
        case FRAME_CHOICE:
            *at = f->b;
            w->n_frames--;
            return step;
        case FRAME_STAR:
            *at = f->b = place_before(m, f->b);
            if (--f->a == 0)
                w->n_frames--;
            return step + 1;
        case FRAME_LAZY:
            if (f->b < w->registers[1] && f->a < (uint32_t)s->max &&
                qn__charset_has(s->set, char_here(m, f->b, &behind))) {
                *at = f->b = behind;
                f->a++;
                return step + 1;
            }
            w->n_frames--;
            break;
        case FRAME_BACK:
            if (f->b > 0 && f->a < (uint32_t)s->b) {
                *at = f->b = place_before(m, f->b);
                f->a++;
                return step + 1;
            }
            w->n_frames--;
            break;
        case FRAME_SET:
        case FRAME_TURN:
        case FRAME_MARK:
            undo(m, f);
            w->n_frames--;
            break;
        }
        w->spent++;
    }
    return -1;
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Takes min characters of the set at least, and max at most; lazily, no more at first. *at -1: it
 * does not match. */
static bool run_star(matcher *m, int32_t step, int64_t *at)
{
    const qn__regex_step *s = &m->regex->steps[step];
    int64_t i = *at, behind;
    int32_t count = 0, most = s->mode == QN__RX_LAZY ? s->min : s->max;
    for (; count < most && i < m->work->registers[1] &&
           qn__charset_has(s->set, char_here(m, i, &behind));
         count++)
        i = behind;
    m->work->spent += (uint64_t)count >> 1;
    if (count < s->min) {
        *at = -1;
        return true;
    }
    *at = i;
    if (s->mode == QN__RX_GREEDY && count > s->min)
        return push(m, FRAME_STAR, step, (uint32_t)(count - s->min), i);
    if (s->mode == QN__RX_LAZY && s->max > s->min)
        return push(m, FRAME_LAZY, step, (uint32_t)count, i);
    return true;
}

/* Whether another turn follows: the next step, or -1 after a failure. */
static int32_t turn_loop(matcher *m, int32_t step, int64_t at)
{
    const qn__regex_step *s = &m->regex->steps[step];
    int64_t count = m->work->registers[s->a], place = m->work->registers[s->a + 1];
    if (count < s->min && place != at)
        return step + 1;
    if (place == at || count >= s->max)
        return s->out;
    if (s->mode == QN__RX_LAZY)
        return push(m, FRAME_CHOICE, step + 1, 0, at) ? s->out : -1;
    return push(m, FRAME_CHOICE, s->out, 0, at) ? step + 1 : -1;
}

static bool run_back(matcher *m, int32_t step, int64_t *at)
{
    const qn__regex_step *s = &m->regex->steps[step];
    m->work->registers[s->min + 1] = m->work->registers[1];
    if (!set_register(m, 1, *at))
        return false;
    for (int32_t i = 0; i < s->a; i++) {
        if (*at == 0) {
            *at = -1;
            return true;
        }
        *at = place_before(m, *at);
    }
    return s->b == s->a || push(m, FRAME_BACK, step, (uint32_t)s->a, *at);
}

/* The place behind a repetition of the group; -1: it is not there. */
static int64_t run_backref(const matcher *m, int32_t r, int64_t at)
{
    int64_t from = m->work->registers[r], to = m->work->registers[r + 1];
    if (from < 0 || to < from || m->work->registers[1] - at < to - from ||
        memcmp(m->s + from, m->s + at, (size_t)(to - from)) != 0)
        return -1;
    return at + to - from;
}

/* The end of a match that begins at `at`, or what it failed by. */
static int64_t match_at(matcher *m, int64_t at)
{
    qn__regex_work *w = m->work;
    const qn__regex_step *steps = m->regex->steps;
    int64_t behind;
    int32_t next = 0;
    w->n_frames = 0;
    w->registers[0] = at;
    w->registers[1] = m->n;
    for (;;) {
        if (next < 0 || at < 0) {
            if (m->failure)
                return m->failure;
            if ((next = go_back(m, &at)) < 0)
                return NO_MATCH;
        }
        if (++w->spent > m->budget)
            return TOO_LONG;
        const qn__regex_step *s = &steps[next];
        int32_t here = next++;
        bool ok = true;
        switch ((qn__regex_op)s->op) {
        case QN__RX_OP_CHAR:
            at = at < w->registers[1] && char_here(m, at, &behind) == (uint32_t)s->a ? behind : -1;
            break;
        case QN__RX_OP_SET:
            at = at < w->registers[1] && qn__charset_has(s->set, char_here(m, at, &behind)) ? behind
                                                                                            : -1;
            break;
        case QN__RX_OP_STAR: ok = run_star(m, here, &at); break;
        case QN__RX_OP_SPLIT:
            ok = push(m, FRAME_CHOICE, s->b, 0, at);
            next = s->a;
            break;
        case QN__RX_OP_JUMP: next = s->a; break;
        case QN__RX_OP_SAVE: ok = set_register(m, s->a, at); break;
        case QN__RX_OP_BEGIN: ok = set_turn(m, s->a, 0, -1); break;
        case QN__RX_OP_LOOP: next = turn_loop(m, here, at); break;
        case QN__RX_OP_TURN: ok = set_turn(m, s->a, w->registers[s->a] + 1, at); break;
        case QN__RX_OP_MARK:
            w->registers[s->a] = (int64_t)w->n_frames;
            ok = push(m, s->b == 2 ? FRAME_CHOICE : FRAME_MARK, s->b == 2 ? s->out : 0, 0, at);
            break;
        case QN__RX_OP_COMMIT:
            if (s->b)
                at = w->frames[w->registers[s->a]].b;
            commit(m, (size_t)w->registers[s->a]);
            break;
        case QN__RX_OP_REFUTE:
            unwind(m, (size_t)w->registers[s->a]);
            at = -1;
            break;
        case QN__RX_OP_BACK: ok = run_back(m, here, &at); break;
        case QN__RX_OP_ARRIVED:
            at = w->frames[w->registers[s->a]].b == at ? at : -1;
            ok = at < 0 || set_register(m, 1, w->registers[s->a + 1]);
            break;
        case QN__RX_OP_ANCHOR: at = holds(m, (qn__regex_anchor)s->a, at) ? at : -1; break;
        case QN__RX_OP_BACKREF: at = run_backref(m, s->a, at); break;
        case QN__RX_OP_MATCH: return at;
        }
        if (!ok)
            return m->failure;
    }
}

/* ---- searching ------------------------------------------------------------------------------ */

void qn__regex_work_free(qn__regex_work *work)
{
    free(work->frames);
    free(work->registers);
    *work = (qn__regex_work){0};
}

static bool prepare(const qn__regex *regex, qn__regex_work *work)
{
    if (work->n_registers < regex->n_registers) {
        int64_t *grown = realloc(work->registers, regex->n_registers * sizeof *grown);
        if (!grown)
            return false;
        work->registers = grown;
        work->n_registers = regex->n_registers;
    }
    for (size_t i = 0; i < regex->n_registers; i++)
        work->registers[i] = -1;
    return true;
}

static qn_status fail_search(const matcher *m, int64_t failure, int64_t at, qn_error *err)
{
    const char *place = m->regex->place;
    if (failure == NO_MEMORY)
        return qn__fail_memory(err, "a pattern's match");
    if (failure == TOO_DEEP)
        return qn__fail(err, QN_LIMIT,
                        "%s: the pattern needs a stack of more than %zu, at byte %lld of %lld",
                        place, m->most_frames, (long long)at, (long long)m->n);
    return qn__fail(err, QN_LIMIT,
                    "%s: the pattern needs more than %llu steps, at byte %lld of %lld", place,
                    (unsigned long long)m->budget, (long long)at, (long long)m->n);
}

qn_status qn__regex_search(const qn__regex *regex, qn__regex_work *work, const char *s, size_t n,
                           size_t at, size_t text_size, size_t *start, size_t *end, qn_error *err)
{
    matcher m = {.regex = regex,
                 .work = work,
                 .s = s,
                 .n = (int64_t)n,
                 .begin = (int64_t)at,
                 .budget = STEP_BUDGET + STEPS_PER_BYTE * (uint64_t)text_size,
                 .most_frames = FEWEST_FRAMES + FRAMES_PER_BYTE * text_size};
    *start = *end = n + 1;
    if (!prepare(regex, work))
        return qn__fail_memory(err, "a pattern's match");
    for (int64_t i = (int64_t)at; i <= m.n; i++) {
        if (i < m.n && ((unsigned char)s[i] & 0xc0) == 0x80)
            continue;
        if (!regex->may_be_empty && (i == m.n || !regex->first[(unsigned char)s[i]]))
            continue;
        int64_t found = match_at(&m, i);
        if (found >= 0) {
            *start = (size_t)work->registers[0];
            *end = (size_t)found > *start ? (size_t)found : *start;
            return QN_OK;
        }
        if (found != NO_MATCH)
            return fail_search(&m, found, i, err);
    }
    return QN_OK;
}

/* ---- making --------------------------------------------------------------------------------- */

qn_status qn__regex_new(qn__regex **out, const char *pattern, size_t n, const char *place,
                        qn_error *err)
{
    *out = NULL;
    qn__regex *regex = calloc(1, sizeof *regex);
    if (!regex)
        return qn__fail_memory(err, "a pattern");
    qn__regex_tree tree = {.arena = &regex->arena}; /* its sets stay */
    const char *problem = NULL;
    char quoted[64];
    regex->place = qn__arena_strndup(&regex->arena, place, strlen(place));
    bool ok = regex->place && qn__regex_parse(&tree, pattern, n) &&
              qn__regex_compile(regex, &tree, &problem);
    if (ok) {
        *out = regex;
        return QN_OK;
    }
    qn__regex_free(regex);
    bool unsupported = tree.unsupported || problem;
    problem = problem ? problem : tree.problem;
    if (!problem || tree.no_memory)
        return qn__fail_memory(err, "a pattern");
    size_t at = tree.problem ? tree.problem_at : n;
    qn__utf8_quote(quoted, sizeof quoted, pattern, n);
    if (unsupported)
        return qn__fail(err, QN_UNSUPPORTED, "%s: pattern \"%s\": %s is not supported (byte %zu)",
                        place, quoted, problem, at);
    return qn__fail(err, QN_FORMAT, "%s: bad regular expression \"%s\": %s (byte %zu)", place,
                    quoted, problem, at);
}

void qn__regex_free(qn__regex *regex)
{
    if (!regex)
        return;
    qn__arena_free(&regex->arena);
    free(regex);
}
