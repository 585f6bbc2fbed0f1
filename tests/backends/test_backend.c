/* SPDX-License-Identifier: Apache-2.0
 *
 * Backends as a C program uses them: native with a model of the repository; mlx_lm with children
 * that are no mlx-lm but end, hang or say what they should not. None may stay behind.
 * tests/cli/test_backend.py has the real one.
 */
#include "../base/fail_alloc.h"
#include "../base/temp_dir.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>

#ifdef QN_MLX_LM
enum { WITH_MLX_LM = 1 };
#else
enum { WITH_MLX_LM = 0 };
#endif

typedef struct heard {
    char text[4000];
    size_t n, tokens, most; /* most: ends the reply then; 0: never */
    int32_t last;
    qn_flag *flag; /* set with the first token */
} heard;

static bool hear(void *user, int32_t id, const char *text, size_t n)
{
    heard *h = user;
    assert_true(h->n + n < sizeof h->text);
    memcpy(h->text + h->n, text, n);
    h->n += n;
    h->tokens += id >= 0;
    h->last = id;
    if (h->flag)
        atomic_store(h->flag, true);
    return h->tokens != h->most;
}

static const char *demo_path(void)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    return path;
}

static qn_backend *open_demo(const qn_backend_options *options)
{
    qn_error err = {0};
    qn_backend *b;
    if (qn_backend_open(&b, "native", demo_path(), options, &err) != QN_OK)
        fail_msg("%s", err.message);
    return b;
}

static const qn_generation_options GREEDY = {.size = sizeof GREEDY,
                                             .max_tokens = 20,
                                             .sampling =
                                                 &(qn_sampling){.size = sizeof(qn_sampling)}};

/* ---- the registry ---------------------------------------------------------------------------- */

static void test_names(void **state)
{
    (void)state;
    qn_error err = {0};
    qn_backend *b;
    assert_string_equal(qn_backend_name(0), "native");
    assert_int_equal(qn_backend_name(1) != NULL, WITH_MLX_LM);
    assert_null(qn_backend_name(1 + WITH_MLX_LM));
    assert_int_equal(qn_backend_find("native", &err), QN_OK);
    assert_int_equal(qn_backend_open(&b, "other", "x", NULL, &err), QN_NOT_FOUND);
    assert_null(b);
    assert_non_null(strstr(err.message, WITH_MLX_LM ? "native, mlx_lm" : "native"));
    err = (qn_error){0};
    assert_int_equal(qn_backend_find("mlx_lm", &err), WITH_MLX_LM ? QN_OK : QN_UNSUPPORTED);
    assert_int_equal(qn_backend_open(&b, "native", "/nothing", NULL, NULL), QN_NOT_FOUND);
    qn_backend_close(NULL);
}

/* ---- native ---------------------------------------------------------------------------------- */

static void test_native(void **state)
{
    (void)state;
    qn_error err = {0};
    qn_backend *b = open_demo(NULL);
    qn_backend_info info = QN_INIT(qn_backend_info);
    qn_metrics metrics = QN_INIT(qn_metrics);
    assert_int_equal(qn_backend_get_info(b, &info), QN_OK);
    assert_string_equal(info.model_type, "llama");
    assert_int_equal(info.vocab_size, 2048);
    assert_int_equal(info.n_layers, 4);
    assert_int_equal(info.hidden_size, 256);
    assert_true(qn_backend_sampling(b)->temperature >= 0);
    heard one = {.n = 0}, two = {.n = 0}, three = {.n = 0};
    assert_int_equal(qn_backend_generate(b, "Once upon", 9, &GREEDY, hear, &one, &err), QN_OK);
    assert_int_equal(one.tokens, 20);
    assert_int_equal(qn_backend_get_metrics(b, &metrics), QN_OK);
    assert_int_equal(metrics.generated_tokens, 20);
    assert_int_equal(metrics.finish, QN_FINISH_LENGTH);
    const qn_chat_message say = {"user", "Tell me a story about a fox.", 0};
    assert_int_equal(qn_backend_chat(b, &say, 1, NULL, hear, &two, &err), QN_OK);
    assert_true(two.n > 20);
    assert_int_equal(qn_backend_generate(b, "Once upon", 9, &GREEDY, hear, &three, &err), QN_OK);
    assert_int_equal(three.n, one.n);
    assert_memory_equal(three.text, one.text, one.n);
    qn_generation_options wrong = GREEDY;
    wrong.logprobs = true;
    assert_int_equal(qn_backend_generate(b, "a", 1, &wrong, hear, &one, &err), QN_UNSUPPORTED);
    assert_int_equal(qn_backend_chat(b, NULL, 0, NULL, hear, &one, NULL), QN_INVALID);
    qn_backend_close(b);
}

