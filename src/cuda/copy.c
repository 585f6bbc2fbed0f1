/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between host and GPU. Writes pass through a ring of page-locked stages and return when the
 * host's bytes are in them; several threads may write at once, each into a stage of its own, so
 * that what loads a model keeps the bus busy. Reads wait: for the submission that computed what is
 * read, not for those behind it.
 */
#include "base/clock.h"
#include "base/error.h"
#include "cuda/cuda.h"

#include <string.h>

/* ---- stages ---------------------------------------------------------------------------------- */

void qn__cuda_free_stages(qn__cuda *cuda)
{
    if (cuda->stages)
        cuda->cu.host_free(cuda->stages);
    cuda->stages = NULL;
    cuda->wired = 0;
    cuda->n_staged = 0;
}

/* As many stages as may be page-locked. */
static size_t stages_within(size_t limit)
{
    size_t most = (size_t)QN__CUDA_STAGES * QN__CUDA_STAGE_BYTES;
    return limit && limit < most ? limit / QN__CUDA_STAGE_BYTES * QN__CUDA_STAGE_BYTES : most;
}

/* The ring of stages, made for the first write. Without one writes still work. */
static void make_stages(qn_device *device, qn__cuda *cuda)
{
    void *stages;
    size_t bytes = stages_within(atomic_load(&device->pool.wired_limit));
    if (cuda->stages || cuda->no_stages || !bytes)
        return;
    if (cuda->cu.host_alloc(&stages, bytes) == 0) {
        cuda->stages = stages;
        cuda->wired = bytes;
    } else {
        cuda->no_stages = true;
        qn__log(device, QN_LOG_INFO, "%s: %zu bytes of the host could not be page-locked",
                cuda->name, bytes);
    }
}

static bool any_busy(const qn__cuda *cuda)
{
    for (int i = 0; i < QN__CUDA_STAGES; i++)
        if (cuda->busy[i])
            return true;
    return false;
}

size_t qn__cuda_wired(qn_device *device)
{
    qn__cuda *cuda = device->state;
    pthread_mutex_lock(&cuda->staging);
    if (cuda->wired > stages_within(atomic_load(&device->pool.wired_limit)) &&
        qn__cuda_enter(cuda)) {
        while (any_busy(cuda))
            pthread_cond_wait(&cuda->free_stage, &cuda->staging);
        cuda->cu.stream_synchronize(cuda->stream); /* copies out of them may be under way */
        qn__cuda_free_stages(cuda);
        qn__cuda_leave(cuda);
    }
    size_t bytes = cuda->wired;
    pthread_mutex_unlock(&cuda->staging);
    return bytes;
}

/* The next stage, which no other thread gets until it is given back; -1: there are none. *used:
 * a copy out of it may be under way. */
static int take_stage(qn_device *device, qn__cuda *cuda, bool *used)
{
    int stage = -1;
    pthread_mutex_lock(&cuda->staging);
    make_stages(device, cuda);
    for (size_t n; (n = cuda->wired / QN__CUDA_STAGE_BYTES) > 0;) {
        stage = (int)(cuda->n_staged % n);
        if (!cuda->busy[stage]) {
            *used = cuda->n_staged++ >= n;
            cuda->busy[stage] = true;
            break;
        }
        pthread_cond_wait(&cuda->free_stage, &cuda->staging);
        stage = -1;
    }
    pthread_mutex_unlock(&cuda->staging);
    return stage;
}

