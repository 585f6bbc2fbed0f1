/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates: every feature against Jinja2 in transformers' environment (templates.jsonl, made
 * by make_templates.py), real templates with QUERN_TEST_DATA, hostile ones, data in the output,
 * and mutations of all of them (QUERN_FUZZ_SECONDS, default 3; QUERN_FUZZ_SEED).
 */
#include "../test.h"

#include "base/file.h"
#include "base/json.h"

#include <string.h>
#include <time.h>

static const qn_template_options frozen = {.size = sizeof frozen, .now = 1721997296};

static const char *source_path(const char *name)
{
    static char path[4096];
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    return path;
}

static qn_status render_one(const char *source, size_t n, const char *json,
                            const qn_template_options *options, qn_text *out, qn_spans *data,
                            qn_error *err)
{
    qn_template *t;
    qn_status status = qn_template_new(&t, "t", source, n, err);
    if (status == QN_OK)
        status = qn_template_render(t, json, strlen(json), options, out, data, err);
    qn_template_free(t);
    return status;
}

/* Compares with what Jinja gave; returns 1 where they differ. */
static int differs(const char *label, const char *source, const char *json, const cJSON *line)
{
    const cJSON *expected = cJSON_GetObjectItem(line, "expected"),
                *message = cJSON_GetObjectItem(line, "message");
    qn_text out = {0};
    qn_error err = {0};
    qn_status status = render_one(source, strlen(source), json, &frozen, &out, NULL, &err);
    int bad = 0;
    if (expected) {
        bad = status != QN_OK || strcmp(out.data, expected->valuestring) != 0;
        if (bad)
            print_message("%s: %s\n  got  %s\n  want %s\n", label, err.message,
                          out.data ? out.data : "", expected->valuestring);
    } else {
        const char *why = message && message->valuestring ? message->valuestring : "";
        const char *kind = cJSON_GetObjectItem(line, "error")->valuestring;
        bool told =
            strcmp(kind, "TemplateError") != 0 || strstr(err.message, why) || strlen(why) > 200;
        bad = status == QN_OK || !told || strncmp(err.message, "t: line ", 8) != 0;
        if (bad)
            print_message("%s: expected the error %s (%s), got %s\n", label, kind, why,
                          status ? err.message : out.data);
    }
    qn_text_free(&out);
    return bad;
}

static void read_file(const char *path, char **text, size_t *size)
{
    qn_error err = {0};
    if (qn__file_read(path, 64 << 20, text, size, &err) != QN_OK)
        fail_msg("%s", err.message);
}

static cJSON *parse_line(const char *line, size_t n)
{
    cJSON *root;
    qn_error err = {0};
    if (qn__json_parse(&root, "line", line, n, &err) != QN_OK)
        fail_msg("%s", err.message);
    return root;
}

static void test_features(void **state)
{
    (void)state;
    char *text;
    size_t size;
    int n = 0, wrong = 0;
    read_file(source_path("tests/jinja/templates.jsonl"), &text, &size);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        cJSON *root = parse_line(line, (size_t)(end - line));
        wrong += differs("templates.jsonl", cJSON_GetObjectItem(root, "template")->valuestring,
                         cJSON_GetObjectItem(root, "context")->valuestring, root);
        cJSON_Delete(root);
    }
    free(text);
    print_message("%d templates of every feature, %d differ\n", n, wrong);
    assert_true(n > 100);
    assert_int_equal(wrong, 0);
}

static const char *data_path(const char *name)
{
    static char path[4096];
    const char *data = getenv("QUERN_TEST_DATA");
    if (!data) {
        print_message("skipped: QUERN_TEST_DATA is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/chat_templates/%s", data, name);
    return path;
}

static void test_real_templates(void **state)
{
    (void)state;
    char *text, *source, *context;
    size_t size;
    int n = 0, wrong = 0;
    read_file(data_path("templates.json"), &source, &size);
    cJSON *templates = parse_line(source, size);
    read_file(data_path("contexts.json"), &context, &size);
    cJSON *contexts = parse_line(context, size);
    read_file(data_path("rendered.jsonl"), &text, &size);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        cJSON *root = parse_line(line, (size_t)(end - line));
        const char *name = cJSON_GetObjectItem(root, "template")->valuestring;
        const char *with = cJSON_GetObjectItem(root, "context")->valuestring;
        char label[512];
        snprintf(label, sizeof label, "%s with %s", name, with);
        char *json = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(contexts, with));
        wrong += differs(label, cJSON_GetObjectItemCaseSensitive(templates, name)->valuestring,
                         json, root);
        cJSON_free(json);
        cJSON_Delete(root);
    }
    print_message("%d renderings of real templates, %d differ\n", n, wrong);
    cJSON_Delete(templates);
    cJSON_Delete(contexts);
    free(text);
    free(source);
    free(context);
    assert_int_equal(wrong, 0);
    assert_true(n > 1000);
}

