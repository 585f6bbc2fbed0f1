/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as a device: opening, memory, how it keeps weights. Copies are in copy.c.
 *
 * Submissions and writes run on one stream, in order, but for small writes, which come behind all
 * other writes and all submissions but the last, and go to nothing that this one looks at. So a
 * buffer may go back to the pool while the GPU still uses it, since whoever takes it next comes
 * later, and a submission needs to hold nothing once it has been enqueued; only giving memory back
 * to the driver waits.
 */
#include "cuda/device.h"

#include "base/error.h"
#include "base/team.h"
#include "core/dtype.h"
#include "cuda/cuda.h"
#include "quant/layout.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- errors, and the context of the calling thread ------------------------------------------- */

qn_status qn__cuda_fail(qn__cuda *cuda, qn_error *err, int result, const char *doing)
{
    const char *name = NULL;
    cuda->cu.error_name(result, &name);
    return qn__fail(err, result == QN__CU_OUT_OF_MEMORY ? QN_MEMORY : QN_DEVICE, "%s: %s while %s",
                    cuda->name, name ? name : "an unknown error", doing);
}

bool qn__cuda_enter(qn__cuda *cuda)
{
    return cuda->cu.context_push(cuda->context) == 0;
}

void qn__cuda_leave(qn__cuda *cuda)
{
    qn__cu_context context;
    cuda->cu.context_pop(&context);
}

