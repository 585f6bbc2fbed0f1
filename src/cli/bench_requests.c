/* SPDX-License-Identifier: Apache-2.0
 *
 * quern bench --requests: what quern serve does with many requests at once, without HTTP. All are
 * added at the same time to one engine, which this thread steps until they are done; no two
 * prompts begin alike, and nothing ends a reply before its time.
 */
#include "base/error.h"
#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>

enum { BETWEEN_ROWS = 64 }; /* positions of a page */

/* One request of a run. */
typedef struct asked {
    qn_request *request;
    int64_t n;     /* tokens that came */
    double newest; /* when the last one did */
} asked;

/* Requests of `prompt` tokens that generate `gen`, and what one run of them took. */
typedef struct trial {
    const plan *p;
    const subject *s;
    qn_engine *engine;
    int64_t prompt, gen;
    asked *asked;    /* [requests] */
    int32_t *ids;    /* [prompt] */
    double *first;   /* [requests] seconds until the first token */
    double *between; /* [requests * (gen - 1)] from token to token */
    size_t n_between;
    double *rates; /* [repeat] output tokens a second */
} trial;

static size_t requests_of(const trial *t)
{
    return (size_t)t->p->requests;
}

/* As in a server: the reply's end is its length. */
static qn_status ask_for_one(trial *t, size_t i, qn_error *err)
{
    const qn_generation_options g = {.size = sizeof g, .max_tokens = t->gen, .ignore_stop = true};
    const qn_request_options o = {.size = sizeof o, .generation = &g};
    for (int64_t k = 0; k < t->prompt; k++)
        t->ids[k] = (int32_t)(((uint64_t)k * 7919 + i * 104729) % (uint64_t)t->s->info.vocab_size);
    t->asked[i] = (asked){0};
    return qn_request_add(&t->asked[i].request, t->engine, t->ids, (size_t)t->prompt, &o, err);
}

/* Takes the tokens that are there; they came `at` seconds after the beginning. */
static qn_status take_tokens(trial *t, double at, qn_error *err)
{
    for (size_t i = 0; i < requests_of(t); i++) {
        asked *a = &t->asked[i];
        int32_t id = 0;
        while (a->n < t->gen && qn_request_next(a->request, &id, err) == QN_OK && id >= 0) {
            if (a->n++ == 0)
                t->first[i] = at;
            else
                t->between[t->n_between++] = at - a->newest;
            a->newest = at;
        }
        if (err->code != QN_OK)
            return err->code;
    }
    return QN_OK;
}

static qn_status check_done(const trial *t, qn_error *err)
{
    for (size_t i = 0; i < requests_of(t); i++)
        if (t->asked[i].n != t->gen)
            return qn__fail(err, QN_STATE, "request %zu ended behind %lld of %lld tokens", i,
                            (long long)t->asked[i].n, (long long)t->gen);
    return QN_OK;
}

/* One run, in `seconds`. */
static qn_status run_trial(trial *t, double *seconds, qn_error *err)
{
    bool busy = true;
    double begun = qn__seconds();
    t->n_between = 0;
    size_t n = 0;
    while (n < requests_of(t) && ask_for_one(t, n, err) == QN_OK)
        n++;
    while (err->code == QN_OK && busy) {
        if (atomic_load(&interrupted))
            qn__fail(err, QN_CANCELLED, "cancelled");
        else if (qn_engine_step(t->engine, &busy, err) == QN_OK)
            take_tokens(t, qn__seconds() - begun, err);
    }
    *seconds = qn__seconds() - begun;
    if (err->code == QN_OK)
        check_done(t, err);
    for (size_t i = 0; i < n; i++)
        qn_request_close(t->asked[i].request);
    return err->code;
}

static qn_status begin_trial(trial *t, qn_error *err)
{
    size_t n = requests_of(t), gaps = n * (size_t)t->gen;
    int64_t context = t->prompt + t->gen + 1;
    int64_t pages = (context + BETWEEN_ROWS - 1) / BETWEEN_ROWS + 1;
    qn_engine_options o = {.size = sizeof o,
                           .context = context,
                           .parallel = t->p->parallel,
                           .cache_tokens = pages * BETWEEN_ROWS * t->p->parallel,
                           .queue = (int)t->p->requests,
                           .no_prefix_reuse = true,
                           .cache_type_k = t->s->cache.k,
                           .cache_type_v = t->s->cache.v};
    t->asked = calloc(n, sizeof *t->asked);
    t->ids = malloc((size_t)t->prompt * sizeof *t->ids);
    t->first = malloc(n * sizeof *t->first);
    t->between = malloc(gaps * sizeof *t->between);
    t->rates = malloc((size_t)t->p->repeat * sizeof *t->rates);
    if (!t->asked || !t->ids || !t->first || !t->between || !t->rates)
        return qn__fail_memory(err, "requests");
    return qn_engine_open(&t->engine, t->s->model, &o, err);
}

