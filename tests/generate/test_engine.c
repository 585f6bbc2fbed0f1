/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: a request's tokens are those of a generation that runs alone, whatever runs beside
 * it, also where its beginning was known, where it had to give its place up, and where others are
 * cancelled; pages come back; what cannot be is refused. Threads add, read and cancel while one
 * steps. All of it also with steps that are enqueued ahead.
 */
#include "generate/model_test.h"
#include "models/golden_model.h"

#include "quern/engine.h"

#include <pthread.h>
#include <unistd.h>

enum { N_PROMPTS = 12, MOST = 40, ROOM = 400, CONTEXT = 310 };

static bool ahead; /* steps are enqueued ahead */

static qn_device *open_one(void **state)
{
    return ahead ? open_ahead(state) : open_device(state);
}

/* A step that nobody waited for may still run. */
static void expect_nothing_kept(qn_device *device)
{
    for (int i = 0; i < 1000 && memory_of(device).active; i++)
        usleep(5000);
    assert_int_equal(memory_of(device).active, 0);
}

/* A prompt, how it is sampled, and what a generation says to it. */
typedef struct prompt {
    int32_t ids[ROOM], want[MOST];
    size_t n, n_want;
    qn_sampling sampling;
    int64_t max_tokens;
} prompt;

static qn_generation_options options_of(const prompt *p)
{
    return (qn_generation_options){.size = sizeof(qn_generation_options),
                                   .sampling = &p->sampling,
                                   .max_tokens = p->max_tokens};
}

static void run_prompt(qn_model *model, prompt *p, const char *type)
{
    qn_session *session;
    qn_generation *g;
    qn_error err = {0};
    qn_session_options with = {
        .size = sizeof with, .context = CONTEXT, .cache_type_k = type, .cache_type_v = type};
    qn_generation_options o = options_of(p);
    int32_t id;
    assert_int_equal(qn_session_open(&session, model, &with, &err), QN_OK);
    assert_int_equal(qn_generation_begin(&g, session, p->ids, p->n, &o, &err), QN_OK);
    while (qn_generation_next(g, &id, &err) == QN_OK && id >= 0)
        p->want[p->n_want++] = id;
    qn_generation_end(g);
    qn_session_close(session);
}

/* Prompts of different lengths, of which some share a beginning, greedy and sampled ones. */
static prompt *make_prompts(qn_model *model, const char *type)
{
    prompt *p = calloc(N_PROMPTS, sizeof *p);
    size_t vocab = vocab_of(model);
    for (size_t i = 0; i < N_PROMPTS; i++) {
        p[i].n = i == 5 ? 128 : i == 7 ? CONTEXT - 4 : 3 + i * 53 % 220; /* whole pages; no room */
        p[i].max_tokens = (int64_t)(5 + i * 7 % (MOST - 5));
        p[i].sampling.size = sizeof p[i].sampling;
        p[i].sampling.temperature = i % 2 ? 1 : 0;
        p[i].sampling.top_k = i % 3 ? 0 : 20;
        p[i].sampling.repeat_penalty = i % 4 == 3 ? 1.2f : 0;
        p[i].sampling.seed = i;
        random_tokens(p[i].ids, ROOM, vocab, i / 3);
        random_tokens(p[i].ids + 150, ROOM - 150, vocab, 100 + i);
        for (size_t j = 100; i % 4 == 2 && j < ROOM; j++) /* some repeat themselves */
            p[i].ids[j] = p[i].ids[j - 20];
        run_prompt(model, &p[i], type);
    }
    return p;
}

