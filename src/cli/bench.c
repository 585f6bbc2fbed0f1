/* SPDX-License-Identifier: Apache-2.0
 *
 * quern bench: speeds of a model, or of random weights of its shape, beside what the machine can
 * do. In the shape of llama-bench, so that the two can be laid side by side.
 */
#include "base/error.h"
#include "cli/bench.h"
#include "cli/commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_DEPTH = 1 << 20, MOST_BATCH = 256 };

typedef struct test {
    int64_t prompt, gen, depth, batch; /* prompt or gen is 0 */
} test;

/* Tokens a second. */
typedef struct speeds {
    double median, least, most;
} speeds;

/* ---- shapes ---------------------------------------------------------------------------------- */

static const struct {
    const char *name, *config;
} shapes[] = {
    {"llama-1b", "{\"model_type\":\"llama\",\"hidden_size\":2048,\"intermediate_size\":8192,"
                 "\"num_hidden_layers\":16,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
                 "\"head_dim\":64,\"vocab_size\":128256,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"rope_theta\":500000,\"tie_word_embeddings\":true,"
                 "\"hidden_act\":\"silu\"}"},
    {"llama-8b", "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,"
                 "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
                 "\"head_dim\":128,\"vocab_size\":128256,\"max_position_embeddings\":131072,"
                 "\"rms_norm_eps\":1e-5,\"rope_theta\":500000,\"tie_word_embeddings\":false,"
                 "\"hidden_act\":\"silu\"}"},
    {"qwen3-0.6b", "{\"model_type\":\"qwen3\",\"hidden_size\":1024,\"intermediate_size\":3072,"
                   "\"num_hidden_layers\":28,\"num_attention_heads\":16,\"num_key_value_heads\":8,"
                   "\"head_dim\":128,\"vocab_size\":151936,\"max_position_embeddings\":40960,"
                   "\"rms_norm_eps\":1e-6,\"rope_theta\":1000000,\"tie_word_embeddings\":true,"
                   "\"hidden_act\":\"silu\"}"},
};

static const char *built_in_shape(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(shapes[i].name, name))
            return shapes[i].config;
    return NULL;
}

/* llama.cpp's choice: a head that is read whole for each token keeps six bits. */
static const char *usual_head(const char *type)
{
    static const char *const narrow[] = {"q2_k",   "q3_k",   "q4_0", "q4_1",  "q4_k",
                                         "q5_0",   "q5_1",   "q5_k", "tq1_0", "tq2_0",
                                         "iq4_nl", "iq4_xs", "mxfp4"};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        if (!strcmp(narrow[i], type))
            return "q6_k";
    return type;
}

qn_status shape_text(const char *shape, const char **text, size_t *size, char **owned,
                     qn_error *err)
{
    *owned = NULL;
    *text = built_in_shape(shape);
    if (*text) {
        *size = strlen(*text);
        return QN_OK;
    }
    if (read_input(shape, owned, size, err) == QN_OK)
        *text = *owned;
    return err->code;
}