/* ---- hostile templates ---------------------------------------------------------------------- */

/* Seconds that a template may take which works much in few steps (a sanitizer: ten times that). */
#ifdef __SANITIZE_ADDRESS__
enum { MOST_SECONDS = 20 };
#else
enum { MOST_SECONDS = 2 * PATIENCE };
#endif

static void check_hostile(const char *source, size_t n, const char *part)
{
    qn_text out = {0};
    qn_error err = {0};
    clock_t begun = clock();
    qn_status status = render_one(source, n, "{\"s\":\"abc\"}", &frozen, &out, NULL, &err);
    double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    if (status == QN_OK || !strstr(err.message, part) || strchr(err.message, '\n') ||
        seconds > MOST_SECONDS)
        fail_msg("%.60s: %d %s (%.1f s), expected %s", source, status, err.message, seconds, part);
    assert_int_equal(out.n, 0);
    qn_text_free(&out);
}

/* What takes long on a long string has to cost more than a step. */
#define LONG_STRING                                                                                \
    "{% set s = 'a' * 20000000 %}{% set t = 'b' * 1000000 ~ 'a' * 1000000 %}"                      \
    "{% for i in range(99999) %}"
#define END "{% endfor %}"

static void test_hostile(void **state)
{
    (void)state;
    static const struct {
        const char *source, *part;
    } cases[] = {
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
         "t: line 1: nested or recursive deeper than"},
        {"\n{{ range(1000000000) }}", "t: line 2: a range of more than 100000"},
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         "out of steps"},
        {"{{ 'a' * 1000000000 }}", "MiB of text"},
        {"{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
         "endfor %}",
         "MiB of text"},
        {"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
         "endfor %}",
         "MiB of memory"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor "
         "%}{{ ns.l }}",
         "deeper than"},
        {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "deeper than"},
        {"{{ ''.__class__ }}", "access to attribute '__class__' of 'str' object is unsafe"},
        {"{{ [].append(1) }}", "access to attribute 'append' of 'list' object is unsafe"},
        {"{% include 'x' %}", "the tag \"include\" is not supported"},
        {"{{ 9223372036854775807 + 1 }}", "does not fit 64 bits"},
        {"{{ 99999999999999999999 }}", "does not fit 64 bits"},
        {"{{ 2 ** 9999 }}", "does not fit 64 bits"},
        {"{{ -9223372036854775807 // 0 }}", "by zero"},
        {"{{ '%999999999d' % 1 }}", "wider than 10000"},
        {"{{ '{:999999999}'.format(1) }}", "wider than 10000"},
        {"{{ 1|center(999999999999) }}", "out of steps"},
        {"{{ 'x'.zfill(999999999999) }}", ""},
        {"a\n{{ x.y }}", "t: line 2: 'x' is undefined"},
        {"{{", "never closed"},
        {"{% if", "never closed"},
        {"{% if x %}", "lacks its"},
        {"{{ 'abc }}", "a string is never closed"},
        {"{{ (1] }}", "unexpected ']'"},
        {"{% endfor %}", "unexpected \"endfor\""},
        {"{% break %}", "only in a loop"},
        {"{{ s|nonsense }}", "No filter named 'nonsense' found."},
        {"{{ s|random }}", "the filter 'random' is not supported"},
        {"{{ lipsum() }}", "the function lipsum is not supported"},
        {"{% import 'x' as y %}", "the tag \"import\" is not supported"},
        {"{% extends 'x' %}", "the tag \"extends\" is not supported"},
        {"{{ 'ab'|wordwrap(-1) }}", "invalid width -1"},
        {"{{ range(9)|slice(999999999)|list }}", "MiB of memory"},
        {"{{ ('ab ' * 1000000)|wordwrap(1, wrapstring='x' * 1000) }}", "MiB of text"},
        {LONG_STRING "{{ s|length }}" END, "out of steps"},
        {LONG_STRING "{% if s.isalpha() or s.isdigit() %}{% endif %}" END, "out of steps"},
        {LONG_STRING "{% if s.rfind(t) %}{% endif %}" END, "out of steps"},
        {LONG_STRING "{% if s.startswith(s) %}{% endif %}" END, "out of steps"},
        {LONG_STRING "{% if s.strip(t) %}{% endif %}" END, "out of steps"},
        {LONG_STRING "{% if s|wordcount %}{% endif %}" END, "out of steps"},
        {LONG_STRING "{% if {'x': 1}[s] %}{% endif %}" END, "out of steps"},
        {LONG_STRING "{% set x = t|upper %}" END, "out of steps"},
        {LONG_STRING "{% set x = t.strip('abcdefghijklmnopqrstuvwxyz') %}" END, "out of steps"},
        {LONG_STRING "{% set x = t.rfind('q') %}" END, "out of steps"},
        {LONG_STRING "{% set x = t[-9000000] %}" END, "out of steps"},
        {LONG_STRING "{% set x = t|tojson %}" END, "out of steps"},
        {LONG_STRING "{% set x = t.isupper() %}" END, "out of steps"},
        {LONG_STRING "{% set x = [t|upper ~ 'a', t] * 100 %}{% if x|sort %}{% endif %}" END,
         "out of steps"},
        {"{% set a = range(99999)|list %}{% set b = range(99999)|list %}{% for i in range(99999) "
         "%}{% if a == b %}{% endif %}{% endfor %}",
         "out of steps"},
        {"{% set a = range(99999)|list %}{% for i in range(99999) %}{% if a|groupby(0) %}{% endif "
         "%}{% endfor %}",
         ""},
        {"{% set a = [(range(9999)|list, 1)] * 99 %}{% for i in range(99999) %}{% if a|sort %}{% "
         "endif %}{% endfor %}",
         "out of steps"},
        {"{% for i in range(99999) %}{% for i in range(99) %}{% set x = 1.1e-300|string %}{% "
         "endfor "
         "%}{% endfor %}",
         "out of steps"},
        {"{% for i in range(99999) %}{% for i in range(99) %}{% set x = '%.9999f' % 0.1 %}{% "
         "endfor "
         "%}{% endfor %}",
         ""},
        {"{% set t = (range(9999)|list|join(',')).split(',') %}{% for i in range(99999) %}{% if "
         "{(t|join, t|join): 1} %}{% endif %}{% endfor %}",
         ""},
        {"{{ s is nonsense }}", "No test named 'nonsense' found."},
        {"{{ '\\ud83d' }}", "escape"},
        {"{{ raise_exception('a\\nb') }}", "t: line 1: a?b"},
        {"{# ", "never closed"},
        {"{% raw %}", "never closed"},
        {"\xff", "not valid UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_hostile(cases[i].source, strlen(cases[i].source), cases[i].part);
    static const struct {
        const char *before, *again, *after, *part;
    } long_ones[] = {
        {"{{ ", "(", "", "deeper than"},       {"{{ ", "not ", "1 }}", "deeper than"},
        {"{{ ", "-", "1 }}", "deeper than"},   {"{{ 1", "+1", " }}", "deeper than"},
        {"{{ x", ".a", " }}", "deeper than"},  {"{{ 1", "|abs", " }}", "deeper than"},
        {"", "{% if 1 %}", "", "deeper than"}, {"{{ 1", " if 1 else 1", " }}", "deeper than"},
        {"{{ 1", " < 1", " }}", "in a row"},   {"{{ ", "[", "", "deeper than"},
        {"{{ ", "{1:", "", "deeper than"},     {"", "{% for a in b %}", "", "deeper than"},
    };
    for (size_t i = 0; i < sizeof long_ones / sizeof *long_ones; i++) {
        size_t k = strlen(long_ones[i].again), n = strlen(long_ones[i].before);
        char *source = calloc(1, 10000 * k + 100);
        memcpy(source, long_ones[i].before, n);
        for (int j = 0; j < 10000; j++, n += k)
            memcpy(source + n, long_ones[i].again, k);
        strcpy(source + n, long_ones[i].after);
        check_hostile(source, strlen(source), long_ones[i].part);
        free(source);
    }
}

