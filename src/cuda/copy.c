/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between host and GPU. Small writes are kept until something else is enqueued and go
 * together, as the arguments of a launch: a step has several, and the copy engine takes longer to
 * begin than a kernel. That launch runs beside the last submission, on a stream of its own, where
 * the submission does not look at what is written over: between two graphs it costs 2 us more than
 * none (an H200). Others pass through a ring of page-locked stages and return when the host's bytes
 * are in them; several threads may write at once, each into a stage of its own, so that what loads
 * a model keeps the bus busy. A stage is lent to whoever can read a file into it: a copy less.
 * Reads wait: for the submission that computed what is read, not for those behind it; and so do
 * copies from another GPU.
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
    memset(cuda->used, 0, sizeof cuda->used);
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

/* The first stage that is free, from the one on whose copy is the oldest; -1: there is none. */
static int free_stage(const qn__cuda *cuda, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!cuda->busy[(cuda->n_staged + i) % n])
            return (int)((cuda->n_staged + i) % n);
    return -1;
}

/* A stage, which no other thread gets until it is given back; -1: there are none. *used: a copy out
 * of it may be under way. */
static int take_stage(qn_device *device, qn__cuda *cuda, bool *used)
{
    int stage = -1;
    pthread_mutex_lock(&cuda->staging);
    make_stages(device, cuda);
    for (size_t n; (n = cuda->wired / QN__CUDA_STAGE_BYTES) > 0;) {
        stage = free_stage(cuda, n);
        if (stage >= 0) {
            *used = cuda->used[stage];
            cuda->used[stage] = cuda->busy[stage] = true;
            cuda->n_staged = (size_t)stage + 1;
            break;
        }
        pthread_cond_wait(&cuda->free_stage, &cuda->staging);
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

/* ---- small writes ---------------------------------------------------------------------------- */

/* With `putting`: notes that writes have been enqueued on the stream. */
static int note(qn__cuda *cuda, qn__cu_stream stream)
{
    cuda->wrote_in_line = stream == cuda->stream;
    return cuda->cu.event_record(cuda->writes, stream);
}

int qn__cuda_note_writes(qn__cuda *cuda)
{
    pthread_mutex_lock(&cuda->putting);
    int result = note(cuda, cuda->stream);
    pthread_mutex_unlock(&cuda->putting);
    return result;
}

/* With `putting`. They are kept where the launch fails. */
static int put(qn__cuda *cuda, qn__cu_stream stream)
{
    qn__cuda_put_args *puts = &cuda->puts;
    if (!puts->n)
        return 0;
    void *params[] = {puts};
    const qn__cu_launch how = {
        .grid = {1, 1, 1}, .block = {QN__CUDA_THREADS, 1, 1}, .stream = stream};
    int result = cuda->cu.launch(&how, cuda->loaded[QN__CUDA_KERNEL_put], params, NULL);
    if (result)
        return result;
    puts->n = 0;
    return note(cuda, stream);
}

int qn__cuda_put(qn__cuda *cuda)
{
    pthread_mutex_lock(&cuda->putting);
    int result = put(cuda, cuda->stream);
    pthread_mutex_unlock(&cuda->putting);
    return result;
}

/* Whether the last submission looks at what one of the kept writes goes to. */
static bool any_is_looked_at(const qn__cuda *cuda)
{
    const qn__cuda_put_args *puts = &cuda->puts;
    for (int i = 0; i < puts->n; i++)
        for (uint32_t k = 0; k < cuda->n_newest; k++) {
            const qn__cuda_range *range = &cuda->newest[k];
            if ((uintptr_t)puts->at[i] - range->begin < range->end - range->begin)
                return true;
        }
    return false;
}

/* Behind all submissions but the last, and all other writes. */
static int put_beside(qn__cuda *cuda)
{
    qn__cu_event before = cuda->done[(cuda->submitted - 2) % QN__CUDA_EVENTS];
    int result = cuda->cu.stream_wait(cuda->writing, before, 0);
    if (result == 0 && cuda->wrote_in_line)
        result = cuda->cu.stream_wait(cuda->writing, cuda->writes, 0);
    if (result == 0)
        result = put(cuda, cuda->writing);
    if (result == 0)
        result = cuda->cu.stream_wait(cuda->stream, cuda->writes, 0);
    cuda->stats.beside += result == 0;
    if (result) /* it may run, and nothing else waits for it */
        (void)cuda->cu.stream_synchronize(cuda->writing);
    return result;
}

int qn__cuda_put_before_next(qn__cuda *cuda)
{
    pthread_mutex_lock(&cuda->putting);
    bool beside = cuda->puts.n && cuda->submitted >= 2 && cuda->n_newest && !any_is_looked_at(cuda);
    int result = beside ? put_beside(cuda) : put(cuda, cuda->stream);
    pthread_mutex_unlock(&cuda->putting);
    return result;
}

void qn__cuda_forget_puts(qn__cuda *cuda, const void *data, size_t n)
{
    qn__cuda_put_args *puts = &cuda->puts;
    pthread_mutex_lock(&cuda->putting);
    for (int i = 0; i < puts->n; i++)
        if ((uintptr_t)puts->at[i] - (uintptr_t)data < n)
            puts->at[i] = NULL;
    pthread_mutex_unlock(&cuda->putting);
}

/* Whether a write is one for which a launch's arguments have room. */
static bool is_small(const void *to, size_t n)
{
    return n && n % 4 == 0 && n <= QN__CUDA_PUT_WORDS * 4 && (uintptr_t)to % 4 == 0;
}

/* Keeps a small write, behind those that are kept. */
static int keep_write(qn__cuda *cuda, void *to, const void *host, size_t n)
{
    qn__cuda_put_args *puts = &cuda->puts;
    int result = 0, words = (int)(n / 4);
    pthread_mutex_lock(&cuda->putting);
    int used = puts->n ? puts->end[puts->n - 1] : 0;
    if (puts->n == QN__CUDA_PUTS || used + words > QN__CUDA_PUT_WORDS) {
        result = put(cuda, cuda->stream);
        used = 0;
    }
    if (result == 0) {
        memcpy(puts->words + used, host, n);
        puts->at[puts->n] = to;
        puts->end[puts->n++] = used + words;
    }
    pthread_mutex_unlock(&cuda->putting);
    return result;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* In the context: a stage that nothing uses; NULL: there is none, or, with *result, a failure. */
static char *begin_stage(qn_device *device, int *result)
{
    qn__cuda *cuda = device->state;
    bool used = false;
    int stage = take_stage(device, cuda, &used);
    if (stage < 0)
        return NULL;
    if (used)
        *result = cuda->cu.event_synchronize(cuda->staged[stage]);
    if (*result == 0)
        return cuda->stages + (size_t)stage * QN__CUDA_STAGE_BYTES;
    give_stage(cuda, stage);
    return NULL;
}

/* Enqueues a copy from the host. */
static int copy_in(qn__cuda *cuda, qn__cu_address to, const void *from, size_t n)
{
    int result = cuda->cu.copy_in(to, from, n, cuda->stream);
    return result ? result : qn__cuda_note_writes(cuda);
}

/* Enqueues the copy of a stage's first n bytes, and gives the stage back. */
static int end_stage(qn__cuda *cuda, const char *data, qn__cu_address to, size_t n)
{
    int stage = (int)((size_t)(data - cuda->stages) / QN__CUDA_STAGE_BYTES);
    int result = qn__cuda_put(cuda);
    if (n && result == 0)
        result = copy_in(cuda, to, data, n);
    if (result == 0)
        result = cuda->cu.event_record(cuda->staged[stage], cuda->stream);
    give_stage(cuda, stage);
    return result;
}

/* One piece of a write. Without stages the driver has copied what it has not sent when it returns.
 */
static int write_piece(qn_device *device, qn__cu_address to, const char *host, size_t n)
{
    qn__cuda *cuda = device->state;
    int result = 0;
    char *data = begin_stage(device, &result);
    if (result == 0 && !data)
        result = qn__cuda_put(cuda);
    if (result == 0 && !data)
        return copy_in(cuda, to, host, n);
    if (result == 0) {
        memcpy(data, host, n);
        result = end_stage(cuda, data, to, n);
    }
    return result;
}

static qn_status wrote(qn__cuda *cuda, qn_error *err, int result)
{
    pthread_mutex_lock(&cuda->lock);
    cuda->stats.host_writes++;
    pthread_mutex_unlock(&cuda->lock);
    return result == 0 ? QN_OK : qn__cuda_fail(cuda, err, result, "writing to the device");
}

qn_status qn__cuda_write(qn_device *device, void *to, const void *host, size_t n, qn_error *err)
{
    qn__cuda *cuda = device->state;
    if (!qn__cuda_enter(cuda))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    int result = atomic_load(&cuda->failure);
    bool small = is_small(to, n);
    if (small && result == 0)
        result = keep_write(cuda, to, host, n);
    for (size_t at = 0; !small && at < n && result == 0; at += QN__CUDA_STAGE_BYTES) {
        size_t piece = n - at < QN__CUDA_STAGE_BYTES ? n - at : QN__CUDA_STAGE_BYTES;
        result = write_piece(device, (uintptr_t)to + at, (const char *)host + at, piece);
    }
    qn__cuda_leave(cuda);
    return wrote(cuda, err, result);
}

void *qn__cuda_lend(qn_device *device, size_t n)
{
    qn__cuda *cuda = device->state;
    if (n > QN__CUDA_STAGE_BYTES || !qn__cuda_enter(cuda))
        return NULL; /* what is written in another way tells why */
    int result = 0;
    char *lent = begin_stage(device, &result);
    qn__cuda_leave(cuda);
    return lent;
}

qn_status qn__cuda_settle(qn_device *device, void *lent, void *data, size_t n, qn_error *err)
{
    qn__cuda *cuda = device->state;
    bool entered = qn__cuda_enter(cuda);
    if (!entered) {
        give_stage(cuda, (int)((size_t)((char *)lent - cuda->stages) / QN__CUDA_STAGE_BYTES));
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    }
    int result = end_stage(cuda, lent, (uintptr_t)data, n);
    if (result == 0)
        result = atomic_load(&cuda->failure);
    qn__cuda_leave(cuda);
    return wrote(cuda, err, result);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The submission that made what is in the buffer; 0: that is not one's alone. */
static uint64_t maker_of(const qn__buffer *buffer)
{
    return atomic_load(&buffer->written_since) ? 0 : atomic_load(&buffer->written_by);
}

qn_status qn__cuda_read(qn_device *device, void *host, const qn__buffer *from, size_t offset,
                        size_t n, qn_error *err)
{
    qn__cuda *cuda = device->state;
    uint64_t number = maker_of(from);
    qn__cu_stream stream = number ? cuda->reading : cuda->stream;
    int result = 0;
    if (!qn__cuda_enter(cuda))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    result = qn__cuda_put(cuda);
    if (number && result == 0)
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

/* ---- from another GPU ------------------------------------------------------------------------ */

/* Until what writes the buffer has ended. */
static int wait_for_writer(qn__cuda *cuda, const qn__buffer *buffer)
{
    uint64_t number = maker_of(buffer);
    int result = qn__cuda_put(cuda);
    if (result == 0)
        result = number ? cuda->cu.event_synchronize(cuda->done[(number - 1) % QN__CUDA_EVENTS])
                        : cuda->cu.stream_synchronize(cuda->stream);
    return result;
}

/* Where GPUs do not reach each other, the driver goes through the host. */
static void let_reach(qn__cuda *cuda, const qn__cuda *other)
{
    int can = 0;
    if (cuda->cu.can_reach(&can, cuda->device, other->device) == 0 && can)
        (void)cuda->cu.let_reach(other->context, 0); /* it may do so already */
}

qn_status qn__cuda_copy(qn_device *device, void *to, const qn__buffer *from, size_t offset,
                        size_t n, qn_error *err)
{
    qn__cuda *cuda = device->state, *other = from->device->state;
    if (!qn__cuda_enter(other))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", other->name);
    int result = wait_for_writer(other, from);
    qn__cuda_leave(other);
    if (result)
        return qn__cuda_fail(other, err, result, "waiting for what another device copies");
    if (!qn__cuda_enter(cuda))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    let_reach(cuda, other);
    result = qn__cuda_put(cuda);
    if (result == 0) /* others may have had the buffer, and still use it */
        result = cuda->cu.stream_synchronize(cuda->stream);
    if (result == 0)
        result = cuda->cu.copy_peer((uintptr_t)to, cuda->context, (uintptr_t)from->data + offset,
                                    other->context, n, cuda->reading);
    if (result == 0)
        result = cuda->cu.stream_synchronize(cuda->reading);
    qn__cuda_leave(cuda);
    return result == 0 ? QN_OK : qn__cuda_fail(cuda, err, result, "copying from another device");
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
