/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of runs. A synchronous submission runs on its caller's thread as soon as nothing is before
 * it; an asynchronous one is put into a list for a runner thread, which the first of them starts.
 */
#include "base/error.h"
#include "cpu/cpu.h"

void qn__cpu_queue_begin(qn__cpu *cpu)
{
    pthread_mutex_init(&cpu->lock, NULL);
    pthread_cond_init(&cpu->changed, NULL);
}

/* Under the lock: nothing runs and nothing waits. */
static void wait_until_idle(qn__cpu *cpu)
{
    while (cpu->busy || cpu->first)
        pthread_cond_wait(&cpu->changed, &cpu->lock);
}

void qn__cpu_queue_drain(qn__cpu *cpu)
{
    pthread_mutex_lock(&cpu->lock);
    wait_until_idle(cpu);
    pthread_mutex_unlock(&cpu->lock);
}

void qn__cpu_queue_end(qn__cpu *cpu)
{
    if (cpu->has_runner) {
        pthread_mutex_lock(&cpu->lock);
        cpu->quit = true;
        pthread_cond_broadcast(&cpu->changed);
        pthread_mutex_unlock(&cpu->lock);
        if (pthread_equal(pthread_self(), cpu->runner))
            pthread_detach(cpu->runner); /* it closes the device itself, see run_queue */
        else
            pthread_join(cpu->runner, NULL);
    }
    pthread_cond_destroy(&cpu->changed);
    pthread_mutex_destroy(&cpu->lock);
}

/* Runs with busy set, the lock not held. */
static void run_exclusively(qn_device *device, qn__submission *sub)
{
    qn__cpu *cpu = device->state;
    if (qn__cpu_run(device, sub, &sub->error) != QN_OK)
        qn__submission_invalidate(sub);
    pthread_mutex_lock(&cpu->lock);
    sub->done = true;
    cpu->busy = false;
    pthread_cond_broadcast(&cpu->changed);
    pthread_mutex_unlock(&cpu->lock);
}

static void *run_queue(void *argument)
{
    qn_device *device = argument;
    qn__cpu *cpu = device->state;
    pthread_mutex_lock(&cpu->lock);
    for (;;) {
        while (!cpu->quit && (cpu->busy || !cpu->first))
            pthread_cond_wait(&cpu->changed, &cpu->lock);
        if (cpu->quit)
            break;
        qn__submission *sub = cpu->first;
        cpu->first = sub->next;
        if (!cpu->first)
            cpu->last = NULL;
        cpu->busy = true;
        pthread_mutex_unlock(&cpu->lock);
        run_exclusively(device, sub);
        atomic_fetch_add(&device->refs, 1);
        qn__submission_release(sub);
        if (atomic_fetch_sub(&device->refs, 1) == 1) { /* it held the device's last references */
            device->ops->close(device);
            return NULL;
        }
        pthread_mutex_lock(&cpu->lock);
    }
    pthread_mutex_unlock(&cpu->lock);
    return NULL;
}

static qn_status enqueue(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cpu *cpu = device->state;
    qn_status status = QN_OK;
    pthread_mutex_lock(&cpu->lock);
    if (!cpu->has_runner && !(cpu->has_runner = pthread_create(&cpu->runner, NULL, run_queue,
                                                               device) == 0))
        status = qn__fail(err, QN_MEMORY, "cpu: the thread for asynchronous runs was refused");
    if (status == QN_OK) {
        atomic_fetch_add(&sub->refs, 1);
        sub->next = NULL;
        *(cpu->last ? &cpu->last->next : &cpu->first) = sub;
        cpu->last = sub;
        pthread_cond_broadcast(&cpu->changed);
    }
    pthread_mutex_unlock(&cpu->lock);
    return status;
}

qn_status qn__cpu_submit(qn_device *device, qn__submission *sub, qn_error *err)
{
    if (sub->async)
        return enqueue(device, sub, err);
    qn__cpu *cpu = device->state;
    pthread_mutex_lock(&cpu->lock);
    wait_until_idle(cpu);
    cpu->busy = true;
    pthread_mutex_unlock(&cpu->lock);
    run_exclusively(device, sub);
    return sub->status == QN_OK ? QN_OK : qn__fail(err, sub->status, "%s", sub->error.message);
}

qn_status qn__cpu_wait(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cpu *cpu = device->state;
    pthread_mutex_lock(&cpu->lock);
    while (!sub->done)
        pthread_cond_wait(&cpu->changed, &cpu->lock);
    pthread_mutex_unlock(&cpu->lock);
    return sub->status == QN_OK ? QN_OK : qn__fail(err, sub->status, "%s", sub->error.message);
}