/* A hundred thousand names in one block, each found; and as many literals in a row. */
static void test_many_names(void **state)
{
    (void)state;
    enum { NAMES = 100000 };
    char *source = malloc(NAMES * 40 + 100);
    size_t n = 0;
    qn_text out = {0};
    qn_error err = {0};
    clock_t begun = clock();
    for (int i = 0; i < NAMES; i++)
        n += (size_t)sprintf(source + n, "{%% set a%d = %d %%}", i, i);
    n += (size_t)sprintf(source + n, "{{ a0 + a99999 }}{%% for i in range(99999) %%}{%% if nope or "
                                     "a1 %%}{%% endif %%}{%% endfor %%}");
    if (render_one(source, n, "{}", &frozen, &out, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_string_equal(out.data, "99999");
    n = (size_t)sprintf(source, "{{ (");
    for (int i = 0; i < NAMES; i++)
        n += (size_t)sprintf(source + n, "'%010d' ", i);
    n += (size_t)sprintf(source + n, ")|length }}");
    if (render_one(source, n, "{}", &frozen, &out, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_string_equal(out.data, "999991000000");
    assert_true((double)(clock() - begun) / CLOCKS_PER_SEC < MOST_SECONDS);
    qn_text_free(&out);
    free(source);
}

/* An error that holds an older failure neither stops a rendering nor hides its own status. */
static void test_older_failure(void **state)
{
    (void)state;
    qn_error old = {.code = QN_IO, .message = "older"};
    qn_template *t = NULL;
    qn_text out = {0};
    assert_int_equal(qn_template_new(&t, "t", "a{{ x }}", 8, &old), QN_OK);
    assert_int_equal(qn_template_render(t, "{\"x\":1}", 7, &frozen, &out, NULL, &old), QN_OK);
    assert_string_equal(out.data, "a1");
    assert_int_equal(qn_template_render(t, "[]", 2, &frozen, &out, NULL, &old), QN_FORMAT);
    assert_int_equal(qn_template_render(t, "[]", 2, &frozen, &out, NULL, NULL), QN_FORMAT);
    qn_template_free(t);
    assert_int_equal(qn_template_new(&t, "t", "{{", 2, &old), QN_FORMAT);
    assert_null(t);
    assert_string_equal(old.message, "older");
    assert_int_equal(old.code, QN_IO);
    qn_text_free(&out);
}

/* ---- which bytes are data ------------------------------------------------------------------- */

static void test_data_is_known(void **state)
{
    (void)state;
    /* What came from data is upper case in the expectation, and so is the data itself. */
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"a{{ s }}b", "aABCb"},
        {"{{ 'x' + s[1:] ~ 'y' }}", "xBCy"},
        {"{{ ('  ' + s + ' x ')|trim }}", "ABC x"},
        {"{{ s|replace('B', 'y') }}", "AyC"},
        {"{{ 'xyx'.replace('y', s) }}", "xABCx"},
        {"{{ [s, 'x', s]|join('-') }}", "ABC-x-ABC"},
        {"{{ (s ~ 'q,r').split(',')|join('+') }}", "ABCq+r"},
        {"{{ {'k': s}|tojson }}", "{\"k\": \"ABC\"}"},
        {"{{ d|tojson }}", "{\"KEY\": [1, \"V\"]}"},
        {"{{ [s, 'x'] }}", "['ABC', 'x']"},
        {"{% set x %}p{{ s }}q{% endset %}{{ x }}", "pABCq"},
        {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(s) }}", "<ABC>"},
        {"{{ s[::-1] }}x", "CBAx"},
        {"{% for c in s %}{{ c }}.{% endfor %}", "A.B.C."},
        {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "KEY=[1, 'V']"},
        {"{{ '%s!' % s }}{{ '{}?'.format(s) }}", "ABC!ABC?"},
        {"{{ s|upper }}{{ s.title()|upper }}", "ABCABC"},
        {"{{ (s + '\nx')|indent(1) }}", "ABC\n x"},
        {"{{ messages[0].role }}{{ messages[1].role }}", "userEVIL"},
        {"{{ bos_token }}{{ s * 2 }}{{ s|center(5) }}", "<s>ABCABC ABC "},
        {"{{ (s ~ ' x-y ' ~ s)|wordwrap(4) }}|{{ (s ~ 'xyz')|truncate(5, true, '..', 0) }}",
         "ABC\nx-y\nABC|ABC.."},
        {"{{ {s: s}|urlencode }}{{ {'x': s}|xmlattr }}{{ s|e }}", "ABC=ABC x=\"ABC\"ABC"},
        {"{{ [{'k': s}]|groupby('k')|map(attribute='grouper')|join }}", "ABC"},
        {"{{ s.center(7, 'x') }}{{ s|batch(2)|map('join', '-')|join('+') }}", "xxABCxxA-B+C"},
        {"{{ 'x' if s == 'ABC' }}{{ s|length }}{{ s and 'y' }}", "x3y"},
    };
    static const char json[] =
        "{\"s\":\"ABC\",\"d\":{\"KEY\":[1,\"V\"]},\"bos_token\":\"BAD\",\"messages\":"
        "[{\"role\":\"user\"},{\"role\":\"EVIL\"}]}";
    qn_template_options options = frozen;
    options.trusted = "{\"bos_token\":\"<s>\"}";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_text out = {0};
        qn_spans data = {0};
        qn_error err = {0};
        if (render_one(cases[i].source, strlen(cases[i].source), json, &options, &out, &data,
                       &err) != QN_OK)
            fail_msg("%s: %s", cases[i].source, err.message);
        assert_string_equal(out.data, cases[i].expected);
        size_t at = 0;
        for (size_t k = 0; k < out.n; k++) {
            while (at < data.n && data.spans[at].end <= k)
                at++;
            bool is_data = at < data.n && data.spans[at].begin <= k;
            if (is_data != (out.data[k] >= 'A' && out.data[k] <= 'Z'))
                fail_msg("%s: byte %zu of %s", cases[i].source, k, out.data);
        }
        qn_text_free(&out);
        qn_spans_free(&data);
    }
}

