/* SPDX-License-Identifier: Apache-2.0
 *
 * A team of threads that runs one function in lockstep: the caller is thread 0. Between runs workers
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

/* Runs fn on every thread and returns when all have. One run at a time. */
void qn__team_run(qn__team *team, qn__team_fn *fn, void *context);

/* Inside a run: returns once every thread of the team has called it. */
void qn__team_barrier(qn__team *team);

#endif
