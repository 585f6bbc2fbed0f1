/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile input for parsers: valid samples are changed at random, and each parser says of what
 * comes out whether it accepts it, asserting what must hold either way.
 *
 * Every parser runs in a process of its own, all of them at once, for the same processor time:
 * QUERN_FUZZ_SECONDS (default 1) under a sanitizer, which sees most, and a fifth of it without. An
 * input follows from QUERN_FUZZ_SEED (default 1) and its number alone. The input on which a process
 * ended is left in /tmp, and said.
 */
#ifndef QN_TESTS_FUZZ_H
#define QN_TESTS_FUZZ_H

#include "test.h"

#include "base/temp_dir.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { FUZZ_SAMPLES = 200, FUZZ_LARGEST = 1 << 18, FUZZ_PARSERS = 8, FUZZ_SLOWEST = 20 };

typedef struct fuzz_parser {
    const char *name;
    void (*begin)(void); /* hands its samples to fuzz_add; temp_root is a directory of its own */
    bool (*accepts)(const char *data, size_t n); /* data is exactly n bytes long */
    const char *const *words;                    /* ends with NULL; put into the samples */
} fuzz_parser;

/* What a process tells the one that waits for it. */
typedef struct fuzz_report {
    long inputs, accepted;
    double slowest;
    size_t n;
    char input[2 * FUZZ_LARGEST];
} fuzz_report;

typedef struct fuzz_sample {
    char *data;
    size_t n;
} fuzz_sample;

static fuzz_sample fuzz_samples[FUZZ_SAMPLES];
static size_t fuzz_n_samples;
static uint64_t fuzz_state;

static const char *const fuzz_json_words[] = {"null",
                                              "true",
                                              "false",
                                              "0",
                                              "-1",
                                              "1e400",
                                              "0.5",
                                              "2147483648",
                                              "9223372036854775807",
                                              "99999999999999999999",
                                              "{}",
                                              "[]",
                                              "[[[[[[[[",
                                              "{\"a\":",
                                              "\"\"",
                                              "\\u0000",
                                              "\\ud800",
                                              "\xef\xbb\xbf",
                                              "\"a\":1,",
                                              ",,",
                                              NULL};
static const char *const fuzz_binary_words[] = {"\xff\xff\xff\xff",
                                                "\xff\xff\xff\x7f",
                                                "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
                                                "PK\1\2",
                                                "PK\3\4",
                                                "PK\5\6",
                                                "....",
                                                NULL};

/* A copy of n bytes becomes a sample. */
static inline void fuzz_add(const void *data, size_t n)
{
    assert_true(fuzz_n_samples < FUZZ_SAMPLES && n > 0 && n <= FUZZ_LARGEST);
    char *copy = malloc(n);
    memcpy(copy, data, n);
    fuzz_samples[fuzz_n_samples++] = (fuzz_sample){copy, n};
}

static inline uint32_t fuzz_draw(uint32_t below)
{
    fuzz_state += 0x9e3779b97f4a7c15u;
    uint64_t z = fuzz_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % below);
}

/* m bytes put in, or over what is there. */
static inline size_t fuzz_put(char *data, size_t n, size_t at, const char *from, size_t m)
{
    bool over = fuzz_draw(2);
    if (n + m > 2 * FUZZ_LARGEST)
        return n;
    if (!over)
        memmove(data + at + m, data + at, n - at);
    memcpy(data + at, from, m);
    return !over ? n + m : at + m > n ? at + m : n;
}

/* One change: a byte, a bit, a few bytes, a word, a piece gone, doubled, or taken from another
 * sample. */
static inline size_t fuzz_change(char *data, size_t n, const char *const *words)
{
    static const char interesting[] = "\0\1\2\x7f\x80\xff(){}[]'\",:.\\0129-eEtRfnqhjs \xe2";
    size_t at = fuzz_draw((uint32_t)n), m = 1 + fuzz_draw(fuzz_draw(4) ? 8 : 300), n_words = 0;
    const fuzz_sample *other = &fuzz_samples[fuzz_draw((uint32_t)fuzz_n_samples)];
    m = m < n - at ? m : n - at;
    while (words[n_words])
        n_words++;
    switch (fuzz_draw(8)) {
    case 0: data[at] = (char)fuzz_draw(256); break;
    case 1: data[at] = interesting[fuzz_draw(sizeof interesting - 1)]; break;
    case 2: data[at] ^= (char)(1u << fuzz_draw(8)); break;
    case 3: memset(data + at, fuzz_draw(2) ? 0xff : 0, m < 8 ? m : 8); break;
    case 4: memmove(data + at, data + at + m, n - at - m); return n - m > 0 ? n - m : 1;
    case 5: {
        char piece[301];
        memcpy(piece, data + at, m);
        return fuzz_put(data, n, at, piece, m);
    }
    case 6: {
        size_t from = fuzz_draw((uint32_t)other->n);
        m = m < other->n - from ? m : other->n - from;
        return fuzz_put(data, n, at, other->data + from, m);
    }
    case 7: {
        const char *word = words[fuzz_draw((uint32_t)n_words)];
        return fuzz_put(data, n, at, word, strlen(word));
    }
    }
    return n;
}

