/* SPDX-License-Identifier: Apache-2.0
 *
 * The team. Two waits: inside a run, nanoseconds to microseconds long, which spins and then yields;
 * and the wait for the next run, which spins for a fraction of a millisecond and then sleeps on a
 * condition variable. Waking is under the mutex, so no wake-up is lost. A run does not wait for
 * workers that have not come to it: its caller closes it when its own part is through, and waits
 * for those inside.
 */
#include "base/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { SPINS_IN_RUN = 2000, SPINS_BETWEEN_RUNS = 20000, MOST_THREADS = 1024 };

#define CLOSED 0x80000000u /* no worker may join the run any more */

struct qn__team {
    int n;
    pthread_t *threads; /* workers: n - 1 */
    int n_started;
    qn__team_fn *fn;
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int sleepers;                /* under lock */
    alignas(64) atomic_uint run; /* counts runs; workers wait for it to change */
    atomic_bool quit;
    alignas(64) atomic_uint state; /* workers in the run, and CLOSED */
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* most processors take yield for a nop */
#endif
}

void qn__team_pause(unsigned i)
{
    if (i < SPINS_IN_RUN)
        pause_cpu();
    else
        sched_yield();
}

/* The CPUs a cgroup's quota allows, rounded up; 0 when there is none. */
static int quota_cpus(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f)
        return 0;
    long quota = 0, period = 0;
    int n = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    return n == 2 && quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int qn__team_default_size(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = quota_cpus();
    if (quota > 0 && quota < n)
        n = quota;
    return n < 1 ? 1 : n > MOST_THREADS ? MOST_THREADS : n;
}

/* Returns the number of the newest run once it differs from `seen`. */
static unsigned wait_for_run(qn__team *team, unsigned seen)
{
    for (int i = 0; i < SPINS_BETWEEN_RUNS; i++) {
        unsigned run = atomic_load_explicit(&team->run, memory_order_acquire);
        if (run != seen)
            return run;
        pause_cpu();
    }
    pthread_mutex_lock(&team->lock);
    team->sleepers++;
    while (atomic_load(&team->run) == seen)
        pthread_cond_wait(&team->wake, &team->lock);
    team->sleepers--;
    unsigned run = atomic_load(&team->run);
    pthread_mutex_unlock(&team->lock);
    return run;
}

typedef struct start {
    qn__team *team;
    int thread;
} start;

static void *work(void *argument)
{
    start s = *(start *)argument;
    free(argument);
    qn__team *team = s.team;
    for (unsigned seen = 0;;) {
        seen = wait_for_run(team, seen);
        if (atomic_load(&team->quit))
            return NULL;
        if (!(atomic_fetch_add_explicit(&team->state, 1, memory_order_acq_rel) & CLOSED))
            team->fn(team->context, s.thread, team->n);
        atomic_fetch_sub_explicit(&team->state, 1, memory_order_acq_rel);
    }
}

static void announce(qn__team *team)
{
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add(&team->run, 1);
    if (team->sleepers)
        pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
}

qn__team *qn__team_new(int n_threads)
{
    if (n_threads < 1 || n_threads > MOST_THREADS)
        return NULL;
    qn__team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    if (!team)
        return NULL;
    *team = (qn__team){.n = n_threads, .state = CLOSED};
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    team->threads = calloc((size_t)n_threads, sizeof *team->threads);
    bool ok = team->threads != NULL;
    for (int i = 1; ok && i < n_threads; i++) {
        start *s = malloc(sizeof *s);
        ok = s != NULL;
        if (!ok)
            break;
        *s = (start){team, i};
        ok = pthread_create(&team->threads[team->n_started], NULL, work, s) == 0;
        if (ok)
            team->n_started++;
        else
            free(s);
    }
    if (!ok) {
        qn__team_free(team);
        return NULL;
    }
    return team;
}

void qn__team_free(qn__team *team)
{
    if (!team)
        return;
    atomic_store(&team->quit, true);
    announce(team);
    for (int i = 0; i < team->n_started; i++)
        pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->lock);
    free(team->threads);
    free(team);
}

int qn__team_size(const qn__team *team)
{
    return team->n;
}

void qn__team_run(qn__team *team, qn__team_fn *fn, void *context)
{
    if (team->n == 1) {
        fn(context, 0, 1);
        return;
    }
    team->fn = fn;
    team->context = context;
    atomic_fetch_and_explicit(&team->state, ~CLOSED, memory_order_release);
    announce(team);
    fn(context, 0, team->n);
    atomic_fetch_or_explicit(&team->state, CLOSED, memory_order_acq_rel);
    for (unsigned i = 0; atomic_load_explicit(&team->state, memory_order_acquire) != CLOSED; i++)
        qn__team_pause(i);
}