static void end_trial(trial *t)
{
    qn_engine_close(t->engine);
    free(t->asked);
    free(t->ids);
    free(t->first);
    free(t->between);
    free(t->rates);
}

static void print_requests_head(const plan *p)
{
    if (p->form == FORM_MD)
        printf("| model | MiB | threads | requests | side by side | output tok/s | slowest | "
               "fastest | first token, ms: median | 99 %% | between tokens, ms: median | 99 %% |\n"
               "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
               "|\n");
    else if (p->form == FORM_CSV)
        printf("model,weight_bytes,parameters,tier,threads,requests,parallel,n_prompt,n_gen,repeat,"
               "tok_s,tok_s_min,tok_s_max,first_ms,first_ms_p99,between_ms,between_ms_p99\n");
    else
        printf("{\"results\":[");
}

/* Latencies are of the last run, of all its requests. */
static void print_requests(const trial *t, bool first)
{
    static const double none = 0;
    const plan *p = t->p;
    const qn_model_info *m = &t->s->info;
    size_t runs = (size_t)p->repeat, n = requests_of(t), gaps = t->n_between;
    sort_values(t->rates, runs);
    sort_values(t->first, n);
    sort_values(t->between, gaps);
    const double *between = gaps ? t->between : &none;
    gaps = gaps ? gaps : 1;
    double rate = median(t->rates, runs), least = t->rates[0], most = t->rates[runs - 1];
    double ms[] = {1e3 * median(t->first, n), 1e3 * quantile(t->first, n, 0.99),
                   1e3 * median(between, gaps), 1e3 * quantile(between, gaps, 0.99)};
    long long count = (long long)p->requests, prompt = (long long)t->prompt,
              gen = (long long)t->gen;
    unsigned long long weights = m->weight_bytes, parameters = m->parameters;
    if (first)
        print_requests_head(p);
    if (p->form == FORM_MD) {
        printf("| %s | %.1f | %d | %lld x pp%lld+tg%lld | %d | %.2f | %.2f | %.2f | %.2f | %.2f | "
               "%.3f | %.3f |\n",
               p->name, (double)weights / (1 << 20), t->s->threads, count, prompt, gen, p->parallel,
               rate, least, most, ms[0], ms[1], ms[2], ms[3]);
    } else if (p->form == FORM_CSV) {
        printf("\"%s\",%llu,%llu,%s,%d,%lld,%d,%lld,%lld,%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f\n",
               p->name, weights, parameters, t->s->tier, t->s->threads, count, p->parallel, prompt,
               gen, p->repeat, rate, least, most, ms[0], ms[1], ms[2], ms[3]);
    } else {
        printf("%s\n{\"model\":", first ? "" : ",");
        print_json_string(stdout, p->name, strlen(p->name));
        printf(",\"weight_bytes\":%llu,\"parameters\":%llu,\"tier\":\"%s\",\"threads\":%d,"
               "\"test\":\"%lld x pp%lld+tg%lld\",\"requests\":%lld,\"parallel\":%d,"
               "\"n_prompt\":%lld,\"n_gen\":%lld,\"repeat\":%d,\"tok_s\":%.4f,\"tok_s_min\":%.4f,"
               "\"tok_s_max\":%.4f,\"first_ms\":%.4f,\"first_ms_p99\":%.4f,\"between_ms\":%.4f,"
               "\"between_ms_p99\":%.4f}",
               weights, parameters, t->s->tier, t->s->threads, count, prompt, gen, count,
               p->parallel, prompt, gen, p->repeat, rate, least, most, ms[0], ms[1], ms[2], ms[3]);
    }
    fflush(stdout);
}

static qn_status time_trial(trial *t, qn_error *err)
{
    double seconds;
    if (begin_trial(t, err) != QN_OK || run_trial(t, &seconds, err) != QN_OK)
        return err->code;
    for (int i = 0; i < t->p->repeat && run_trial(t, &seconds, err) == QN_OK; i++)
        t->rates[i] = (double)(t->p->requests * t->gen) / seconds;
    return err->code;
}

qn_status time_requests(const plan *p, const subject *s, bool *first, qn_error *err)
{
    for (int i = 0; i < p->prompts.n; i++)
        for (int k = 0; k < p->gens.n; k++) {
            trial t = {.p = p, .s = s, .prompt = p->prompts.value[i], .gen = p->gens.value[k]};
            if (time_trial(&t, err) == QN_OK)
                print_requests(&t, *first);
            end_trial(&t);
            if (err->code != QN_OK)
                return err->code;
            *first = false;
        }
    return QN_OK;
}
