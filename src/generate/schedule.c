/* SPDX-License-Identifier: Apache-2.0
 *
 * Who runs in a step. A request begins when a place is free and the pages that it may come to need,
 * at worst, are not promised to others: what has begun never runs out of pages. Known beginnings
 * live in the pages that nobody needs, and give way. A request of higher priority takes the place
 * of a lower one, which waits and runs again what its pages held.
 *
 * A step has the next token of each request whose prompt is through, and then pieces of prompts.
 * Beside others' tokens pieces are so small that the step takes about two and a half times what it
 * takes without: readers see an even stream while a long prompt comes in. But a delay that nobody
 * sees is no reason for pieces that are slow by their smallness, and where more prompts wait than
 * replies run, they get more, as much for each prompt as for each reply.
 */
#include "base/clock.h"
#include "base/error.h"
#include "generate/engine.h"

#include <string.h>

enum { SMALLEST_PIECE = 4 };
static const double slower = 1.5;   /* by this many steps without prompts, because of a piece */
static const double unseen = 0.025; /* seconds */

/* ---- the queue ------------------------------------------------------------------------------- */

static bool before(const qn_request *a, const qn_request *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}

void qn__schedule_enqueue(qn_engine *e, qn_request *request)
{
    qn_request **at = &e->first;
    while (*at && before(*at, request))
        at = &(*at)->next;
    request->next = *at;
    request->state = QN__WAITING;
    *at = request;
    e->n_waiting++;
}

static void dequeue(qn_engine *e, qn_request *request)
{
    qn_request **at = &e->first;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    e->n_waiting--;
}

/* ---- beginning and ending -------------------------------------------------------------------- */

/* Its sequence ends, and what ran is remembered. */
static void stop_running(qn_engine *e, qn_request *r)
{
    int i = 0;
    while (e->running[i] != r)
        i++;
    e->running[i] = e->running[--e->n_running];
    for (int k = 0; k < e->cache.n_kinds; k++)
        e->reserved[k] -= r->reserved[k];
    if (e->reuses)
        qn__prefix_keep(&e->prefix, &r->sequence, r->reply.history, (int64_t)r->reply.n_history);
    r->rows = r->ahead = qn__no_rows;
    qn__sequence_end(&r->sequence);
    qn__draft_end(&r->draft);
}

void qn__schedule_finish(qn_engine *e, qn_request *r, const qn_error *error)
{
    if (r->state == QN__RUNNING)
        stop_running(e, r);
    else if (r->state == QN__WAITING)
        dequeue(e, r);
    r->state = QN__DONE;
    if (error)
        r->error = *error;
    if (r->closed)
        qn__request_free(r);
}

static bool has_room(const qn_engine *e, const qn_request *r)
{
    if (e->n_running == e->parallel)
        return false;
    for (int k = 0; k < e->cache.n_kinds; k++)
        if (e->reserved[k] + r->reserved[k] > e->cache.kind[k].pages.most)
            return false;
    return true;
}

/* The lowest of those that run below the priority; NULL: none. */
static qn_request *lowest_below(const qn_engine *e, int priority)
{
    qn_request *lowest = NULL;
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->priority < priority && (!lowest || before(lowest, e->running[i])))
            lowest = e->running[i];
    return lowest;
}

/* Whether there would be room if all lower ones went. */
static bool lower_suffice(const qn_engine *e, const qn_request *r)
{
    int n = e->n_running;
    int64_t reserved[QN__MOST_KINDS];
    memcpy(reserved, e->reserved, sizeof reserved);
    for (int i = 0; i < e->n_running; i++) {
        bool lower = e->running[i]->priority < r->priority;
        n -= lower;
        for (int k = 0; lower && k < e->cache.n_kinds; k++)
            reserved[k] -= e->running[i]->reserved[k];
    }
    for (int k = 0; k < e->cache.n_kinds; k++)
        if (reserved[k] + r->reserved[k] > e->cache.kind[k].pages.most)
            return false;
    return n < e->parallel;
}

/* Lower ones make room. */
static void make_place(qn_engine *e, const qn_request *r)
{
    qn_request *lowest;
    while (!has_room(e, r) && lower_suffice(e, r) && (lowest = lowest_below(e, r->priority))) {
        stop_running(e, lowest);
        qn__schedule_enqueue(e, lowest);
        e->stats.preempted++;
    }
}

