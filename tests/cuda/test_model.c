/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole models on a GPU: greedy tokens equal to the CPU's, one graph launch and one read a token;
 * models in encodings that it does not hold are refused with an error that names those it holds.
 * The directories of the models are the arguments; without any, those of the source tree. Exits
 * with 77 where there is no GPU.
 */
#include "models/golden_model.h"

#include "cuda/device.h"

#include <glob.h>

enum { TOKENS = 40, WARM = 3 };

static int n_failed, n_compared;

static void check(bool ok, const char *what, const char *detail)
{
    n_failed += !ok;
    if (!ok)
        printf("FAILED  %s: %s\n", what, detail);
}

typedef struct run {
    int32_t tokens[TOKENS];
    float *logits; /* behind the prompt */
    int64_t vocab;
    uint64_t launches, captures, reads; /* of the tokens after the first WARM */
    bool refused; /* the device holds no weights in an encoding, and says so */
} run;

static const int32_t prompt[] = {3, 17, 42, 5, 60, 11, 29};

/* Runs the prompt, then greedy steps. */
static bool run_session(qn_device *dev, qn_session *session, bool cuda, run *r, qn_error *err)
{
    size_t n = sizeof prompt / sizeof *prompt;
    qn__cuda_stats before = {0}, after = {0};
    if (qn_session_append(session, prompt, n, err) != QN_OK)
        return false;
    r->logits = malloc((size_t)r->vocab * sizeof *r->logits);
    if (!r->logits)
        return false;
    memcpy(r->logits, qn_session_logits(session), (size_t)r->vocab * sizeof *r->logits);
    int32_t token = 1;
    for (int i = 0; i < TOKENS; i++) {
        if (cuda && i == WARM)
            before = qn__cuda_stats_get(dev);
        if (qn_session_step_greedy(session, token, &token, err) != QN_OK)
            return false;
        r->tokens[i] = token;
    }
    if (cuda)
        after = qn__cuda_stats_get(dev);
    r->launches = after.launches - before.launches;
    r->captures = after.captures - before.captures;
    r->reads = after.host_reads - before.host_reads;
    return true;
}

static bool run_model(qn_device *dev, const char *path, bool cuda, run *r)
{
    qn_error err = {0};
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_model_options options = {.size = sizeof options, .no_tokenizer = true};
    bool ok = qn_model_open(&model, dev, path, &options, &err) == QN_OK;
    if (ok) {
        qn_model_info info = QN_INIT(qn_model_info);
        qn_model_get_info(model, &info);
        r->vocab = info.vocab_size;
        ok = qn_session_open(&session, model, NULL, &err) == QN_OK &&
             run_session(dev, session, cuda, r, &err);
    }
    r->refused = cuda && !model && err.code == QN_UNSUPPORTED &&
                 strstr(err.message, "cuda:0 holds no weights in") &&
                 strstr(err.message, "it holds them in f32, f16, bf16");
    if (r->refused)
        printf("%s: %s\n", path, err.message);
    check(ok || r->refused, path, err.message);
    qn_session_close(session);
    qn_model_close(model);
    return ok;
}

static void compare(qn_device *cpu, qn_device *cuda, const char *path)
{
    run want = {{0}}, got = {{0}};
    if (run_model(cpu, path, false, &want) && run_model(cuda, path, true, &got)) {
        double error = 0, power = 0;
        for (int64_t i = 0; i < want.vocab; i++) {
            double d = (double)got.logits[i] - (double)want.logits[i];
            error += d * d;
            power += (double)want.logits[i] * (double)want.logits[i];
        }
        int same = 0;
        n_compared++;
        while (same < TOKENS && want.tokens[same] == got.tokens[same])
            same++;
        printf("%s: logits nmse %.3g, %d of %d tokens the same; of %d tokens: %llu launches, %llu "
               "captures, %llu reads\n",
               path, error / power, same, TOKENS, TOKENS - WARM, (unsigned long long)got.launches,
               (unsigned long long)got.captures, (unsigned long long)got.reads);
        check(error <= 1e-9 * power, path, "logits");
        check(same == TOKENS, path, "greedy tokens");
        check(got.launches == TOKENS - WARM, path, "one launch a token");
        check(got.captures == 0, path, "nothing is captured again");
        check(got.reads == TOKENS - WARM, path, "only tokens are read");
    }
    free(want.logits);
    free(got.logits);
}

/* Every tests/golden/FAMILY/MODEL. */
static void compare_golden(qn_device *cpu, qn_device *cuda)
{
    char pattern[512], path[512];
    glob_t found;
    golden_path(pattern, sizeof pattern, "*/*", "config.json");
    check(glob(pattern, 0, NULL, &found) == 0, pattern, "no models");
    temp_begin(NULL);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = strrchr(found.gl_pathv[i], '/');
        for (*name = 0; strncmp(name, "/golden/", 8) != 0; name--)
            continue;
        golden_directory(path, sizeof path, name + 8);
        compare(cpu, cuda, path);
    }
    temp_end(NULL);
    globfree(&found);
    check(n_compared > 40, pattern, "most models are held");
}

int main(int argc, char **argv)
{
    qn_device *cpu = NULL, *cuda = NULL;
    qn_error err = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (qn_device_open(&cuda, "cuda:0", NULL, &err) != QN_OK) {
        printf("skipped: %s\n", err.message);
        return err.code == QN_UNSUPPORTED ? 77 : 1;
    }
    if (qn_device_open(&cpu, "cpu", NULL, &err) != QN_OK) {
        printf("cpu: %s\n", err.message);
        return 1;
    }
    for (int i = 1; i < argc; i++)
        compare(cpu, cuda, argv[i]);
    if (argc < 2)
        compare_golden(cpu, cuda);
    check(memory_of(cuda).active == 0, "memory", "all are back");
    qn_device_close(cuda);
    qn_device_close(cpu);
    printf("%d failed\n", n_failed);
    return n_failed ? 1 : 0;
}