static qn_status open_shape(subject *s, const arguments *a, const qn_model_options *options,
                            qn_error *err)
{
    const char *type = a->type ? a->type : "bf16", *config;
    char *owned;
    size_t size;
    if (shape_text(a->shape, &config, &size, &owned, err) == QN_OK)
        qn_model_open_random(&s->model, s->device, config, size, type,
                             a->head_type ? a->head_type : usual_head(type), options, err);
    free(owned);
    return err->code;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Rows of the matrix that a prompt's tokens do not go through: the head's, or the embedding's. */
static void count_work(subject *s)
{
    const qn_model_info *m = &s->info;
    uint64_t table = (uint64_t)(m->vocab_size * m->hidden_size);
    bool own_head = qn_model_parameter(s->model, "lm_head.weight") != NULL;
    s->products = m->parameters - (own_head ? 2 : 1) * table;
    /* an embedding beside a head is read one row a token */
    double share = own_head ? (double)table / (double)m->parameters : 0;
    s->token_bytes = (uint64_t)((double)m->weight_bytes * (1 - share));
}

static int open_subject(subject *s, const arguments *a, int threads)
{
    qn_error err = {0};
    char path[PATH_ROOM];
    const char *name;
    qn_device_options device = device_options_of(a);
    device.threads = threads;
    device.log = NULL;
    const qn_adapter adapter = {.path = a->adapter};
    qn_model_options options = {.size = sizeof options,
                                .no_tokenizer = true,
                                .batch_invariant = a->batch_invariant,
                                .adapters = &adapter,
                                .n_adapters = a->adapter != NULL};
    *s = (subject){.info = QN_INIT(qn_model_info), .tier = "", .threads = threads};
    if (products_of(a->products, &options.products, &err) != QN_OK ||
        cache_types_of(a, &s->cache, &err) != QN_OK || device_of(a, &name, &err) != QN_OK ||
        qn_device_open(&s->device, name, &device, &err) != QN_OK)
        return failed(&err);
    do {
        if (a->shape)
            open_shape(s, a, &options, &err);
        else if (locate_model(a->model, path, &err) == QN_OK)
            qn_model_open(&s->model, s->device, path, &options, &err);
    } while (turn_to_cpu(&s->device, a, &device, &err));
    if (err.code != QN_OK)
        return failed(&err);
    warn_of_layers(a, s->device, s->model);
    const char *purpose;
    char text[128];
    s->host = !strcmp(qn_device_name(s->device), "cpu");
    qn_device_describe(s->device, text, sizeof text);
    snprintf(s->text, sizeof s->text, "%.20s: %s", qn_device_name(s->device), text);
    qn_model_get_info(s->model, &s->info);
    qn_device_kernel(s->device, 0, &purpose, &s->tier);
    count_work(s);
    return 0;
}

static void close_subject(subject *s)
{
    qn_model_close(s->model);
    qn_device_close(s->device);
}

/* ---- timing ---------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_values(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
}

double quantile(const double *sorted, size_t n, double share)
{
    size_t at = (size_t)ceil(share * (double)n);
    return sorted[at > 0 ? at - 1 : 0];
}

double median(const double *sorted, size_t n)
{
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* [batch, n] tokens, none like its neighbour. */
static int32_t *make_tokens(const subject *s, int64_t batch, int64_t n)
{
    int32_t *ids = malloc((size_t)(batch * n + 1) * sizeof *ids);
    for (int64_t i = 0; ids && i < batch * n; i++)
        ids[i] = (int32_t)((uint64_t)i * 7919 % (uint64_t)s->info.vocab_size);
    return ids;
}

/* One token behind the other: each sequence takes what it generates. */
static qn_status generate(qn_session *session, const test *t, const int32_t *ids, qn_error *err)
{
    int32_t next[MOST_BATCH];
    qn_status status = QN_OK;
    memcpy(next, ids, (size_t)t->batch * sizeof *next);
    for (int64_t i = 0; status == QN_OK && i < t->gen; i++)
        status = qn_session_step_greedy_batch(session, next, next, err);
    return status;
}

/* Seconds of one run, behind `depth` tokens. */
static qn_status run_once(qn_session *session, const test *t, int32_t *ids, double *taken,
                          qn_error *err)
{
    qn_session_rewind(session, t->depth);
    int64_t missing = t->depth - qn_session_length(session);
    if (missing && qn_session_append(session, ids, (size_t)missing, err) != QN_OK)
        return err->code;
    double begun = qn__seconds();
    if (t->prompt)
        qn_session_append(session, ids, (size_t)t->prompt, err);
    else
        generate(session, t, ids, err);
    *taken = qn__seconds() - begun;
    return err->code;
}

static qn_status time_test(const subject *s, const test *t, int repeat, speeds *out, qn_error *err)
{
    int64_t n = t->prompt ? t->prompt : t->gen, most = n > t->depth ? n : t->depth;
    qn_session_options o = {.size = sizeof o,
                            .context = t->depth + n, /* no step ahead is left to the next run */
                            .batch = (int)t->batch,
                            .cancel = &interrupted,
                            .cache_type_k = s->cache.k,
                            .cache_type_v = s->cache.v};
    int32_t *ids = make_tokens(s, t->batch, most);
    double *taken = malloc((size_t)repeat * sizeof *taken), warm;
    qn_session *session = NULL;
    if (!ids || !taken)
        qn__fail_memory(err, "tokens");
    else if (qn_session_open(&session, s->model, &o, err) == QN_OK)
        run_once(session, t, ids, &warm, err);
    for (int i = 0; err->code == QN_OK && i < repeat; i++)
        run_once(session, t, ids, &taken[i], err);
    if (err->code == QN_OK) {
        double tokens = (double)(n * t->batch);
        sort_values(taken, (size_t)repeat);
        *out = (speeds){tokens / median(taken, (size_t)repeat), tokens / taken[repeat - 1],
                        tokens / taken[0]};
    }
    qn_session_close(session);
    free(ids);
    free(taken);
    return err->code;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void name_test(const test *t, char *text, size_t room)
{
    size_t n = (size_t)snprintf(text, room, "%s%lld", t->prompt ? "pp" : "tg",
                                (long long)(t->prompt ? t->prompt : t->gen));
    if (t->batch > 1)
        n += (size_t)snprintf(text + n, room - n, " x %lld", (long long)t->batch);
    if (t->depth)
        snprintf(text + n, room - n, " @ d%lld", (long long)t->depth);
}

/* What a speed comes to a second: bytes of weights in generating, operations in a prompt. */
static double rate_of(const subject *s, const test *t, const speeds *v)
{
    return t->prompt ? 2 * v->median * (double)s->products
                     : v->median / (double)t->batch * (double)s->token_bytes;
}

/* The most that the device was seen to do of that, which for a prompt hangs on what can multiply
 * its weights; 0: it was not measured. */
static double ceiling_of(const subject *s, const test *t)
{
    const qn_ceilings *c = &s->best;
    const char *types = s->info.types; /* the most frequent first */
    bool floats = *types == 'f' || !strncmp(types, "bf", 2);
    double fastest = c->f32 > c->bf16 ? c->f32 : c->bf16;
    return !t->prompt ? c->read : !floats && c->int8 > fastest ? c->int8 : fastest;
}

static void print_table_head(const plan *p)
{
    if (p->form == FORM_MD)
        printf("| model | MiB | threads | test | tok/s | slowest | fastest | | of the ceiling |\n"
               "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |\n");
    else if (p->form == FORM_CSV)
        printf("model,weight_bytes,parameters,tier,threads,n_prompt,n_gen,n_depth,batch,repeat,"
               "tok_s,tok_s_min,tok_s_max,gb_s,gop_s,of_ceiling\n");
    else
        printf("{\"results\":[");
}

static void print_row(const plan *p, const subject *s, const test *t, const speeds *v, bool first)
{
    char name[80];
    name_test(t, name, sizeof name);
    double rate = rate_of(s, t, v) / 1e9, ceiling = ceiling_of(s, t) / 1e9;
    double bytes = t->prompt ? 0 : rate, operations = t->prompt ? rate : 0;
    double share = ceiling > 0 ? rate / ceiling : 0;
    unsigned long long weights = s->info.weight_bytes, parameters = s->info.parameters;
    if (p->form == FORM_MD) {
        char of[16] = "";
        if (share > 0)
            snprintf(of, sizeof of, " %.1f %%", 100 * share);
        printf("| %s | %.1f | %d | %s | %.2f | %.2f | %.2f | %.1f %s |%s |\n", p->name,
               (double)weights / (1 << 20), s->threads, name, v->median, v->least, v->most, rate,
               t->prompt ? "GOP/s" : "GB/s", of);
    } else if (p->form == FORM_CSV) {
        printf("\"%s\",%llu,%llu,%s,%d,%lld,%lld,%lld,%lld,%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f\n",
               p->name, weights, parameters, s->tier, s->threads, (long long)t->prompt,
               (long long)t->gen, (long long)t->depth, (long long)t->batch, p->repeat, v->median,
               v->least, v->most, bytes, operations, share);
    } else {
        printf("%s\n{\"model\":", first ? "" : ",");
        print_json_string(stdout, p->name, strlen(p->name));
        printf(",\"weight_bytes\":%llu,\"parameters\":%llu,\"tier\":\"%s\",\"threads\":%d,"
               "\"test\":\"%s\",\"n_prompt\":%lld,\"n_gen\":%lld,\"n_depth\":%lld,\"batch\":%lld,"
               "\"repeat\":%d,\"tok_s\":%.4f,\"tok_s_min\":%.4f,\"tok_s_max\":%.4f,"
               "\"gb_s\":%.4f,\"gop_s\":%.4f,\"of_ceiling\":%.4f}",
               weights, parameters, s->tier, s->threads, name, (long long)t->prompt,
               (long long)t->gen, (long long)t->depth, (long long)t->batch, p->repeat, v->median,
               v->least, v->most, bytes, operations, share);
    }
    fflush(stdout);
}

/* Of a GPU what it is, and not how many threads the host has. */
static void print_ceilings(const plan *p, const subject *s, bool first)
{
    const qn_ceilings *c = &s->best;
    if (p->form == FORM_JSON) {
        printf("%s{\"threads\":%d,\"tier\":\"%s\",\"read_gb_s\":%.2f,\"f32_gop_s\":%.1f,"
               "\"bf16_gop_s\":%.1f,\"int8_gop_s\":%.1f}",
               first ? "" : ",", s->threads, s->tier, c->read / 1e9, c->f32 / 1e9, c->bf16 / 1e9,
               c->int8 / 1e9);
        return;
    }
    FILE *to = p->form == FORM_CSV ? stderr : stdout; /* a table stays one */
    fprintf(to, "%s", first && p->form == FORM_MD ? "\n" : "");
    if (s->host)
        fprintf(to, "at best, %d thread%s", s->threads, s->threads > 1 ? "s" : "");
    else
        fprintf(to, "%s, at best", s->text);
    const struct {
        const char *name;
        double most;
    } products[] = {{"f32", c->f32}, {"bf16", c->bf16}, {"int8", c->int8}};
    fprintf(to, ": reads %.1f GB/s", c->read / 1e9);
    int n = 0;
    for (int i = 0; i < 3; i++)
        if (products[i].most > 0)
            fprintf(to, "%s %s %.0f", n++ ? "," : "; multiplies", products[i].name,
                    products[i].most / 1e9);
    fprintf(to, "%s%s%s%s\n", n ? " GOP/s" : "", *s->tier ? " (" : "", s->tier,
            *s->tier ? ")" : "");
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* "512,1024"; `usual` where it is absent. */
static bool parse_list(const char *name, const char *text, int64_t usual, int64_t least,
                       int64_t most, number_list *out)
{
    *out = (number_list){{usual}, 1};
    if (!text)
        return true;
    char *end = (char *)text;
    for (out->n = 0; out->n < MOST_VALUES; end++) {
        const char *begin = end;
        int64_t v = strtoll(begin, &end, 10);
        if (end == begin || v < least || v > most || (*end && *end != ','))
            break;
        out->value[out->n++] = v;
        if (!*end)
            return true;
    }
    fprintf(stderr,
            "quern bench: --%s: \"%.60s\" is not up to %d whole numbers from %lld to %lld, apart "
            "by commas\n",
            name, text, MOST_VALUES, (long long)least, (long long)most);
    return false;
}

/* Whether the options are of one kind of timing. */
static bool check_kind(const arguments *a)
{
    const char *kind = a->requests > 0 ? "requests" : "load";
    const char *other = a->requests > 0 && a->load ? "load"
                        : a->n_depth               ? "n-depth"
                        : a->batches               ? "batch"
                        : a->load && a->n_prompt   ? "n-prompt"
                        : a->load && a->n_gen      ? "n-gen"
                                                   : NULL;
    if (a->parallel > 0 && a->requests < 0)
        fprintf(stderr, "quern bench: --parallel goes with --requests\n");
    else if ((a->requests > 0 || a->load) && other)
        fprintf(stderr, "quern bench: --%s and --%s exclude each other\n", kind, other);
    else if (a->load && a->adapter)
        fprintf(stderr, "quern bench: --load is of a model, without --adapter\n");
    else
        return true;
    return false;
}

static bool make_plan(plan *p, const arguments *a)
{
    static const char *const forms[] = {"md", "csv", "json"};
    int form = 0;
    while (a->output && form < 3 && strcmp(forms[form], a->output) != 0)
        form++;
    p->form = form;
    p->repeat = a->repeat > 0 ? (int)a->repeat : 5;
    p->requests = a->requests > 0 ? a->requests : 0;
    p->load = a->load;
    p->parallel = (int)(a->parallel > 0 ? a->parallel : p->requests);
    int64_t least = p->requests ? 1 : 0;
    if (form == 3)
        fprintf(stderr, "quern bench: --output: it is md, csv or json, not \"%.40s\"\n", a->output);
    else if (a->shape && a->model)
        fprintf(stderr, "quern bench: there is a model, %.200s, and a --shape; give one\n",
                a->model);
    else if (a->shape && a->adapter)
        fprintf(stderr,
                "quern bench: --adapter is of a model, not of a --shape's random weights\n");
    else if (!a->shape && (a->type || a->head_type))
        fprintf(stderr, "quern bench: --%s is for the random weights of a --shape\n",
                a->type ? "type" : "head-type");
    else if (!check_kind(a))
        return false;
    else
        return parse_list("n-prompt", a->n_prompt, 512, least, MOST_DEPTH, &p->prompts) &&
               parse_list("n-gen", a->n_gen, 64, least, MOST_DEPTH, &p->gens) &&
               parse_list("n-depth", a->n_depth, 0, 0, MOST_DEPTH, &p->depths) &&
               parse_list("batch", a->batches, 1, 1, MOST_BATCH, &p->batches) &&
               parse_list("threads", a->thread_counts, sysconf(_SC_NPROCESSORS_ONLN), 1, 1024,
                          &p->threads);
    return false;
}

/* The last part of the path, with the type of random weights. */
static void name_model(plan *p, const arguments *a)
{
    const char *path = a->shape ? a->shape : a->model ? a->model : "demo";
    const char *last = strrchr(path, '/');
    snprintf(p->name, sizeof p->name, "%.50s%s%.24s", last && last[1] ? last + 1 : path,
             a->shape ? " " : "",
             !a->shape ? ""
             : a->type ? a->type
                       : "bf16");
    for (char *c = p->name; *c; c++) /* what a table or a string would stumble over */
        if (*c == '|' || *c == '"' || (unsigned char)*c < ' ')
            *c = '_';
}

static qn_status run_list(const plan *p, const subject *s, const number_list *lengths, bool prompt,
                          bool *first, qn_error *err)
{
    for (int d = 0; d < p->depths.n; d++)
        for (int b = 0; b < p->batches.n; b++)
            for (int i = 0; i < lengths->n; i++) {
                int64_t n = lengths->value[i];
                test t = {prompt ? n : 0, prompt ? 0 : n, p->depths.value[d], p->batches.value[b]};
                speeds v;
                if (n == 0)
                    continue;
                if (time_test(s, &t, p->repeat, &v, err) != QN_OK)
                    return err->code;
                print_row(p, s, &t, &v, *first);
                *first = false;
            }
    return QN_OK;
}

static void keep_better(double *best, double found)
{
    *best = found > *best ? found : *best;
}

static void measure_ceilings(subject *s)
{
    qn_ceilings found = QN_INIT(qn_ceilings);
    qn_device_ceilings(s->device, &found);
    keep_better(&s->best.read, found.read);
    keep_better(&s->best.f32, found.f32);
    keep_better(&s->best.bf16, found.bf16);
    keep_better(&s->best.int8, found.int8);
}

/* Ceilings are measured before and after, so that a drift of the machine hits both; the shares of
 * rows are of what was found before. */
static int run_subject(const plan *p, subject *s, const arguments *a, bool *first)
{
    qn_error err = {0};
    if (!a->no_ceilings)
        measure_ceilings(s);
    if (p->load)
        time_load(p, s, a, first, &err);
    else if (p->requests)
        time_requests(p, s, first, &err);
    else if (run_list(p, s, &p->prompts, true, first, &err) == QN_OK)
        run_list(p, s, &p->gens, false, first, &err);
    if (!a->no_ceilings && err.code == QN_OK)
        measure_ceilings(s);
    return err.code == QN_OK ? 0 : failed(&err);
}

int command_bench(arguments *a)
{
    plan p;
    subject done[MOST_VALUES]; /* for their ceilings */
    bool first = true;
    int code = 0;
    if (!make_plan(&p, a))
        return 2;
    name_model(&p, a);
    catch_interrupts(true);
    for (int i = 0; !code && i < p.threads.n; i++) {
        subject *s = &done[i];
        code = open_subject(s, a, (int)p.threads.value[i]);
        if (!code && i == 0 && !p.load && !p.requests)
            print_table_head(&p);
        if (!code)
            code = run_subject(&p, s, a, &first);
        close_subject(s);
    }
    if (code)
        return code;
    if (p.form == FORM_JSON) {
        printf("\n],\"device\":");
        print_json_string(stdout, done[0].text, strlen(done[0].text));
        printf(",\"ceilings\":[");
    }
    for (int i = 0; !a->no_ceilings && i < p.threads.n; i++)
        print_ceilings(&p, &done[i], i == 0);
    if (p.form == FORM_JSON)
        printf("]}\n");
    return 0;
}
