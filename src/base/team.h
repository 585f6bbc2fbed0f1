/* SPDX-License-Identifier: Apache-2.0
 *
 * A team of threads that runs one function together: the caller is thread 0. Between runs workers
 * spin briefly, then sleep, so an idle process uses no CPU.
 */
#ifndef QN_BASE_TEAM_H
#define QN_BASE_TEAM_H

typedef struct qn__team qn__team;

typedef void qn__team_fn(void *context, int thread, int n_threads);

/* How many CPUs this process may use: affinity and the cgroup's quota; at least 1. */
int qn__team_default_size(void);

/* NULL when memory or threads are out. Workers start at once. */
qn__team *qn__team_new(int n_threads);
void qn__team_free(qn__team *team);
int qn__team_size(const qn__team *team);

/* Runs fn on the caller as thread 0 and on every worker that comes before the caller's own call
 * returns; returns when all of these have. So fn must share its work out as threads come, and not
 * count on any but thread 0. One run at a time. */
void qn__team_run(qn__team *team, qn__team_fn *fn, void *context);

/* For a loop that waits for another thread of the team; `i` counts its rounds. Spins at first, then
 * lets others have the CPU. */
void qn__team_pause(unsigned i);

#endif