static void test_native_cancel(void **state)
{
    (void)state;
    qn_error err = {0};
    qn_flag cancel = false;
    const qn_backend_options options = {.size = sizeof options, .cancel = &cancel};
    qn_backend *b = open_demo(&options);
    heard flagged = {.flag = &cancel}, stopped = {.most = 3}, whole = {.n = 0};
    assert_int_equal(qn_backend_generate(b, "Once", 4, &GREEDY, hear, &flagged, &err),
                     QN_CANCELLED);
    assert_int_equal(flagged.tokens, 1);
    atomic_store(&cancel, false);
    err = (qn_error){0};
    assert_int_equal(qn_backend_generate(b, "Once", 4, &GREEDY, hear, &stopped, &err),
                     QN_CANCELLED);
    assert_int_equal(stopped.tokens, 3);
    assert_int_equal(qn_backend_generate(b, "Once", 4, &GREEDY, hear, &whole, NULL), QN_OK);
    assert_memory_equal(whole.text, stopped.text, stopped.n);
    qn_backend_close(b);
    atomic_store(&cancel, true);
    assert_int_equal(qn_backend_open(&b, "native", demo_path(), &options, NULL), QN_CANCELLED);
}

static void *generate_often(void *backend)
{
    static heard all[2][4];
    static atomic_int next;
    int mine = atomic_fetch_add(&next, 1);
    for (int i = 0; i < 4; i++)
        if (qn_backend_generate(backend, "Once upon", 9, &GREEDY, hear, &all[mine][i], NULL))
            return NULL;
    return all[mine];
}

static void test_threads(void **state)
{
    (void)state;
    qn_backend *b = open_demo(NULL);
    pthread_t threads[2];
    heard *said[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, generate_often, b), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], (void **)&said[i]);
        assert_non_null(said[i]);
    }
    for (int i = 0; i < 8; i++) {
        assert_int_equal(said[i / 4][i % 4].tokens, 20);
        assert_memory_equal(said[i / 4][i % 4].text, said[0][0].text, said[0][0].n);
    }
    qn_backend_close(b);
}

/* ---- mlx_lm with other children -------------------------------------------------------------- */

#define LOADED                                                                                     \
    "read -r load; printf '%s\\n' \"$load\" >>\"$0.heard\"; echo '{\"ok\":true}'; read info\n"     \
    "echo '{\"model_type\":\"fake\",\"vocab_size\":5,\"layers\":2,\"hidden_size\":3}'\n"
#define ASKED LOADED "read -r asked; printf '%s\\n' \"$asked\" >>\"$0.heard\"\n"
#define TOKEN "echo '{\"token\":\"a\",\"token_id\":1}'\n"

static double load_seconds = 60; /* of a busy machine */

static qn_status open_fake(qn_backend **out, const char *script, const qn_flag *cancel,
                           qn_error *err)
{
    char text[2000];
    *err = (qn_error){0};
    snprintf(text, sizeof text, "#!/bin/sh\n%s", script);
    const char *path = temp_write("fake", text, strlen(text));
    chmod(path, 0755);
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    const qn_backend_options options = {
        .size = sizeof options, .python = path, .load_seconds = load_seconds, .cancel = cancel};
    return qn_backend_open(out, "mlx_lm", "/a \"model\"", &options, err);
}