void qn__cuda_note_failure(qn__cuda *cuda, int result)
{
    int none = 0;
    if (result != QN__CU_OUT_OF_MEMORY)
        atomic_compare_exchange_strong(&cuda->failure, &none, result);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A NULL of alloc, reserve and commit is told to be for lack of memory unless this fails. */
static qn_status cuda_available(qn_device *device, size_t *bytes, qn_error *err)
{
    qn__cuda *cuda = device->state;
    size_t all;
    int failure = atomic_load(&cuda->failure);
    *bytes = 0;
    if (failure)
        return qn__cuda_fail(cuda, err, failure, "asking for memory");
    if (!qn__cuda_enter(cuda))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    if (cuda->cu.mem_info(bytes, &all) != 0)
        *bytes = 0;
    qn__cuda_leave(cuda);
    return QN_OK;
}

static void *cuda_alloc(qn_device *device, size_t size)
{
    qn__cuda *cuda = device->state;
    qn__cu_address address = 0;
    if (!qn__cuda_enter(cuda))
        return NULL;
    int result = cuda->cu.mem_alloc(&address, size ? size : 1);
    if (result != 0) {
        qn__cuda_note_failure(cuda, result);
        address = 0;
    }
    qn__cuda_leave(cuda);
    return (void *)(uintptr_t)address;
}

static void cuda_free(qn_device *device, void *data, size_t size)
{
    qn__cuda *cuda = device->state;
    if (!data || !qn__cuda_enter(cuda))
        return;
    qn__cuda_forget_puts(cuda, data, size);
    cuda->cu.stream_synchronize(cuda->stream);
    cuda->cu.mem_free((uintptr_t)data);
    qn__cuda_leave(cuda);
}

/* ---- addresses that get memory by and by ----------------------------------------------------- */

static qn__cu_allocation on_device(const qn__cuda *cuda)
{
    return (qn__cu_allocation){.type = QN__CU_PINNED, .location = {QN__CU_ON_DEVICE, cuda->device}};
}

/* Bytes in whole pieces, which are what the driver maps. */
static size_t whole_pieces(const qn__cuda *cuda, size_t bytes)
{
    return (bytes + cuda->piece - 1) / cuda->piece * cuda->piece;
}

static void *cuda_reserve(qn_device *device, size_t size)
{
    qn__cuda *cuda = device->state;
    qn__cu_address address = 0;
    if (!qn__cuda_enter(cuda))
        return NULL;
    if (cuda->cu.address_reserve(&address, whole_pieces(cuda, size), 0, 0, 0) != 0)
        address = 0;
    qn__cuda_leave(cuda);
    return (void *)(uintptr_t)address;
}

/* Memory for one piece; the handle may go at once, since what is mapped keeps it. */
static bool map_piece(qn__cuda *cuda, qn__cu_address at)
{
    qn__cu_allocation what = on_device(cuda);
    qn__cu_access who = {what.location, QN__CU_READ_WRITE};
    unsigned long long handle;
    int result = cuda->cu.mem_create(&handle, cuda->piece, &what, 0);
    if (result == 0) {
        result = cuda->cu.mem_map(at, cuda->piece, 0, handle, 0);
        bool mapped = result == 0;
        cuda->cu.mem_release(handle);
        if (mapped)
            result = cuda->cu.mem_set_access(at, cuda->piece, &who, 1);
        if (mapped && result != 0)
            cuda->cu.mem_unmap(at, cuda->piece);
    }
    if (result != 0)
        qn__cuda_note_failure(cuda, result);
    return result == 0;
}

static void unmap_pieces(qn__cuda *cuda, qn__cu_address data, size_t had, size_t want)
{
    if (want < had) {
        qn__cuda_forget_puts(cuda, (void *)(uintptr_t)(data + want), had - want);
        cuda->cu.stream_synchronize(cuda->stream);
    }
    while (had > want) {
        had -= cuda->piece;
        cuda->cu.mem_unmap(data + had, cuda->piece);
    }
}

static bool cuda_commit(qn_device *device, void *data, size_t had, size_t want)
{
    qn__cuda *cuda = device->state;
    qn__cu_address at = (uintptr_t)data;
    size_t from = whole_pieces(cuda, had), to = whole_pieces(cuda, want), done = from;
    if (!qn__cuda_enter(cuda))
        return false;
    while (done < to && map_piece(cuda, at + done))
        done += cuda->piece;
    bool ok = done >= to;
    unmap_pieces(cuda, at, done, ok ? to : from);
    qn__cuda_leave(cuda);
    return ok;
}

static size_t cuda_committed(const qn_device *device, size_t bytes)
{
    return whole_pieces(device->state, bytes);
}

static void cuda_unreserve(qn_device *device, void *data, size_t size, size_t committed)
{
    qn__cuda *cuda = device->state;
    if (!qn__cuda_enter(cuda))
        return;
    unmap_pieces(cuda, (uintptr_t)data, whole_pieces(cuda, committed), 0);
    cuda->cu.address_free((uintptr_t)data, whole_pieces(cuda, size));
    qn__cuda_leave(cuda);
}

/* ---- weights -------------------------------------------------------------------------------- */

/* Floats are plain, as they are. Others stay in units. */
static bool cuda_hold(qn_device *device, const qn__encoding *e, qn_dtype *dtype,
                      qn__layout_id *layout)
{
    (void)device;
    size_t id = (size_t)(e - qn__encodings);
    bool units = qn__cuda_has_units(QN__UNITS_OF(id));
    *dtype = id == QN__BF16 ? QN_BF16 : id == QN__F16 ? QN_F16 : QN_F32;
    *layout = units ? QN__UNITS_OF(id) : QN__PLAIN;
    return id == QN__F32 || id == QN__F16 || id == QN__BF16 || units;
}

/* Rows into the units of their groups, on the host. Where a group has other rows too, what it has
 * of them comes from the device first. */
static qn_status pack_units(qn_device *device, qn_array *w, const void *rows, int64_t first,
                            int64_t n, qn_error *err)
{
    const qn__layout *l = qn__layout_of(w->layout);
    int64_t columns = w->shape[1], from = first / QN__UNIT_ROWS,
            to = (first + n + QN__UNIT_ROWS - 1) / QN__UNIT_ROWS, before = from * QN__UNIT_ROWS;
    size_t group = qn__layout_group_bytes(l, columns), bytes = group * (size_t)(to - from),
           at = group * (size_t)from;
    bool whole = first == before && (first + n == w->shape[0] || first + n == to * QN__UNIT_ROWS);
    qn__cuda *cuda = device->state;
    char *units = malloc(bytes + 1);
    if (!units)
        return qn__fail_memory(err, "a weight");
    if (!whole) /* another thread may have other rows of the group */
        pthread_mutex_lock(&cuda->packing);
    qn_status status = whole ? QN_OK : qn__cuda_read(device, units, w->buffer, at, bytes, err);
    if (status == QN_OK) {
        qn__layout_pack(l, units, w->shape[0] - before, columns, rows,
                        qn__encoding_row_bytes(l->encoding, columns), first - before, n);
        status = qn__cuda_write(device, (char *)w->buffer->data + at, units, bytes, err);
    }
    if (!whole)
        pthread_mutex_unlock(&cuda->packing);
    free(units);
    return status;
}

/* Keys and values are plain, or blocks that there are kernels for. */
static bool cuda_keep(qn_device *device, const qn__encoding *e, qn_dtype *dtype,
                      qn__layout_id *layout)
{
    (void)device;
    *dtype = e == &qn__encodings[QN__BF16]  ? QN_BF16
             : e == &qn__encodings[QN__F16] ? QN_F16
                                            : QN_F32;
    *layout = e->block_elements == 1 ? QN__PLAIN : QN__UNITS_OF(e - qn__encodings);
    return qn__cuda_keeps(e);
}

static qn_status cuda_pack_rows(qn_device *device, qn_array *w, const qn__encoding *e,
                                const void *rows, int64_t first, int64_t n, qn_error *err)
{
    if (w->layout)
        return pack_units(device, w, rows, first, n, err);
    size_t count = (size_t)(n * w->shape[1]), size = qn__dtype_size((qn_dtype)w->dtype);
    char *to = (char *)w->buffer->data + (size_t)(first * w->shape[1]) * size;
    if (e->block_bytes == size)
        return qn__cuda_write(device, to, rows, count * size, err);
    float *wide = malloc(count * sizeof *wide + 1);
    if (!wide)
        return qn__fail_memory(err, "a weight");
    e->decode(e, rows, count, wide);
    qn_status status = qn__cuda_write(device, to, wide, count * size, err);
    free(wide);
    return status;
}

/* Reading a file, packing and copying into a stage are the host's; more threads than stages would
 * wait for these. */
static int cuda_packers(const qn_device *device)
{
    (void)device;
    int cpus = qn__team_default_size();
    return cpus < QN__CUDA_STAGES ? cpus : QN__CUDA_STAGES;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static const void *cuda_routine(qn_device *device, const qn_array *node)
{
    (void)device;
    const qn__cuda_routine *op = qn__cuda_routines[node->op];
    if (!op || (!op->accepts && node->dtype != QN_F32 && node->dtype != QN_F64))
        return NULL;
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i]->layout != QN__PLAIN && !(op->units_in >> i & 1))
            return NULL;
    return !op->accepts || op->accepts(node) ? op : NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void cuda_describe(qn_device *device, char *text, size_t room)
{
    qn__cuda *cuda = device->state;
    char name[128] = "";
    size_t bytes = 0;
    cuda->cu.device_name(name, sizeof name, cuda->device);
    cuda->cu.device_memory(&bytes, cuda->device);
    snprintf(text, room, "%s, sm_%d, %zu GiB", name, cuda->arch, bytes >> 30);
}

/* Gives back what open_context made, however far it came. */
static void close_context(qn__cuda *cuda)
{
    if (!cuda->context)
        return;
    if (qn__cuda_enter(cuda)) {
        if (cuda->stream)
            cuda->cu.stream_synchronize(cuda->stream);
        if (cuda->writing)
            cuda->cu.stream_synchronize(cuda->writing);
        qn__cuda_programs_free(cuda, true);
        qn__cuda_unload_kernels(cuda);
        if (cuda->writes)
            cuda->cu.event_destroy(cuda->writes);
        for (int i = 0; i < QN__CUDA_EVENTS; i++)
            if (cuda->done[i])
                cuda->cu.event_destroy(cuda->done[i]);
        for (int i = 0; i < QN__CUDA_STAGES; i++)
            if (cuda->staged[i])
                cuda->cu.event_destroy(cuda->staged[i]);
        qn__cuda_free_stages(cuda);
        if (cuda->capture)
            cuda->cu.stream_destroy(cuda->capture);
        if (cuda->writing)
            cuda->cu.stream_destroy(cuda->writing);
        if (cuda->reading)
            cuda->cu.stream_destroy(cuda->reading);
        if (cuda->stream)
            cuda->cu.stream_destroy(cuda->stream);
        qn__cuda_leave(cuda);
    }
    qn__cuda_programs_free(cuda, false); /* where the context is lost */
    cuda->cu.context_release(cuda->device);
}

static void free_state(qn__cuda *cuda)
{
    close_context(cuda);
    free(cuda->modules);
    free(cuda->newest);
    qn__nvrtc_unload(&cuda->nvrtc);
    qn__cu_unload(&cuda->cu);
    pthread_cond_destroy(&cuda->free_stage);
    pthread_mutex_destroy(&cuda->packing);
    pthread_mutex_destroy(&cuda->staging);
    pthread_mutex_destroy(&cuda->putting);
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
}

static void cuda_close(qn_device *device)
{
    qn__device_end(device);
    free_state(device->state);
    free(device);
}

static const qn__device_ops cuda_device_ops = {
    .kind = "cuda",
    .step_tokens = 2048, /* with fewer, tiles of products do not come to all processors */
    .by_rows = true,
    .halves = true,
    .runs_ahead = true,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .reserve = cuda_reserve,
    .commit = cuda_commit,
    .unreserve = cuda_unreserve,
    .committed = cuda_committed,
    .available = cuda_available,
    .wired = qn__cuda_wired,
    .write = qn__cuda_write,
    .read = qn__cuda_read,
    .copy = qn__cuda_copy,
    .lend = qn__cuda_lend,
    .settle = qn__cuda_settle,
    .copy_rate = qn__cuda_copy_rate,
    .ceilings = qn__cuda_ceilings,
    .routine = cuda_routine,
    .hold = cuda_hold,
    .keep = cuda_keep,
    .pack_rows = cuda_pack_rows,
    .packers = cuda_packers,
    .bind = qn__cuda_bind,
    .drop = qn__cuda_drop,
    .submit = qn__cuda_submit,
    .wait = qn__cuda_wait,
    .describe = cuda_describe,
};

static int make_streams(qn__cuda *cuda)
{
    int result = cuda->cu.stream_create(&cuda->stream, QN__CU_STREAM_NON_BLOCKING);
    if (result == 0)
        result = cuda->cu.stream_create(&cuda->reading, QN__CU_STREAM_NON_BLOCKING);
    if (result == 0)
        result = cuda->cu.stream_create(&cuda->writing, QN__CU_STREAM_NON_BLOCKING);
    if (result == 0)
        result = cuda->cu.stream_create(&cuda->capture, QN__CU_STREAM_NON_BLOCKING);
    if (result == 0)
        result = cuda->cu.event_create(&cuda->writes, QN__CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < QN__CUDA_EVENTS && result == 0; i++)
        result = cuda->cu.event_create(&cuda->done[i], QN__CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < QN__CUDA_STAGES && result == 0; i++)
        result = cuda->cu.event_create(&cuda->staged[i], QN__CU_EVENT_DISABLE_TIMING);
    return result;
}

static qn_status fail_start(qn__cuda *cuda, int result, int n, qn_error *err)
{
    const char *name = NULL;
    if (result != 0)
        cuda->cu.error_name(result, &name);
    if (result != 0 && result != QN__CU_NO_DEVICE)
        return qn__fail(err, QN_UNSUPPORTED, "%s: the NVIDIA driver does not start: %s", cuda->name,
                        name ? name : "an unknown error");
    char others[40] = "";
    if (n == 1)
        snprintf(others, sizeof others, ", cuda:0");
    else if (n > 1)
        snprintf(others, sizeof others, ", cuda:0 to cuda:%d", n - 1);
    return qn__fail(err, QN_UNSUPPORTED, "%s: there %s %d GPU%s%s%s%s", cuda->name,
                    n == 1 ? "is" : "are", n, n == 1 ? "" : "s", others, name ? ": " : "",
                    name ? name : "");
}

/* Finds GPU number `index`, and what it is. */
static qn_status find_gpu(qn__cuda *cuda, int index, qn_error *err)
{
    int n = 0, major = 0, minor = 0, version = 0, result = cuda->cu.init(0);
    if (result == 0)
        result = cuda->cu.device_count(&n);
    if (result != 0 || index >= n)
        return fail_start(cuda, result, n, err);
    const struct {
        int attribute, *value;
    } wanted[] = {{QN__CU_COMPUTE_MAJOR, &major},
                  {QN__CU_COMPUTE_MINOR, &minor},
                  {QN__CU_MULTIPROCESSORS, &cuda->processors},
                  {QN__CU_MOST_SHARED, &cuda->most_shared}};
    result = cuda->cu.device_get(&cuda->device, index);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && result == 0; i++)
        result = cuda->cu.device_attribute(wanted[i].value, wanted[i].attribute, cuda->device);
    if (result == 0)
        result = cuda->cu.version(&version);
    if (result != 0)
        return qn__cuda_fail(cuda, err, result, "asking what the GPU is");
    cuda->arch = major * 10 + minor;
    cuda->overlaps = cuda->arch >= 90 && version >= QN__CU_EDGES_OF_12_3;
    if (cuda->arch < 80)
        return qn__fail(err, QN_UNSUPPORTED, "%s: the GPU is sm_%d; sm_80 or newer is needed",
                        cuda->name, cuda->arch);
    return QN_OK;
}