static void begin_request(qn_engine *e, qn_request *r)
{
    dequeue(e, r);
    r->state = QN__RUNNING;
    e->running[e->n_running++] = r;
    for (int k = 0; k < e->cache.n_kinds; k++)
        e->reserved[k] += r->reserved[k];
    r->rows = r->ahead = qn__no_rows;
    qn__sequence_begin(&r->sequence, &e->cache);
    r->sequence.adapter = r->adapter;
    if (r->begun == 0)
        r->begun = qn__seconds();
}

static void end_cancelled(qn_engine *e)
{
    qn_error cancelled = {0};
    qn__fail(&cancelled, QN_CANCELLED, "the request was cancelled");
    for (int i = e->n_running - 1; i >= 0; i--)
        if (e->running[i]->cancelled)
            qn__schedule_finish(e, e->running[i], &cancelled);
    for (qn_request *r = e->first, *next; r; r = next) {
        next = r->next;
        if (r->cancelled)
            qn__schedule_finish(e, r, &cancelled);
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Known tokens that have not run. */
static int64_t left_of(const qn_request *r)
{
    return (int64_t)r->reply.n_history - r->sequence.length;
}

bool qn__schedule_is_drawing(const qn_request *r)
{
    return r->rows.output >= 0;
}

/* Tokens of its that run in this step, with results of the newest `outputs`. Known beginnings give
 * way until they have pages; without, a request whose next token comes goes on when it is there. */
static void add_rows(qn_engine *e, qn_request *r, const int32_t *ids, int64_t n, int64_t outputs)
{
    qn_error err = {0};
    qn__request_rows rows = {n, r->sequence.length, outputs ? e->batch.n_outputs : -1};
    while (qn__batch_add(&e->batch, &r->sequence, ids, n, outputs, &err) != QN_OK) {
        if (err.code != QN_LIMIT || !qn__prefix_forget(&e->prefix)) {
            if (!qn__schedule_is_drawing(r))
                qn__schedule_finish(e, r, &err);
            return;
        }
        err = (qn_error){0};
    }
    r->ahead = rows;
}

static void add_piece(qn_engine *e, qn_request *r, int64_t n)
{
    add_rows(e, r, r->reply.history + r->sequence.length, n, n == left_of(r));
}

/* The newest token, and guesses. */
static void add_newest(qn_engine *e, qn_request *r)
{
    int32_t ids[1 + QN__MOST_GUESSES] = {r->reply.history[r->sequence.length]};
    memcpy(ids + 1, r->guesses.id, r->guesses.n * sizeof *ids);
    add_rows(e, r, ids, 1 + (int64_t)r->guesses.n, 1 + (int64_t)r->guesses.n);
}

/* The token that is being drawn, unless the request ends with it, whatever it is. */
static void add_drawn(qn_engine *e, qn_request *r)
{
    int64_t said = (int64_t)qn__reply_generated(&r->reply);
    int32_t place = (int32_t)r->rows.output;
    if (said + 1 < r->reply.max_tokens && (int64_t)r->reply.n_history < e->context)
        add_rows(e, r, &place, 1, 1);
}

size_t qn__schedule_room(const qn_engine *e, const qn_request *r)
{
    int64_t said = (int64_t)qn__reply_generated(&r->reply);
    int64_t most = e->step_tokens / e->n_running - 1; /* of the step, as much for each */
    most = e->context - r->sequence.length - 1 < most ? e->context - r->sequence.length - 1 : most;
    most = r->reply.max_tokens - said - 1 < most ? r->reply.max_tokens - said - 1 : most;
    return left_of(r) == 1 && r->first > 0 && most > 0 ? (size_t)most : 0;
}

/* Pages of tokens that both begin with. */
static int64_t common_pages(const qn__reply *a, const qn__reply *b)
{
    size_t most = a->n_history < b->n_history ? a->n_history : b->n_history, n = 0;
    while (n < most && a->history[n] == b->history[n])
        n++;
    return (int64_t)n / QN__PAGE;
}

/* Whether a prompt that has not begun begins as another does, which runs first: what they share
 * will be known soon, more than is now. */
static bool waits_for_another(const qn_engine *e, const qn_request *r)
{
    for (int i = 0; e->reuses && !r->sequence.length && i < e->n_running; i++) {
        const qn_request *q = e->running[i];
        bool ahead = q != r && q->adapter == r->adapter && q->first == 0 &&
                     (q->sequence.length || before(q, r));
        if (ahead && common_pages(&q->reply, &r->reply) > (int64_t)q->cached / QN__PAGE)
            return true;
    }
    return false;
}

/* What is known of a prompt that begins. */
static void attach_known(qn_engine *e, qn_request *r)
{
    if (!e->reuses || r->sequence.length)
        return;
    int64_t known =
        qn__prefix_attach(&e->prefix, &r->sequence, r->reply.history, (int64_t)r->reply.n_history);
    e->stats.cached_tokens += (uint64_t)known;
    if (r->first == 0)
        r->cached = (size_t)known;
}

/* Of those whose prompt is not through and who have no part yet, the next. */
static qn_request *next_prompt(const qn_engine *e)
{
    qn_request *next = NULL;
    for (int i = 0; i < e->n_running; i++) {
        qn_request *r = e->running[i];
        if (!r->ahead.n && left_of(r) > 1 && (!next || before(r, next)) && !waits_for_another(e, r))
            next = r;
    }
    return next;
}

/* Seconds for prompts in a step beside other requests' tokens. */
static double seconds_for_prompts(const qn_engine *e)
{
    double replies = (double)e->batch.n_parts, share = ((double)e->n_running - replies) / replies;
    double decode = qn__pace_decode(&e->pace, e->batch.n_tokens);
    double seconds = slower * decode * (share > 1 ? share : 1);
    return seconds > unseen ? seconds : unseen;
}

/* As many tokens of a prompt as the seconds allow; of the first prompt in a step, some at least. */
static int64_t piece_of(const qn_engine *e, const qn_request *r, double seconds, bool is_first)
{
    double fits = 0;
    if (seconds > 0)
        fits = qn__pace_fits(&e->pace, seconds, r->sequence.length);
    if (fits >= (double)e->step_tokens)
        return e->step_tokens;
    return is_first && fits < SMALLEST_PIECE ? SMALLEST_PIECE : (int64_t)fits;
}

static void add_prompts(qn_engine *e)
{
    bool beside = e->batch.n_tokens > 0;
    double seconds = beside ? seconds_for_prompts(e) : 0;
    int64_t room = e->step_tokens;
    qn_request *r;
    while (room > 0 && (r = next_prompt(e))) {
        attach_known(e, r);
        int64_t from = r->sequence.length, n = left_of(r) < room ? left_of(r) : room;
        int64_t piece = beside ? piece_of(e, r, seconds, room == e->step_tokens) : n;
        n = piece < n ? piece : n;
        if (!n)
            return;
        add_piece(e, r, n);
        room -= n;
        qn__prompt_work work = {0};
        qn__prompt_work_add(&work, n, from);
        seconds -= qn__pace_seconds(&e->pace, work);
    }
}

void qn__schedule_fill(qn_engine *e)
{
    qn__batch_begin(&e->batch, &e->cache);
    for (int i = 0; i < e->n_running; i++)
        e->running[i]->ahead = qn__no_rows;
    for (int i = e->n_running - 1; i >= 0; i--)
        if (qn__schedule_is_drawing(e->running[i]))
            add_drawn(e, e->running[i]);
    qn__batch_give(&e->batch, e->step.drawn, e->batch.n_tokens);
    for (int i = e->n_running - 1; i >= 0; i--)
        if (left_of(e->running[i]) == 1)
            add_newest(e, e->running[i]);
    add_prompts(e);
}

void qn__schedule(qn_engine *e)
{
    end_cancelled(e);
    while (e->first) {
        qn_request *r = e->first;
        make_place(e, r);
        if (!has_room(e, r))
            break;
        begin_request(e, r);
    }
}

void qn__schedule_learn(qn_engine *e, double seconds)
{
    int64_t rows = 0;
    qn__prompt_work work = {0};
    for (int i = 0; i < e->n_running; i++) {
        const qn_request *r = e->running[i];
        if (r->rows.n == 1 + (int64_t)r->guesses.n)
            rows += r->rows.n;
        else if (r->rows.n)
            qn__prompt_work_add(&work, r->rows.n, r->rows.from);
    }
    qn__pace_learn(&e->pace, seconds, rows, work);
}
