/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs made at run time: texts that NVRTC compiles for the device, and PTX that the driver
 * does. Each is kept by its text: by the device, and what was compiled on the disk.
 */
#include "base/error.h"
#include "base/hash.h"
#include "cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

struct qn__cuda_program {
    struct qn__cuda_program *next;
    qn__cu_module module;
    qn__cu_function function;
    uint64_t hash; /* of the text */
    char *kernel;  /* behind the text */
    char text[];
};

/* ---- compiling ------------------------------------------------------------------------------- */

/* The first line of the compiler's log that tells an error goes into the error. */
static void fail_compile(const qn__nvrtc *nvrtc, qn__nvrtc_program program, const char *what,
                         qn_error *err)
{
    size_t n = 0;
    char *log = nvrtc->log_size(program, &n) == 0 ? calloc(1, n + 1) : NULL;
    bool told = log && nvrtc->log(program, log) == 0;
    char *line = told ? strstr(log, "error") : NULL;
    while (line && line > log && line[-1] != '\n')
        line--;
    line = line ? line : log;
    if (line)
        line[strcspn(line, "\n")] = 0;
    qn__fail(err, QN_DEVICE, "cuda: %s does not compile: %.300s", what,
             told && *line ? line : "no message");
    free(log);
}

static char *fail_compiler(const char *what, int result, qn_error *err)
{
    qn__fail(err, QN_DEVICE, "cuda: NVRTC fails with error %d on %s", result, what);
    return NULL;
}

/* The code of what was compiled. */
static char *get_code(const qn__nvrtc *nvrtc, qn__nvrtc_program program, const char *what,
                      size_t *size, qn_error *err)
{
    int result = nvrtc->code_size(program, size);
    if (result != 0)
        return fail_compiler(what, result, err);
    char *code = malloc(*size ? *size : 1);
    if (!code) {
        qn__fail_memory(err, "a program");
        return NULL;
    }
    result = nvrtc->code(program, code);
    if (result == 0)
        return code;
    free(code);
    return fail_compiler(what, result, err);
}

char *qn__cuda_compile(const qn__nvrtc *nvrtc, const qn__cuda_source *source, int arch,
                       size_t *size, qn_error *err)
{
    char target[48];
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d", arch);
    const char *options[] = {target, "--std=c++17", "--fmad=false"};
    qn__nvrtc_program program;
    *size = 0;
    int result = nvrtc->create(&program, source->text, "program.cu", 0, NULL, NULL);
    if (result != 0)
        return fail_compiler(source->what, result, err);
    char *code = NULL;
    if (nvrtc->compile(program, source->exact ? 3 : 2, options) != 0)
        fail_compile(nvrtc, program, source->what, err);
    else
        code = get_code(nvrtc, program, source->what, size, err);
    nvrtc->destroy(&program);
    return code;
}

/* What the driver loads: PTX as it is; from the disk, if *kept, which tells then whether it was
 * there; or compiled and kept there. */
static char *program_code(qn__cuda *cuda, const qn__cuda_source *source, bool *kept, qn_error *err)
{
    size_t size;
    char *code = NULL;
    if (source->is_ptx)
        code = strdup(source->text);
    else if (*kept)
        code = qn__cuda_program_read(source->text, source->n, cuda->arch);
    if (source->is_ptx && !code)
        qn__fail_memory(err, "a program");
    *kept = code && !source->is_ptx;
    if (code || source->is_ptx)
        return code;
    if (!cuda->nvrtc.library && qn__nvrtc_load(&cuda->nvrtc, err) != QN_OK)
        return NULL;
    code = qn__cuda_compile(&cuda->nvrtc, source, cuda->arch, &size, err);
    if (code) {
        qn__cuda_program_write(source->text, source->n, cuda->arch, code, size);
        cuda->stats.compiled++;
    }
    return code;
}

/* ---- the device's ---------------------------------------------------------------------------- */

static qn__cuda_program *find_program(qn__cuda *cuda, const qn__cuda_source *source, uint64_t hash)
{
    qn__cuda_program *p = cuda->programs;
    while (p &&
           (p->hash != hash || strcmp(p->text, source->text) || strcmp(p->kernel, source->kernel)))
        p = p->next;
    return p;
}

/* Loads a program's code. What the driver refuses of the disk's is compiled again: where machines
 * share a home, another's compiler may have made it. False: `err` tells why there is no code. */
static bool load_code(qn__cuda *cuda, const qn__cuda_source *source, qn__cu_module *module,
                      int *result, qn_error *err)
{
    for (bool kept = true;; kept = false) {
        char *code = program_code(cuda, source, &kept, err);
        if (!code)
            return false;
        *result = cuda->cu.module_load(module, code);
        free(code);
        if (!kept || *result == 0 || *result == QN__CU_OUT_OF_MEMORY)
            return true;
    }
}

/* Under the lock, in the context. */
static qn__cuda_program *make_program(qn__cuda *cuda, const qn__cuda_source *source, uint64_t hash,
                                      qn_error *err)
{
    int result = QN__CU_OUT_OF_MEMORY;
    qn__cuda_program *p = calloc(1, sizeof *p + source->n + 1 + strlen(source->kernel) + 1);
    if (p && !load_code(cuda, source, &p->module, &result, err)) {
        free(p);
        return NULL;
    }
    if (result == 0)
        result = cuda->cu.module_function(&p->function, p->module, source->kernel);
    if (result != 0) {
        char doing[200];
        if (p && p->module)
            cuda->cu.module_unload(p->module);
        free(p);
        snprintf(doing, sizeof doing, "loading %s, kernel %.60s", source->what, source->kernel);
        qn__cuda_fail(cuda, err, result, doing);
        return NULL;
    }
    p->kernel = p->text + source->n + 1;
    memcpy(p->text, source->text, source->n);
    strcpy(p->kernel, source->kernel);
    p->hash = hash;
    p->next = cuda->programs;
    cuda->programs = p;
    cuda->stats.programs++;
    return p;
}

void qn__cuda_programs_free(qn__cuda *cuda, bool unload)
{
    while (cuda->programs) {
        qn__cuda_program *next = cuda->programs->next;
        if (unload)
            cuda->cu.module_unload(cuda->programs->module);
        free(cuda->programs);
        cuda->programs = next;
    }
}

qn__cu_function qn__cuda_function(qn__cuda_binder *b, const qn__cuda_source *source)
{
    qn__cuda *cuda = b->cuda;
    qn__cuda_program *p = NULL;
    pthread_mutex_lock(&cuda->lock);
    if (qn__cuda_enter(cuda)) {
        uint64_t hash = qn__hash_bytes(source->text, source->n, 0);
        p = find_program(cuda, source, hash);
        if (!p)
            p = make_program(cuda, source, hash, b->err);
        qn__cuda_leave(cuda);
    } else {
        qn__fail(b->err, QN_DEVICE, "%s: the context is lost", cuda->name);
    }
    pthread_mutex_unlock(&cuda->lock);
    return p ? p->function : NULL;
}