/* Whether images have code for the GPU; from sm_90 on the driver compiles what they lack. */
static bool has_code(int arch)
{
    static const int families[] = {QN_CUDA_FAMILIES};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (arch / 10 == families[i] / 10 && arch >= families[i])
            return true;
    return arch >= 90;
}

#define TEXT_OF(...) #__VA_ARGS__
#define LIST_OF(...) TEXT_OF(__VA_ARGS__)

/* Kernels that were built for other GPUs, or by a CUDA that is newer than the driver. */
static qn_status fail_kernels(qn__cuda *cuda, int result, qn_error *err)
{
    const char *name = NULL;
    int version = 0;
    if (result != QN__CU_INVALID_IMAGE && result != QN__CU_NO_BINARY &&
        result != QN__CU_UNSUPPORTED_PTX)
        return qn__cuda_fail(cuda, err, result, "loading the kernels");
    if (!has_code(cuda->arch))
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: the GPU is sm_%d, and the kernels were built for sm_" LIST_OF(
                            QN_CUDA_FAMILIES) " alone; build with -Dgpu_families=%d0,90",
                        cuda->name, cuda->arch, cuda->arch / 10);
    cuda->cu.version(&version);
    cuda->cu.error_name(result, &name);
    return qn__fail(err, QN_UNSUPPORTED,
                    "%s: %s while loading the kernels, which were built by CUDA %s; the driver is "
                    "for CUDA %d.%d: a newer one is needed",
                    cuda->name, name ? name : "an error", QN_CUDA_BUILT, version / 1000,
                    version % 1000 / 10);
}