static void assert_no_children(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void skip_without_mlx_lm(void)
{
    if (!WITH_MLX_LM) {
        print_message("skipped: configured with -Dmlx_lm=disabled\n");
        skip();
    }
}

static void test_loads_that_fail(void **state)
{
    static const struct {
        const char *script, *says;
    } cases[] = {
        {"exit 3\n", "status 3"},
        {"echo one >&2; echo 'two words' >&2; exit 1\n", "status 1: two words"},
        {"kill -9 $$\n", "signal 9"},
        {"echo hello; sleep 60\n", "no answer of Python's: hello"},
        {"echo '[1]'; sleep 60\n", "no answer"},
        {"printf '\\377\\n'; sleep 60\n", "no answer"},
        {"sleep 60\n", "within 0.5 s"},
        {"exec yes n | tr -d '\\n'\n", "more than 1048576 bytes"},
        {"echo '{\"error\":\"too bad\"}'; sleep 60\n", "mlx_lm: too bad"},
        {"echo '{\"ok\":true}'; echo '{\"model_type\":5}'; sleep 60\n", "model_type"},
        {"exec </dev/null >/dev/null; sleep 60\n", "closed its output"},
    };
    (void)state;
    skip_without_mlx_lm();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_error err;
        qn_backend *b;
        load_seconds = strncmp(cases[i].script, "sleep", 5) ? 60 : 0.5;
        assert_int_not_equal(open_fake(&b, cases[i].script, NULL, &err), QN_OK);
        load_seconds = 60;
        assert_null(b);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: %s", cases[i].script, err.message);
        assert_no_children();
    }
    qn_flag cancel = true;
    qn_error err;
    qn_backend *b;
    assert_int_equal(open_fake(&b, "sleep 60\n", &cancel, &err), QN_CANCELLED);
    assert_no_children();
}

static void test_replies_that_fail(void **state)
{
    static const struct {
        const char *script, *says;
        bool over; /* there is no child any more */
    } cases[] = {
        {ASKED "exit 4\n", "status 4", true},
        {ASKED TOKEN "echo bad >&2; kill -9 $$\n", "signal 9: bad", true},
        {ASKED TOKEN "echo what; sleep 60\n", "no answer of Python's: what", true},
        {ASKED "echo '{\"token\":1,\"token_id\":1}'; sleep 60\n", "token", true},
        {ASKED "echo '{\"token\":\"a\",\"token_id\":-5}'; sleep 60\n", "token_id", true},
        {ASKED TOKEN "echo '{\"error\":\"too long\"}'; read more; read end\n", "mlx_lm: too long",
         false},
    };
    (void)state;
    skip_without_mlx_lm();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_error err;
        qn_backend *b;
        heard h = {.n = 0};
        if (open_fake(&b, cases[i].script, NULL, &err) != QN_OK)
            fail_msg("%s", err.message);
        assert_int_not_equal(qn_backend_generate(b, "p", 1, &GREEDY, hear, &h, &err), QN_OK);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: %s", cases[i].script, err.message);
        if (cases[i].over) {
            usleep(1000);
            assert_no_children();
            assert_int_equal(qn_backend_generate(b, "p", 1, &GREEDY, hear, &h, NULL), QN_STATE);
        }
        qn_backend_close(b);
        assert_no_children();
    }
}

