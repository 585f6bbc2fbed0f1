/* SPDX-License-Identifier: Apache-2.0
 *
 * Figures in the text format of Prometheus. Names are those of llama-server, and of vLLM where that
 * has none, behind "quern:".
 */
#include "server/inside.h"

static const double bounds[N_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                         0.5,   1,      2.5,   5,    10,    25,   50,  100};

void qn__observe(qn__histogram *h, double value)
{
    int i = 0;
    while (i < N_BUCKETS && value > bounds[i])
        i++;
    h->counts[i]++;
    h->sum += value;
}

static void put_head(qn__page *p, const char *name, const char *kind, const char *help)
{
    qn__put_format(p, "# HELP quern:%s %s\n# TYPE quern:%s %s\n", name, help, name, kind);
}

static void put_value(qn__page *p, const char *name, const char *kind, const char *help,
                      double value)
{
    put_head(p, name, kind, help);
    qn__put_format(p, "quern:%s %.17g\n", name, value);
}

static void put_histogram(qn__page *p, const char *name, const char *help, const qn__histogram *h)
{
    uint64_t n = 0;
    put_head(p, name, "histogram", help);
    for (int i = 0; i < N_BUCKETS; i++)
        qn__put_format(p, "quern:%s_bucket{le=\"%g\"} %llu\n", name, bounds[i],
                       (unsigned long long)(n += h->counts[i]));
    n += h->counts[N_BUCKETS];
    qn__put_format(p, "quern:%s_bucket{le=\"+Inf\"} %llu\nquern:%s_sum %.9g\nquern:%s_count %llu\n",
                   name, (unsigned long long)n, name, h->sum, name, (unsigned long long)n);
}

static void put_engine(qn__page *p, const qn__server *s)
{
    qn_engine_stats e = QN_INIT(qn_engine_stats);
    if (s->ready)
        qn_engine_get_stats(s->engine, &e);
    double most = (double)e.cache_most_bytes;
    put_value(p, "requests_processing", "gauge", "Replies that are being generated.",
              (double)e.running);
    put_value(p, "requests_deferred", "gauge", "Replies that wait for their turn.",
              (double)e.waiting + s->n_at_desk);
    put_value(p, "prompt_tokens_total", "counter", "Tokens of prompts that were run.",
              (double)e.prompt_tokens);
    put_value(p, "cached_tokens_total", "counter", "Tokens of prompts that were known already.",
              (double)e.cached_tokens);
    put_value(p, "tokens_predicted_total", "counter", "Tokens generated.",
              (double)e.generated_tokens);
    put_value(p, "guessed_tokens_total", "counter", "Guesses that were checked.",
              (double)e.guessed_tokens);
    put_value(p, "right_guesses_total", "counter", "Those of them that were said.",
              (double)e.right_tokens);
    put_value(p, "steps_total", "counter", "Steps of the model.", (double)e.steps);
    put_value(p, "preemptions_total", "counter", "Replies that had to make room and ran again.",
              (double)e.preempted);
    put_value(p, "kv_cache_bytes", "gauge", "Cache in use, for known beginnings, too.",
              (double)e.cache_bytes);
    put_value(p, "kv_cache_most_bytes", "gauge", "Cache in use at most.", most);
    put_value(p, "kv_cache_usage_perc", "gauge", "Cache in use, of what it may take; 1 is all.",
              most > 0 ? (double)e.cache_bytes / most : 0);
}

static void put_device(qn__page *p, const qn__server *s)
{
    qn_plan_stats plans = QN_INIT(qn_plan_stats);
    qn_memory_stats memory = QN_INIT(qn_memory_stats);
    if (s->ready) {
        qn_device_plan_stats(s->device, &plans);
        qn_device_memory(s->device, &memory);
    }
    put_value(p, "plan_bytes", "gauge", "Plans of steps that are kept.", (double)plans.bytes);
    put_value(p, "device_memory_bytes", "gauge", "Weights, cache and other arrays.",
              (double)memory.active);
}

void qn__put_metrics(qn__page *p, const qn__server *s)
{
    const qn__metrics *m = &s->metrics;
    put_head(p, "requests_total", "counter", "Requests answered, by HTTP status.");
    for (int i = 0; i < 600; i++)
        if (m->by_status[i])
            qn__put_format(p, "quern:requests_total{status=\"%d\"} %llu\n", i,
                           (unsigned long long)m->by_status[i]);
    put_value(p, "connections", "gauge", "Connections that are open.", s->n_connections);
    put_engine(p, s);
    put_device(p, s);
    put_histogram(p, "time_to_first_token_seconds", "From the request to its first token.",
                  &m->first_token);
    put_histogram(p, "inter_token_latency_seconds", "Between two tokens of a reply.",
                  &m->between_tokens);
    put_histogram(p, "request_queue_time_seconds", "Waiting for the first step.", &m->queued);
    put_histogram(p, "e2e_request_latency_seconds", "From the request to the end of its reply.",
                  &m->total);
}