/* ---- mutations ------------------------------------------------------------------------------ */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Cuts, doubles, swaps in pieces of other templates, or changes bytes of ASCII. */
static size_t mutate(char *out, size_t room, const char *a, size_t n, const char *b, size_t m,
                     uint64_t *state)
{
    n = n < room / 2 ? n : room / 2;
    memcpy(out, a, n);
    for (int k = (int)(next_random(state) % 4) + 1; k > 0; k--) {
        size_t at = n ? next_random(state) % n : 0, length = next_random(state) % 40,
               from = m ? next_random(state) % m : 0;
        if (length > n - at)
            length = n - at;
        switch (next_random(state) % 3) {
        case 0:
            memmove(out + at, out + at + length, n - at - length);
            n -= length;
            break;
        case 1:
            length = length < m - from ? length : m - from;
            if (n + length > room)
                break;
            memmove(out + at + length, out + at, n - at);
            memcpy(out + at, b + from, length);
            n += length;
            break;
        default:
            if (n)
                out[at] = (char)(next_random(state) % 95 + 32);
        }
    }
    return n;
}

static void test_mutations(void **state)
{
    (void)state;
    char *text;
    size_t size, n = 0;
    static cJSON *lines[4096];
    const char *wanted = getenv("QUERN_FUZZ_SECONDS");
    double limit = wanted ? atof(wanted) : 3;
    read_file(source_path("tests/jinja/templates.jsonl"), &text, &size);
    for (char *line = text, *end; n < 4096 && (end = strchr(line, '\n')); line = end + 1)
        lines[n++] = parse_line(line, (size_t)(end - line));
    const char *chosen = getenv("QUERN_FUZZ_SEED");
    uint64_t seed = chosen ? strtoull(chosen, NULL, 10) : 7;
    time_t begun = time(NULL);
    long tried = 0, good = 0;
    qn_template_options options = frozen;
    options.steps = 20000;
    options.memory = options.output = 1 << 20;
    static char source[1 << 16];
    while (difftime(time(NULL), begun) < limit && tried < 10000000) {
        const cJSON *a = lines[next_random(&seed) % n], *b = lines[next_random(&seed) % n];
        const char *s = cJSON_GetObjectItem(a, "template")->valuestring,
                   *t = cJSON_GetObjectItem(b, "template")->valuestring;
        size_t length = mutate(source, sizeof source, s, strlen(s), t, strlen(t), &seed);
        const char *json = cJSON_GetObjectItem(a, "context")->valuestring;
        qn_text out = {0};
        qn_spans data = {0};
        qn_error err = {0};
        qn_status status = render_one(source, length, json, &options, &out, &data, &err);
        assert_true((status == QN_OK) == (err.message[0] == 0));
        for (size_t i = 0; i < data.n; i++)
            assert_true(data.spans[i].begin < data.spans[i].end && data.spans[i].end <= out.n &&
                        (i == 0 || data.spans[i - 1].end < data.spans[i].begin));
        good += status == QN_OK;
        tried++;
        qn_text_free(&out);
        qn_spans_free(&data);
    }
    print_message("%ld mutations, %ld of them rendered\n", tried, good);
    assert_true(tried > 100);
    for (size_t i = 0; i < n; i++)
        cJSON_Delete(lines[i]);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features),   cmocka_unit_test(test_real_templates),
        cmocka_unit_test(test_hostile),    cmocka_unit_test(test_data_is_known),
        cmocka_unit_test(test_mutations),  cmocka_unit_test(test_older_failure),
        cmocka_unit_test(test_many_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
