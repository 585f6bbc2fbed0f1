/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of runs: submissions are numbered and stand in one line. A synchronous one runs on its
 * caller's thread when it has come to the front; asynchronous ones are run by a thread that the
 * first of them starts. What they leave is known by the number of the submission that wrote it.
 */
#include "base/error.h"
#include "cpu/cpu.h"

void qn__cpu_queue_begin(qn__cpu *cpu)
{
    pthread_mutex_init(&cpu->lock, NULL);
    pthread_cond_init(&cpu->changed, NULL);
}

void qn__cpu_queue_wait(qn__cpu *cpu, uint64_t number)
{
    pthread_mutex_lock(&cpu->lock);
    while (cpu->n_run < number)
        pthread_cond_wait(&cpu->changed, &cpu->lock);
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

/* Runs the submission at the front of the line; the lock is not held. */
static void run_front(qn_device *device, qn__submission *sub)
{
    qn__cpu *cpu = device->state;
    qn__submission_end(sub, qn__cpu_run(device, sub, &sub->error));
    pthread_mutex_lock(&cpu->lock);
    cpu->first = sub->next;
    if (!cpu->first)
        cpu->last = NULL;
    cpu->n_run = sub->number;
    pthread_cond_broadcast(&cpu->changed);
    pthread_mutex_unlock(&cpu->lock);
}

static void *run_queue(void *argument)
{
    qn_device *device = argument;
    qn__cpu *cpu = device->state;
    pthread_mutex_lock(&cpu->lock);
    for (;;) {
        while (!cpu->quit && !(cpu->first && cpu->first->async))
            pthread_cond_wait(&cpu->changed, &cpu->lock);
        if (cpu->quit)
            break;
        qn__submission *sub = cpu->first;
        pthread_mutex_unlock(&cpu->lock);
        run_front(device, sub);
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

/* Under the lock: numbers a submission, and with it what it writes, and puts it last. */
static void join_line(qn__cpu *cpu, qn__submission *sub)
{
    sub->number = ++cpu->n_submitted;
    sub->next = NULL;
    *(cpu->last ? &cpu->last->next : &cpu->first) = sub;
    cpu->last = sub;
    const qn__plan *plan = sub->binding->plan;
    for (uint32_t i = 0; i < plan->n_targets; i++)
        atomic_store(&sub->held[plan->output_slots[i]]->written_by, sub->number);
    pthread_cond_broadcast(&cpu->changed);
}

static qn_status enqueue(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cpu *cpu = device->state;
    qn_status status = QN_OK;
    pthread_mutex_lock(&cpu->lock);
    if (!cpu->has_runner &&
        !(cpu->has_runner = pthread_create(&cpu->runner, NULL, run_queue, device) == 0))
        status = qn__fail(err, QN_MEMORY, "cpu: the thread for asynchronous runs was refused");
    if (status == QN_OK) {
        atomic_fetch_add(&sub->refs, 1);
        join_line(cpu, sub);
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
    join_line(cpu, sub);
    while (cpu->first != sub)
        pthread_cond_wait(&cpu->changed, &cpu->lock);
    pthread_mutex_unlock(&cpu->lock);
    run_front(device, sub);
    return sub->status == QN_OK ? QN_OK : qn__fail(err, sub->status, "%s", sub->error.message);
}

qn_status qn__cpu_wait(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cpu_queue_wait(device->state, sub->number);
    return sub->status == QN_OK ? QN_OK : qn__fail(err, sub->status, "%s", sub->error.message);
}