/* With guesses: so many from the text, and by a draft model. */
static qn_request *add_guessing(qn_engine *engine, const prompt *p, int priority, int text,
                                int draft)
{
    qn_request *r;
    qn_error err = {0};
    qn_generation_options g = options_of(p);
    g.prompt_lookup = text;
    g.draft_tokens = draft;
    qn_request_options o = {.size = sizeof o, .generation = &g, .priority = priority};
    if (qn_request_add(&r, engine, p->ids, p->n, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return r;
}

static qn_request *add(qn_engine *engine, const prompt *p, int priority)
{
    return add_guessing(engine, p, priority, 0, 0);
}

/* What there is to read of a request so far, which must be what is wanted; whether it has ended. */
static bool read_tokens(qn_request *r, const prompt *p, size_t *n)
{
    qn_error err = {0};
    int32_t id;
    while (qn_request_next(r, &id, &err) == QN_OK && id >= 0) {
        assert_true(*n < p->n_want);
        assert_int_equal(id, p->want[(*n)++]);
    }
    assert_int_equal(err.code, QN_OK);
    bool ended = qn_request_finish(r) != QN_FINISH_NONE;
    assert_true(!ended || *n == p->n_want);
    return ended;
}

static qn_engine_stats stats_of(qn_engine *engine)
{
    qn_engine_stats stats = QN_INIT(qn_engine_stats);
    assert_int_equal(qn_engine_get_stats(engine, &stats), QN_OK);
    return stats;
}

static qn_engine *open_engine(qn_model *model, const qn_engine_options *o)
{
    qn_engine *engine;
    qn_error err = {0};
    if (qn_engine_open(&engine, model, o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return engine;
}

/* All prompts twice, added at random moments with random priorities, some of them cancelled. */
static void check_mix(qn_model *model, const prompt *p, const qn_engine_options *o, uint64_t seed)
{
    qn_engine *engine = open_engine(model, o);
    qn_request *requests[2 * N_PROMPTS] = {NULL};
    size_t n[2 * N_PROMPTS] = {0}, n_added = 0, n_ended = 0;
    bool ended[2 * N_PROMPTS] = {false}, busy = true;
    qn_error err = {0};
    for (int step = 0; n_ended < 2 * N_PROMPTS; step++) {
        assert_true(step < 20000);
        if (n_added < 2 * N_PROMPTS && test_random(&seed) > 0.3) {
            const prompt *of = &p[n_added % N_PROMPTS];
            bool plain = ahead && n_added > N_PROMPTS / 2; /* a guess keeps all from going ahead */
            int text = step % 3 || plain ? 0 : 9, draft = o->draft && !plain ? step % 4 * 3 : 0;
            requests[n_added++] =
                add_guessing(engine, of, test_random(&seed) > 0.6 ? 1 : 0, text, draft);
        }
        assert_int_equal(qn_engine_step(engine, &busy, &err), QN_OK);
        for (size_t i = 0; i < n_added; i++) {
            if (ended[i])
                continue;
            ended[i] = read_tokens(requests[i], &p[i % N_PROMPTS], &n[i]);
            if (!ended[i] && i % 5 == 4 && n[i] > 2) {
                qn_request_close(requests[i]);
                requests[i] = NULL;
                ended[i] = true;
            }
            n_ended += ended[i];
        }
    }
    qn_engine_step(engine, &busy, &err);
    assert_false(busy);
    qn_engine_stats stats = stats_of(engine);
    assert_int_equal(stats.running + stats.waiting, 0);
    printf("parallel %d, cache %lld: %llu steps, %llu prompt tokens, %llu known, %llu preempted, "
           "%llu of %llu guesses right, %llu steps ahead\n",
           o->parallel, (long long)o->cache_tokens, (unsigned long long)stats.steps,
           (unsigned long long)stats.prompt_tokens, (unsigned long long)stats.cached_tokens,
           (unsigned long long)stats.preempted, (unsigned long long)stats.right_tokens,
           (unsigned long long)stats.guessed_tokens, (unsigned long long)stats.steps_ahead);
    assert_true(!ahead || stats.steps_ahead > stats.steps / 8);
    assert_true(!o->draft || stats.guessed_tokens > 0);
    assert_true(o->draft != model || stats.right_tokens > (ahead ? 10 : 30));
    assert_true(o->no_prefix_reuse ? stats.cached_tokens == 0 : stats.cached_tokens > 0);
    if (o->no_prefix_reuse)
        assert_int_equal(stats.cache_bytes, 0);
    for (size_t i = 0; i < 2 * N_PROMPTS; i++)
        qn_request_close(requests[i]);
    qn_engine_close(engine);
}

static const char *const names[] = {NULL, "gemma3/text", "mistral/window"}; /* NULL: the demo */

static void test_mixes(void **state)
{
    static const qn_engine_options options[] = {
        {.size = sizeof(qn_engine_options), .context = CONTEXT},
        {.size = sizeof(qn_engine_options), .context = CONTEXT, .parallel = 3, .cache_tokens = 600},
        {.size = sizeof(qn_engine_options),
         .context = CONTEXT,
         .parallel = 8,
         .step_tokens = 40,
         .no_prefix_reuse = true},
        {.size = sizeof(qn_engine_options),
         .context = CONTEXT,
         .parallel = 5,
         .cache_tokens = 330,
         .step_tokens = 70},
    };
    qn_device *device = open_one(state);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[600];
        if (names[i])
            golden_directory(path, sizeof path, names[i]);
        qn_model *model = names[i] ? open_model_at(device, path, false)
                                   : open_model(device, "models/demo", false);
        prompt *p = make_prompts(model, NULL);
        qn_model *other = open_other(device, vocab_of(model));
        for (size_t k = FEWER && i % 2; k < sizeof options / sizeof *options; k += FEWER ? 2 : 1) {
            qn_engine_options o = options[k];
            o.draft = k == 0 ? NULL : k == 2 ? other : model;
            check_mix(model, p, &o, 11 * i + k);
        }
        free(p);
        qn_model_close(model);
        qn_model_close(other);
    }
    expect_nothing_kept(device);
    qn_device_close(device);
}

/* However keys and values are kept, each request has the tokens of a session that keeps them so. */
static void test_cache_types(void **state)
{
    static const char *const types[] = {"f16", "q8_0", "q4_0"};
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    for (size_t i = 0; i < sizeof types / sizeof *types; i += FEWER ? 2 : 1) {
        prompt *p = make_prompts(model, types[i]);
        qn_engine_options o = {.size = sizeof o,
                               .context = CONTEXT,
                               .parallel = 5,
                               .cache_tokens = 330,
                               .cache_type_k = types[i],
                               .cache_type_v = types[i]};
        check_mix(model, p, &o, i);
        free(p);
    }
    qn_model_close(model);
    expect_nothing_kept(device);
    qn_device_close(device);
}

/* Unknown ones, and blocks that do not divide a head's length, are refused. */
static void test_wrong_cache_types(void **state)
{
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    static const char *const types[] = {"q4_k", "tq2_0", "i2_s", "q9", "affine4-g128-f16", ""};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_session *session;
        qn_error err = {0};
        qn_session_options o = {.size = sizeof o, .cache_type_v = types[i]};
        assert_int_equal(qn_session_open(&session, model, &o, &err), QN_UNSUPPORTED);
        assert_non_null(strstr(err.message, types[i]));
        assert_null(session);
        assert_int_equal(qn_model_cache_bytes(model, &o), 0);
    }
    qn_model_close(model);
    qn_device_close(device);
}

/* The second prompt runs what differs alone. */
static void test_prefix(void **state)
{
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    prompt *p = calloc(2, sizeof *p);
    random_tokens(p[0].ids, ROOM, vocab_of(model), 1);
    p[1] = p[0];
    for (int i = 0; i < 2; i++) {
        p[i].n = 300;
        p[i].max_tokens = 3;
        p[i].sampling.size = sizeof p[i].sampling;
        p[i].ids[299] = 7 + i;
        run_prompt(model, &p[i], NULL);
    }
    qn_engine *engine = open_engine(model, NULL);
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        bool busy = true;
        qn_request *r = add(engine, &p[i], 0);
        while (busy)
            assert_int_equal(qn_engine_step(engine, &busy, NULL), QN_OK);
        assert_true(read_tokens(r, &p[i], &n));
        qn_request_metrics m = QN_INIT(qn_request_metrics);
        assert_int_equal(qn_request_get_metrics(r, &m), QN_OK);
        assert_int_equal(m.cached_tokens, i ? 256 : 0);
        assert_int_equal(m.prompt_tokens, 300);
        assert_int_equal(m.generated_tokens, p[i].n_want);
        qn_request_close(r);
    }
    assert_int_equal(stats_of(engine).prompt_tokens, 300 + 44);
    qn_engine_close(engine);
    free(p);
    qn_model_close(model);
    qn_device_close(device);
}

static void expect(qn_engine *engine, const int32_t *ids, size_t n, int64_t max_tokens,
                   qn_status status, const char *says)
{
    qn_request *r;
    qn_error err = {0};
    qn_generation_options g = {.size = sizeof g, .max_tokens = max_tokens};
    qn_request_options o = {.size = sizeof o, .generation = &g};
    assert_int_equal(qn_request_add(&r, engine, ids, n, &o, &err), status);
    assert_null(r);
    if (!strstr(err.message, says))
        fail_msg("\"%s\" says nothing of \"%s\"", err.message, says);
}

/* Prompts that come at once and begin alike: what they share is run once. */
static void test_prefix_at_once(void **state)
{
    enum { N = 6 };
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    prompt *p = calloc(N, sizeof *p);
    qn_request *r[N];
    qn_engine_options o = {.size = sizeof o, .step_tokens = 2000}; /* room for all */
    qn_engine *engine = open_engine(model, &o);
    random_tokens(p[0].ids, ROOM, vocab_of(model), 1);
    for (int i = 0; i < N; i++) {
        memcpy(p[i].ids, p[0].ids, sizeof p[i].ids);
        p[i].n = 300;
        p[i].max_tokens = 3 + i;
        p[i].sampling.size = sizeof p[i].sampling;
        p[i].ids[299] = 7 + i / 2; /* also the same ones */
        run_prompt(model, &p[i], NULL);
        r[i] = add(engine, &p[i], i == 3);
    }
    for (bool busy = true; busy;)
        assert_int_equal(qn_engine_step(engine, &busy, NULL), QN_OK);
    for (int i = 0; i < N; i++) {
        size_t n = 0;
        assert_true(read_tokens(r[i], &p[i], &n));
        qn_request_metrics m = QN_INIT(qn_request_metrics);
        assert_int_equal(qn_request_get_metrics(r[i], &m), QN_OK);
        assert_int_equal(m.cached_tokens, i == 3 ? 0 : 256);
        qn_request_close(r[i]);
    }
    assert_int_equal(stats_of(engine).prompt_tokens, 300 + (N - 1) * 44);
    qn_engine_close(engine);
    free(p);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    int32_t ids[ROOM], outside[] = {3, -1};
    qn_error err = {0};
    qn_engine *engine;
    random_tokens(ids, ROOM, vocab_of(model), 1);
    qn_engine_options o = {.size = sizeof o, .context = 1 << 30};
    assert_int_equal(qn_engine_open(&engine, model, &o, &err), QN_INVALID);
    o = (qn_engine_options){
        .size = sizeof o, .context = 200, .cache_tokens = INT64_MAX, .step_tokens = INT64_MAX};
    engine = open_engine(model, &o);
    assert_true(stats_of(engine).cache_most_bytes > 0);
    expect(engine, ids, 5, -1, QN_INVALID, "max_tokens -1");
    qn_engine_close(engine);
    o = (qn_engine_options){.size = sizeof o, .context = 200, .cache_tokens = 128, .queue = 2};
    engine = open_engine(model, &o);
    expect(engine, ids, 201, 1, QN_LIMIT, "a prompt of 201 tokens does not fit a context of 200");
    expect(engine, ids, 0, 1, QN_INVALID, "no prompt");
    expect(engine, outside, 2, 1, QN_INVALID, "token 1 is -1");
    prompt p = {.n = 5, .max_tokens = 2, .sampling = {.size = sizeof(qn_sampling)}};
    memcpy(p.ids, ids, sizeof p.ids);
    run_prompt(model, &p, NULL);
    qn_generation_options drafts = {.size = sizeof drafts, .draft_tokens = 3};
    qn_request_options with = {.size = sizeof with, .generation = &drafts};
    qn_request *none;
    err = (qn_error){0};
    assert_int_equal(qn_request_add(&none, engine, ids, 5, &with, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "no draft model"));
    err = (qn_error){0};
    qn_request *two[] = {add(engine, &p, 0), add(engine, &p, 0)};
    expect(engine, ids, 5, 2, QN_BUSY, "2 requests wait already");
    qn_request_cancel(two[0]);
    bool busy;
    size_t n = 0;
    assert_int_equal(qn_engine_step(engine, &busy, &err), QN_OK);
    int32_t id;
    assert_int_equal(qn_request_next(two[0], &id, NULL), QN_CANCELLED);
    read_tokens(two[1], &p, &n);
    qn_engine_close(engine); /* the second one ends with it */
    while (qn_request_next(two[1], &id, NULL) == QN_OK)
        assert_true(id >= 0);
    assert_int_equal(qn_request_finish(two[1]), QN_FINISH_NONE);
    qn_request_close(two[0]);
    qn_request_close(two[1]);
    qn_model_close(model);
    expect_nothing_kept(device);
    qn_device_close(device);
}

/* A reply that says one token again and again, which guesses find, until its context is full: no
 * guess may want a place behind that, since no page is kept for one. Steps say one or two tokens,
 * so of prompts that differ by one token some come to the last place with a guess. */
static void test_full_context(void **state)
{
    enum { PROMPTS = 4, FULL = 128, SAYS = 7 }; /* FULL: whole pages */
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    qn_token_bias one = {.id = SAYS, .bias = 1e6f};
    qn_sampling sampling = {.size = sizeof sampling, .bias = &one, .n_bias = 1};
    qn_generation_options g = {
        .size = sizeof g, .sampling = &sampling, .ignore_stop = true, .prompt_lookup = 9};
    qn_request_options o = {.size = sizeof o, .generation = &g};
    qn_engine_options with = {.size = sizeof with, .context = FULL, .parallel = 1};
    qn_engine *engine = open_engine(model, &with);
    for (size_t n = 10; n < 10 + PROMPTS; n++) {
        qn_request *r;
        qn_error err = {0};
        int32_t ids[FULL], id;
        random_tokens(ids, n, vocab_of(model), 5);
        assert_int_equal(qn_request_add(&r, engine, ids, n, &o, &err), QN_OK);
        for (bool busy = true; busy;)
            assert_int_equal(qn_engine_step(engine, &busy, &err), QN_OK);
        size_t said = 0;
        for (; qn_request_next(r, &id, &err) == QN_OK && id >= 0; said++)
            assert_int_equal(id, SAYS);
        if (err.code != QN_OK)
            fail_msg("%zu tokens, %zu more: %s", n, said, err.message);
        assert_int_equal(said, FULL - n + 1); /* the last one is told, and does not run */
        assert_int_equal(qn_request_finish(r), QN_FINISH_LENGTH);
        qn_request_close(r);
    }
    assert_true(stats_of(engine).right_tokens > PROMPTS * FULL / 4);
    qn_engine_close(engine);
    qn_model_close(model);
    expect_nothing_kept(device);
    qn_device_close(device);
}

/* Log-probabilities are those of the token that was given, whatever has run since. */
static void test_logprobs(void **state)
{
    enum { N = 8, TOP = 3 };
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    qn_generation_options g = {.size = sizeof g,
                               .max_tokens = N,
                               .logprobs = true,
                               .top_logprobs = TOP,
                               .ignore_stop = true,
                               .prompt_lookup = 4};
    qn_request_options o = {.size = sizeof o, .generation = &g};
    qn_error err = {0};
    int32_t ids[20], id;
    random_tokens(ids, 20, vocab_of(model), 5);
    qn_session *session = open_session(model, 0, 1);
    qn_generation *alone;
    assert_int_equal(qn_generation_begin(&alone, session, ids, 20, &g, &err), QN_OK);
    qn_engine *engine = open_engine(model, NULL);
    qn_request *r;
    bool busy = true;
    assert_int_equal(qn_request_add(&r, engine, ids, 20, &o, &err), QN_OK);
    for (int i = 0; i < 5; i++) /* ahead of who reads */
        qn_engine_step(engine, &busy, &err);
    for (int i = 0; i < N; i++) {
        size_t n, n_want;
        assert_int_equal(qn_generation_next(alone, &id, &err), QN_OK);
        const qn_logprob *want = qn_generation_logprobs(alone, &n_want);
        assert_int_equal(qn_request_next(r, &id, &err), QN_OK);
        const qn_logprob *got = qn_request_logprobs(r, &n);
        qn_engine_step(engine, &busy, &err);
        assert_int_equal(n, n_want);
        assert_int_equal(n, TOP + 1);
        assert_memory_equal(got, want, n * sizeof *got);
        assert_int_equal(got->id, id);
    }
    qn_request_close(r);
    qn_engine_close(engine);
    qn_generation_end(alone);
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

/* Where the device's memory is short, known beginnings go first. */
static void test_short_memory(void **state)
{
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    prompt *p = make_prompts(model, NULL);
    qn_engine_options o = {.size = sizeof o, .context = CONTEXT, .parallel = 8};
    qn_engine *engine = open_engine(model, &o);
    for (int k = 0; k < 2 * N_PROMPTS; k++) {
        const prompt *of = &p[k * 5 % N_PROMPTS];
        qn_request *r = add(engine, of, 0);
        size_t n = 0;
        bool busy = true;
        while (busy)
            assert_int_equal(qn_engine_step(engine, &busy, NULL), QN_OK);
        assert_true(read_tokens(r, of, &n));
        qn_request_close(r);
        if (k == 3) /* room for what runs, not for all that is known */
            qn_device_set_memory_limit(device,
                                       memory_of(device).active + memory_of(device).workspace);
    }
    qn_engine_close(engine);
    free(p);
    qn_model_close(model);
    qn_device_close(device);
}

/* Long requests, all at once, to an engine whose usual cache is twice of what the device has: they
 * wait for each other. */
static void test_little_room(void **state)
{
    enum { REQUESTS = 16, LONG = 7 };
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    prompt *p = make_prompts(model, NULL);
    qn_engine_options o = {
        .size = sizeof o, .context = CONTEXT, .step_tokens = 64, .no_prefix_reuse = true};
    uint64_t most = 0;
    for (int run = 0; run < 2; run++) {
        qn_request *requests[REQUESTS];
        qn_engine *engine = open_engine(model, &o);
        uint64_t bytes = stats_of(engine).cache_most_bytes;
        bool busy = true;
        assert_true(run ? bytes > most / CONTEXT && bytes <= most / 2 : bytes > 0);
        for (int i = 0; i < REQUESTS; i++)
            requests[i] = add(engine, &p[LONG], 0);
        while (busy)
            assert_int_equal(qn_engine_step(engine, &busy, NULL), QN_OK);
        for (int i = 0; i < REQUESTS; i++) {
            size_t n = 0;
            assert_true(read_tokens(requests[i], &p[LONG], &n));
            qn_request_close(requests[i]);
        }
        qn_engine_close(engine);
        most = bytes;
        qn_device_set_memory_limit(device, memory_of(device).active + memory_of(device).workspace +
                                               most / 2);
    }
    free(p);
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct caller {
    pthread_t thread;
    qn_engine *engine;
    const prompt *prompts;
    int number;
} caller;

static void *call(void *data)
{
    const caller *c = data;
    for (int k = 0; k < 6; k++) {
        const prompt *p = &c->prompts[(c->number * 5 + k) % N_PROMPTS];
        qn_request *r = add_guessing(c->engine, p, k % 2, k % 3 ? 4 : 0, 0);
        size_t n = 0;
        while (!read_tokens(r, p, &n) && !(k == 3 && n > 1))
            qn_request_wait(r, 5);
        qn_request_close(r);
    }
    return NULL;
}

typedef struct driver {
    pthread_t thread;
    qn_engine *engine;
    atomic_bool stop;
} driver;

static void *drive(void *data)
{
    driver *d = data;
    bool busy;
    while (!atomic_load(&d->stop))
        if (qn_engine_wait(d->engine, 0.05))
            assert_int_equal(qn_engine_step(d->engine, &busy, NULL), QN_OK);
    return NULL;
}

static void test_threads(void **state)
{
    qn_device *device = open_one(state);
    qn_model *model = open_model(device, "models/demo", false);
    prompt *p = make_prompts(model, NULL);
    qn_engine_options o = {.size = sizeof o,
                           .context = CONTEXT,
                           .parallel = 4,
                           .cache_tokens = 900,
                           .step_tokens = 64};
    driver d = {.engine = open_engine(model, &o)};
    caller callers[5];
    pthread_create(&d.thread, NULL, drive, &d);
    for (int i = 0; i < 5; i++) {
        callers[i] = (caller){.engine = d.engine, .prompts = p, .number = i};
        pthread_create(&callers[i].thread, NULL, call, &callers[i]);
    }
    for (int i = 0; i < 5; i++)
        pthread_join(callers[i].thread, NULL);
    atomic_store(&d.stop, true);
    pthread_join(d.thread, NULL);
    qn_engine_close(d.engine);
    free(p);
    qn_model_close(model);
    expect_nothing_kept(device);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixes),
        cmocka_unit_test(test_cache_types),
        cmocka_unit_test(test_wrong_cache_types),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_prefix_at_once),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_short_memory),
        cmocka_unit_test(test_little_room),
        cmocka_unit_test(test_threads),
    };
    int failed = cmocka_run_group_tests(tests, temp_begin, temp_end);
    ahead = true;
    return failed + cmocka_run_group_tests_name("ahead", tests, temp_begin, temp_end);
}