static void test_reply(void **state)
{
    (void)state;
    skip_without_mlx_lm();
    qn_error err;
    qn_backend *b;
    heard h = {.n = 0};
    qn_backend_info info = QN_INIT(qn_backend_info);
    qn_metrics metrics = QN_INIT(qn_metrics);
    unlink(temp_path("fake.heard"));
    assert_int_equal(open_fake(&b,
                               ASKED TOKEN
                               "echo '{\"token\":\"b\\u00e9\",\"token_id\":-1}'\n"
                               "echo '{\"done\":true,\"finish\":\"stop\"}'; read quit\n",
                               NULL, &err),
                     QN_OK);
    qn_backend_get_info(b, &info);
    assert_string_equal(info.model_type, "fake");
    assert_int_equal(info.hidden_size, 3);
    const qn_sampling sampling = {.size = sizeof sampling,
                                  .temperature = 0.5f,
                                  .top_k = 3,
                                  .top_p = 0.25f,
                                  .seed = 1ull << 60};
    const qn_generation_options options = {
        .size = sizeof options, .max_tokens = 7, .sampling = &sampling};
    const qn_chat_message say[] = {{"user", "\"Hi\"\n", 0}, {"assistant", "Yes, no", 3}};
    assert_int_equal(qn_backend_chat(b, say, 2, &options, hear, &h, &err), QN_OK);
    assert_string_equal(h.text, "ab\xc3\xa9");
    assert_int_equal(h.tokens, 1);
    qn_backend_get_metrics(b, &metrics);
    assert_int_equal(metrics.finish, QN_FINISH_STOP);
    assert_int_equal(metrics.generated_tokens, 0);
    qn_backend_close(b);
    assert_no_children();
    static const char want[] =
        "{\"cmd\":\"load\",\"path\":\"/a \\\"model\\\"\"}\n"
        "{\"cmd\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"\\\"Hi\\\"\\n\"},"
        "{\"role\":\"assistant\",\"content\":\"Yes\"}],\"max_tokens\":7,\"temperature\":0.5,"
        "\"top_p\":0.25,\"min_p\":0,\"top_k\":3,\"seed\":1152921504606846976}\n";
    char got[1000] = "";
    FILE *f = fopen(temp_path("fake.heard"), "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    assert_string_equal(got, want);
}

static void test_refused(void **state)
{
    (void)state;
    skip_without_mlx_lm();
    qn_error err;
    qn_backend *b;
    heard h = {.n = 0};
    const char *const stop = "x";
    const qn_token_bias bias = {1, 1};
    assert_int_equal(open_fake(&b, LOADED "read quit\n", NULL, &err), QN_OK);
    qn_sampling s = {.size = sizeof s};
    qn_generation_options o = {.size = sizeof o, .sampling = &s};
#define REFUSED(set, unset, name)                                                                  \
    err = (qn_error){0};                                                                           \
    set;                                                                                           \
    assert_int_equal(qn_backend_generate(b, "p", 1, &o, hear, &h, &err), QN_UNSUPPORTED);          \
    assert_non_null(strstr(err.message, name));                                                    \
    unset;
    REFUSED(s.repeat_penalty = 1.5f, s.repeat_penalty = 0, "repeat_penalty")
    REFUSED(s.presence_penalty = -1, s.presence_penalty = 0, "presence_penalty")
    REFUSED(s.frequency_penalty = 1, s.frequency_penalty = 0, "frequency_penalty")
    REFUSED((s.bias = &bias, s.n_bias = 1), (s.bias = NULL, s.n_bias = 0), "logit_bias")
    REFUSED(s.chain[0] = QN_SAMPLER_TOP_K, s.chain[0] = QN_SAMPLER_END, "samplers")
    REFUSED(o.ban_stop = true, o.ban_stop = false, "ignore_eos")
    REFUSED((o.stop_strings = &stop, o.n_stop_strings = 1),
            (o.stop_strings = NULL, o.n_stop_strings = 0), "stop")
    REFUSED(o.prompt_lookup = 4, o.prompt_lookup = 0, "prompt_lookup")
    REFUSED(o.draft_tokens = 4, o.draft_tokens = 0, "draft_tokens")
    assert_int_equal(qn_backend_generate(b, "\xff", 1, &o, hear, &h, NULL), QN_FORMAT);
    qn_backend_close(b);
    assert_no_children();
}

static void test_cancel(void **state)
{
    static const char *const scripts[] = {
        /* it ends the reply; a natural end may cross the cancel */
        ASKED TOKEN "read cancel; echo \"$cancel\" >>\"$0.heard\"; " TOKEN
                    "echo '{\"done\":true,\"finish\":\"length\"}'\n"
                    "echo '{\"done\":true,\"finish\":\"idle\"}'\n"
                    "read asked; " TOKEN "echo '{\"done\":true,\"finish\":\"stop\"}'; read quit\n",
        /* it ends itself */
        ASKED TOKEN "read cancel\n",
    };
    (void)state;
    skip_without_mlx_lm();
    for (int i = 0; i < 2; i++) {
        qn_error err;
        qn_backend *b;
        qn_flag cancel = false;
        heard h = {.flag = &cancel}, next = {.n = 0};
        assert_int_equal(open_fake(&b, scripts[i], &cancel, &err), QN_OK);
        assert_int_equal(qn_backend_generate(b, "p", 1, &GREEDY, hear, &h, &err), QN_CANCELLED);
        assert_int_equal(h.tokens, 1);
        atomic_store(&cancel, false);
        assert_int_equal(qn_backend_generate(b, "p", 1, &GREEDY, hear, &next, NULL),
                         i ? QN_STATE : QN_OK);
        assert_int_equal(next.tokens, !i);
        qn_backend_close(b);
        assert_no_children();
    }
}

/* A child that does not end when its input does is ended. */
static void test_close(void **state)
{
    (void)state;
    skip_without_mlx_lm();
    qn_error err;
    qn_backend *b;
    assert_int_equal(
        open_fake(&b, LOADED "trap '' TERM INT; while :; do sleep 60; done\n", NULL, &err), QN_OK);
    qn_backend_close(b);
    assert_no_children();
}

static void test_memory(void **state)
{
    (void)state;
    skip_without_mlx_lm();
    const qn_chat_message say = {"user", "Hi", 0};
    for (long n = 0;; n++) {
        qn_error err;
        qn_backend *b;
        heard h = {.n = 0};
        fail_allocation_begin(n);
        qn_status status = open_fake(
            &b, ASKED TOKEN "echo '{\"done\":true,\"finish\":\"stop\"}'; read quit\n", NULL, &err);
        if (status == QN_OK)
            status = qn_backend_chat(b, &say, 1, &GREEDY, hear, &h, &err);
        bool failed = fail_allocation_end();
        /* a script that cannot be compared is written anew */
        assert_true(status == QN_OK || (failed && status == QN_MEMORY));
        qn_backend_close(b);
        assert_no_children();
        if (!failed)
            break;
    }
}

/* ---- the script ------------------------------------------------------------------------------ */

/* The path of the one file in the cache folder. */
static const char *script_path(void)
{
    char name[300] = "";
    DIR *folder = opendir(temp_path("cache/quern"));
    for (struct dirent *e; folder && (e = readdir(folder));)
        if (e->d_name[0] != '.')
            snprintf(name, sizeof name, "cache/quern/%s", e->d_name);
    if (folder)
        closedir(folder);
    return temp_path(name);
}

static bool script_is_good(void)
{
    char fresh[20000], kept[20000], source[600];
    struct stat info;
    snprintf(source, sizeof source, "%s/src/backends/mlx_lm/bridge.py", getenv("QUERN_SOURCE"));
    FILE *a = fopen(source, "r"), *b = fopen(script_path(), "r");
    assert_non_null(a);
    assert_non_null(b);
    size_t n = fread(fresh, 1, sizeof fresh, a), m = fread(kept, 1, sizeof kept, b);
    fclose(a);
    fclose(b);
    return lstat(script_path(), &info) == 0 && S_ISREG(info.st_mode) &&
           (info.st_mode & 0777) == 0600 && n == m && !memcmp(fresh, kept, n);
}

static void load_once(void)
{
    qn_error err;
    qn_backend *b;
    if (open_fake(&b, LOADED "read quit\n", NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_backend_close(b);
}

static void test_script(void **state)
{
    (void)state;
    skip_without_mlx_lm();
    mode_t mask = umask(0);
    load_once();
    assert_true(script_is_good());
    FILE *f = fopen(script_path(), "r+"); /* a byte is another */
    assert_non_null(f);
    fputc('%', f);
    fclose(f);
    load_once();
    assert_true(script_is_good());
    chmod(script_path(), 0666);
    load_once();
    assert_true(script_is_good());
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", script_path());
    assert_int_equal(rename(path, temp_path("elsewhere")), 0);
    assert_int_equal(symlink(temp_path("elsewhere"), path), 0);
    load_once();
    assert_true(script_is_good());
    assert_int_equal(temp_count(temp_path("cache/quern")), 1);
    umask(mask);
    qn_error err;
    qn_backend *b;
    chmod(temp_path("cache/quern"), 0777);
    assert_int_equal(open_fake(&b, LOADED, NULL, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "others may write"));
    chmod(temp_path("cache/quern"), 0700);
}

static void test_no_python(void **state)
{
    (void)state;
    skip_without_mlx_lm();
    qn_error err = {0};
    qn_backend *b;
    const qn_backend_options options = {.size = sizeof options, .python = "no-such-python"};
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    assert_int_equal(qn_backend_open(&b, "mlx_lm", "x", &options, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.message, "no-such-python"));
    assert_non_null(strstr(err.message, "QUERN_PYTHON"));
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    err = (qn_error){0};
    assert_int_equal(qn_backend_open(&b, "mlx_lm", "x", &options, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.message, "XDG_CACHE_HOME"));
    assert_no_children();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_native),
        cmocka_unit_test(test_native_cancel),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_loads_that_fail), cmocka_unit_test(test_replies_that_fail),
        cmocka_unit_test(test_reply),           cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cancel),          cmocka_unit_test(test_close),
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_script),
        cmocka_unit_test(test_no_python),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