static void give_stage(qn__cuda *cuda, int stage)
{
    pthread_mutex_lock(&cuda->staging);
    cuda->busy[stage] = false;
    pthread_cond_broadcast(&cuda->free_stage);
    pthread_mutex_unlock(&cuda->staging);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* One piece of a write: waits until its stage's last copy is through, then enqueues the next.
 * Without stages the driver has copied what it has not sent when it returns. */
static int write_piece(qn_device *device, qn__cu_address to, const char *host, size_t n)
{
    qn__cuda *cuda = device->state;
    bool used = false;
    int stage = take_stage(device, cuda, &used), result = 0;
    if (stage < 0)
        return cuda->cu.copy_in(to, host, n, cuda->stream);
    char *data = cuda->stages + (size_t)stage * QN__CUDA_STAGE_BYTES;
    if (used)
        result = cuda->cu.event_synchronize(cuda->staged[stage]);
    if (result == 0) {
        memcpy(data, host, n);
        result = cuda->cu.copy_in(to, data, n, cuda->stream);
    }
    if (result == 0)
        result = cuda->cu.event_record(cuda->staged[stage], cuda->stream);
    give_stage(cuda, stage);
    return result;
}

qn_status qn__cuda_write(qn_device *device, void *to, const void *host, size_t n, qn_error *err)
{
    qn__cuda *cuda = device->state;
    if (!qn__cuda_enter(cuda))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    int result = atomic_load(&cuda->failure);
    for (size_t at = 0; at < n && result == 0; at += QN__CUDA_STAGE_BYTES) {
        size_t piece = n - at < QN__CUDA_STAGE_BYTES ? n - at : QN__CUDA_STAGE_BYTES;
        result = write_piece(device, (uintptr_t)to + at, (const char *)host + at, piece);
    }
    qn__cuda_leave(cuda);
    pthread_mutex_lock(&cuda->lock);
    cuda->stats.host_writes++;
    pthread_mutex_unlock(&cuda->lock);
    return result == 0 ? QN_OK : qn__cuda_fail(cuda, err, result, "writing to the device");
}

/* ---- reading --------------------------------------------------------------------------------- */

qn_status qn__cuda_read(qn_device *device, void *host, const qn__buffer *from, size_t offset,
                        size_t n, qn_error *err)
{
    qn__cuda *cuda = device->state;
    uint64_t number = atomic_load(&from->written_by);
    qn__cu_stream stream = number ? cuda->reading : cuda->stream;
    int result = 0;
    if (!qn__cuda_enter(cuda))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    if (number)
        result = cuda->cu.stream_wait(stream, cuda->done[(number - 1) % QN__CUDA_EVENTS], 0);
    if (result == 0)
        result = cuda->cu.copy_out(host, (uintptr_t)from->data + offset, n, stream);
    if (result == 0)
        result = cuda->cu.stream_synchronize(stream);
    qn__cuda_leave(cuda);
    pthread_mutex_lock(&cuda->lock);
    cuda->stats.host_reads++;
    pthread_mutex_unlock(&cuda->lock);
    return result == 0 ? QN_OK : qn__cuda_fail(cuda, err, result, "reading from the device");
}

/* ---- the ceiling ----------------------------------------------------------------------------- */

enum { RATE_BYTES = 32 << 20, RATE_COPIES = 8, RATE_RUNS = 3 };

/* Seconds of so many copies, one behind the other; 0: they failed. */
static double time_copies(qn__cuda *cuda, qn__cu_address to, const void *from)
{
    int result = 0;
    double begun = qn__seconds();
    for (int i = 0; i < RATE_COPIES && result == 0; i++)
        result = cuda->cu.copy_in(to, from, RATE_BYTES, cuda->stream);
    if (result == 0)
        result = cuda->cu.stream_synchronize(cuda->stream);
    return result == 0 ? qn__seconds() - begun : 0;
}

double qn__cuda_copy_rate(qn_device *device)
{
    qn__cuda *cuda = device->state;
    qn__cu_address to = 0;
    void *from = NULL;
    double best = 0;
    if (!qn__cuda_enter(cuda))
        return 0;
    if (cuda->cu.mem_alloc(&to, RATE_BYTES) != 0)
        to = 0;
    if (to && cuda->cu.host_alloc(&from, RATE_BYTES) != 0)
        from = NULL;
    if (from)
        memset(from, 1, RATE_BYTES);
    for (int i = 0; from && i < RATE_RUNS; i++) {
        double taken = time_copies(cuda, to, from);
        double rate = taken > 0 ? (double)RATE_BYTES * RATE_COPIES / taken : 0;
        best = rate > best ? rate : best;
    }
    if (from)
        cuda->cu.host_free(from);
    if (to)
        cuda->cu.mem_free(to);
    qn__cuda_leave(cuda);
    return best;
}