/* Takes the GPU's primary context, which other users of CUDA in the process share. */
static qn_status open_context(qn__cuda *cuda, qn_error *err)
{
    int result = cuda->cu.context_retain(&cuda->context, cuda->device);
    if (result != 0) {
        cuda->context = NULL;
        return qn__cuda_fail(cuda, err, result, "making a context");
    }
    if (!qn__cuda_enter(cuda))
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    qn__cu_allocation what = on_device(cuda);
    result = make_streams(cuda);
    if (result == 0)
        result = cuda->cu.granularity(&cuda->piece, &what, 0);
    if (result != 0)
        qn__cuda_fail(cuda, err, result, "making streams");
    else if ((result = qn__cuda_begin_kernels(cuda)) != 0)
        fail_kernels(cuda, result, err);
    qn__cuda_leave(cuda);
    return result == 0 ? QN_OK : err->code;
}

qn_status qn__cuda_open(qn_device **out, int index, const qn_device_options *options, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    qn_device *device = calloc(1, sizeof *device);
    qn__cuda *cuda = calloc(1, sizeof *cuda);
    if (!device || !cuda) {
        free(device);
        free(cuda);
        return qn__fail_memory(err, "a device");
    }
    snprintf(cuda->name, sizeof cuda->name, "cuda:%d", index);
    pthread_mutex_init(&cuda->lock, NULL);
    pthread_mutex_init(&cuda->putting, NULL);
    pthread_mutex_init(&cuda->staging, NULL);
    pthread_mutex_init(&cuda->packing, NULL);
    pthread_cond_init(&cuda->free_stage, NULL);
    qn_status status = qn__cu_load(&cuda->cu, err);
    if (status == QN_OK)
        status = find_gpu(cuda, index, err);
    if (status == QN_OK)
        status = open_context(cuda, err);
    if (status != QN_OK) {
        free_state(cuda);
        free(device);
        return status;
    }
    device->state = cuda;
    qn__device_begin(device, &cuda_device_ops, cuda->name, options);
    *out = device;
    return QN_OK;
}

qn__cuda_stats qn__cuda_stats_get(qn_device *device)
{
    qn__cuda *cuda = device->state;
    pthread_mutex_lock(&cuda->lock);
    qn__cuda_stats stats = cuda->stats;
    pthread_mutex_unlock(&cuda->lock);
    return stats;
}
