/* SPDX-License-Identifier: Apache-2.0
 *
 * What steps cost, learned from a machine that takes what its formula says, with noise.
 */
#include "generate/pace.h"

#include "test.h"

/* Seconds. */
typedef struct machine {
    double decode, token, position;
    uint32_t noise;
} machine;

static double noise(machine *m)
{
    m->noise = m->noise * 1664525 + 1013904223;
    return 0.95 + 0.1 * (m->noise >> 8) / (1 << 24);
}

/* Runs a prompt from a position to another, beside others' tokens, in pieces that are to take
 * 1.5 steps without; gives the longest step, in such steps. */
static double run_prompt(qn__pace *p, machine *m, int64_t from, int64_t to)
{
    double longest = 0;
    while (from < to) {
        int64_t n = (int64_t)qn__pace_fits(p, 1.5 * qn__pace_decode(p, 16), from);
        n = n < 4 ? 4 : n;
        n = n < to - from ? n : to - from;
        qn__prompt_work work = {0};
        qn__prompt_work_add(&work, n, from);
        double positions = 0;
        for (int64_t i = 0; i < n; i++)
            positions += (double)(from + i);
        assert_float_equal(work.positions, positions, 0);
        double took = (m->decode + m->token * (double)n + m->position * positions) * noise(m);
        qn__pace_learn(p, took, 16, work);
        longest = took / m->decode > longest ? took / m->decode : longest;
        from += n;
    }
    return longest;
}

/* Where attention soon costs more than the rest, and where it hardly costs; where a first prompt
 * alone has told little of either. */
static void test_even_steps(void **state)
{
    (void)state;
    const double even[] = {500, 3000, 1e6};
    for (int i = 0; i < 3; i++) {
        machine m = {.decode = 0.02, .token = 0.001, .position = 0.001 / even[i], .noise = 7};
        qn__pace p = {0};
        qn__prompt_work first = {0};
        qn__prompt_work_add(&first, 100, 0);
        qn__pace_learn(&p, 0.6 * m.token * 100, 0, first);
        for (int k = 0; k < 20; k++)
            qn__pace_learn(&p, m.decode * noise(&m), 16, (qn__prompt_work){0});
        assert_float_equal(qn__pace_decode(&p, 16), m.decode, 0.1 * m.decode);
        run_prompt(&p, &m, 0, 4000);
        for (int k = 0; k < 3; k++) { /* once learned: from the beginning, and its end alone */
            assert_true(run_prompt(&p, &m, 0, 4000) < 3);
            assert_true(run_prompt(&p, &m, 3900, 4000) < 3);
            assert_true(run_prompt(&p, &m, 0, 50) < 3);
        }
    }
}

/* A pause of the machine is not the prompts' fault for long. */
static void test_pause(void **state)
{
    (void)state;
    machine m = {.decode = 0.02, .token = 0.001, .position = 1e-6, .noise = 3};
    qn__pace p = {.decode = {[16] = m.decode}, .token = m.token, .position = m.position};
    qn__prompt_work work = {0};
    qn__prompt_work_add(&work, 20, 1000);
    qn__pace_learn(&p, 5, 16, work);
    assert_true(p.token < 2 * m.token && p.position < 2 * m.position &&
                p.decode[16] < 2 * m.decode);
    run_prompt(&p, &m, 0, 1000);
    assert_true(run_prompt(&p, &m, 0, 4000) < 3);
}

/* Tokens that fit take the time that they were to take. */
static void test_fits(void **state)
{
    (void)state;
    const qn__pace p = {.token = 0.001, .position = 2e-6};
    for (int64_t from = 0; from <= 8000; from += 1000) {
        int64_t n = (int64_t)qn__pace_fits(&p, 0.3, from);
        qn__prompt_work fits = {0}, more = {0};
        qn__prompt_work_add(&fits, n, from);
        qn__prompt_work_add(&more, n + 1, from);
        assert_true(qn__pace_seconds(&p, fits) <= 0.3 && qn__pace_seconds(&p, more) > 0.3);
    }
    assert_true(qn__pace_fits(&(qn__pace){0}, 1, 10) == 0);
}

/* A step's cost is of its rows: of few, known before, it is not taken for that of many. */
static void test_rows(void **state)
{
    (void)state;
    qn__pace p = {0};
    assert_true(qn__pace_decode(&p, 4) == 0);
    for (int i = 0; i < 30; i++)
        qn__pace_learn(&p, 0.25, 16, (qn__prompt_work){0});
    assert_true(qn__pace_decode(&p, 1) == 0.25); /* no fewer are known */
    qn__pace_learn(&p, 0.125, 2, (qn__prompt_work){0});
    assert_true(qn__pace_decode(&p, 2) == 0.125 && qn__pace_decode(&p, 15) == 0.125);
    assert_true(qn__pace_decode(&p, 16) == 0.25 && qn__pace_decode(&p, 1000) == 0.25);
    qn__pace_learn(&p, 0.5, 1000, (qn__prompt_work){0});
    assert_true(qn__pace_decode(&p, 64) == 0.5 && qn__pace_decode(&p, 31) == 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_even_steps),
                                       cmocka_unit_test(test_pause), cmocka_unit_test(test_fits),
                                       cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