static inline double fuzz_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void fuzz_try(const fuzz_parser *p, fuzz_report *r)
{
    double begun = fuzz_clock();
    char *exact = malloc(r->n); /* so that a read behind its end is seen */
    memcpy(exact, r->input, r->n);
    r->accepted += p->accepts(exact, r->n);
    free(exact);
    double took = fuzz_clock() - begun;
    r->slowest = took > r->slowest ? took : r->slowest;
    r->inputs++;
}

/* The life of one parser's process. */
static inline void fuzz_child(const fuzz_parser *p, fuzz_report *r, uint64_t seed, double seconds)
{
    struct rlimit limit = {(rlim_t)seconds + FUZZ_SLOWEST, (rlim_t)seconds + FUZZ_SLOWEST + 1};
    setrlimit(RLIMIT_CPU, &limit); /* ends what never ends */
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    strcpy(temp_root, temp_mkdir(p->name));
    p->begin();
    for (size_t i = 0; i < fuzz_n_samples; i++) {
        memcpy(r->input, fuzz_samples[i].data, r->n = fuzz_samples[i].n);
        fuzz_try(p, r);
    }
    for (uint64_t i = 0; fuzz_clock() < seconds; i++) {
        fuzz_state = (seed << 32) + i * 0x632be59bd9b4e019u;
        const fuzz_sample *s = &fuzz_samples[fuzz_draw((uint32_t)fuzz_n_samples)];
        memcpy(r->input, s->data, r->n = s->n);
        for (uint32_t k = 1 + fuzz_draw(5); k > 0; k--)
            r->n = fuzz_change(r->input, r->n, p->words);
        fuzz_try(p, r);
    }
    for (size_t i = 0; i < fuzz_n_samples; i++)
        free(fuzz_samples[i].data);
    exit(0);
}

/* false: the process failed, or did too little. */
static inline bool fuzz_judge(const fuzz_parser *p, const fuzz_report *r, int status)
{
    print_message("%s: %ld inputs, %ld accepted, slowest %.3f s\n", p->name, r->inputs, r->accepted,
                  r->slowest);
    bool done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (done && r->slowest < FUZZ_SLOWEST)
        return r->inputs > 100 && r->accepted > 0;
    char path[80];
    snprintf(path, sizeof path, "/tmp/quern-fuzz-%s", p->name);
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(r->input, 1, r->n, f);
        fclose(f);
    }
    print_error("%s: %s %d; the input is in %s\n", p->name,
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), path);
    return false;
}

/* The test: to be run between temp_begin and temp_end. */
static inline void fuzz_parsers(const fuzz_parser *parsers, size_t n)
{
    const char *wanted = getenv("QUERN_FUZZ_SECONDS"), *seed = getenv("QUERN_FUZZ_SEED");
    double seconds = wanted ? atof(wanted) : 1;
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    seconds /= 5;
#endif
    pid_t children[FUZZ_PARSERS];
    assert_true(n <= FUZZ_PARSERS);
    fuzz_report *reports =
        mmap(NULL, n * sizeof *reports, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(reports, MAP_FAILED);
    fflush(NULL);
    for (size_t i = 0; i < n; i++) {
        children[i] = fork();
        assert_int_not_equal(children[i], -1);
        if (children[i] == 0)
            fuzz_child(&parsers[i], &reports[i], seed ? strtoull(seed, NULL, 10) : 1, seconds);
    }
    bool good = true;
    for (size_t i = 0; i < n; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        good &= fuzz_judge(&parsers[i], &reports[i], status);
    }
    munmap(reports, n * sizeof *reports);
    assert_true(good);
}

#endif
