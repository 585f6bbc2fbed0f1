/* SPDX-License-Identifier: Apache-2.0
 *
 * Bindings as CUDA graphs. Binding turns each call into kernel launches with all sizes filled in;
 * the first run fills in the addresses of its slots, captures the launches and instantiates the
 * graph. A run with the same slots is then one graph launch, and that is what a decode step with
 * donated caches is. A binding has two such graphs, since a step that takes what the one before
 * chose has other slots each other time; with still others the launches are captured again and put
 * into the executable graph that was used less lately. Where a graph gets no memory, kernels are
 * launched one by one.
 *
 * The workspace is the last slot, so growing it (for another plan) shows as another address. Behind
 * its values is scratch memory, which one launch after the other has.
 *
 * Where the GPU can (sm_90), a launch begins before the one ahead of it has ended: every kernel
 * waits inside for that (common.cuh), and until then reads nothing but what no step writes.
 */
#include "base/error.h"
#include "cuda/cuda.h"

#include <stdlib.h>

/* ---- binding --------------------------------------------------------------------------------- */

/* Makes room for `more` elements behind `n`; false when memory is out. */
static bool grow_list(void *list, void **grown, size_t n, size_t more, size_t *room, size_t size)
{
    *grown = list;
    if (n + more <= *room)
        return true;
    size_t wanted = *room ? *room * 2 : 64;
    while (wanted < n + more)
        wanted *= 2;
    void *p = realloc(list, wanted * size);
    if (!p)
        return false;
    *grown = p;
    *room = wanted;
    return true;
}

static bool reserve_launch(qn__cuda_binding *bound, size_t args, size_t n_at)
{
    void *launches, *at, *bytes;
    size_t launch_room = bound->launch_room, at_room = bound->at_room;
    bool ok = grow_list(bound->launches, &launches, bound->n_launches, 1, &launch_room,
                        sizeof *bound->launches);
    bound->launches = launches;
    bound->launch_room = (uint32_t)launch_room;
    ok = grow_list(bound->at, &at, bound->n_at, n_at, &at_room, sizeof *bound->at) && ok;
    bound->at = at;
    bound->at_room = (uint32_t)at_room;
    ok = grow_list(bound->args, &bytes, bound->n_args, args, &bound->args_room, 1) && ok;
    bound->args = bytes;
    return ok;
}

/* Where scratch memory begins in a workspace whose values take so many bytes. */
static size_t scratch_at(size_t values)
{
    return (values + 255) & ~(size_t)255;
}

void qn__cuda_want_scratch(qn__cuda_binder *b, size_t bytes)
{
    if (bytes > b->bound->scratch)
        b->bound->scratch = bytes;
}

void qn__cuda_want_behind(qn__cuda_binder *b, size_t bytes)
{
    if (bytes > b->bound->behind)
        b->bound->behind = bytes;
}

void qn__cuda_want_unpacked(qn__cuda_binder *b, size_t bytes)
{
    if (bytes > b->bound->unpacked)
        b->bound->unpacked = bytes;
}

bool qn__cuda_is_fixed(const qn__cuda_binder *b, const qn__operand *o)
{
    const qn__binding *binding = b->binding;
    for (uint32_t i = 0; i < binding->plan->n_steps; i++) {
        const qn__call *call = &binding->calls[i];
        if (call->operand[call->n_operands - 1].slot == o->slot)
            return false;
    }
    return true;
}

bool qn__cuda_is_appended(const qn__cuda_binder *b, const qn__operand *o)
{
    const qn__binding *binding = b->binding;
    int n = 0;
    for (uint32_t i = 0; i < binding->plan->n_steps; i++) {
        const qn__call *call = &binding->calls[i];
        if (call->operand[call->n_operands - 1].slot != o->slot)
            continue;
        if (call->copy || call->program ||
            (call->op != QN__OP_WRITE_KEYS && call->op != QN__OP_WRITE_VALUES))
            return false;
        n++;
    }
    return n == 1;
}

bool qn__cuda_add(qn__cuda_binder *b, qn__cu_function function, int64_t work, bool by_block,
                  const void *args, size_t size, const qn__call *call, int n_at,
                  const uint8_t *operand)
{
    int64_t blocks = by_block ? work : qn__cuda_parts(work, QN__CUDA_THREADS);
    qn__cuda_grid grid = {blocks < QN__CUDA_BLOCKS ? blocks : QN__CUDA_BLOCKS, QN__CUDA_THREADS, 0};
    return qn__cuda_add_grid(b, function, &grid, args, size, call, n_at, operand);
}

bool qn__cuda_add_grid(qn__cuda_binder *b, qn__cu_function function, const qn__cuda_grid *grid,
                       const void *args, size_t size, const qn__call *call, int n_at,
                       const uint8_t *operand)
{
    if (grid->blocks <= 0)
        return true;
    qn__cuda_binding *bound = b->bound;
    size_t room = (size + 15) & ~(size_t)15;
    if (!reserve_launch(bound, room, (size_t)n_at)) {
        qn__fail_memory(b->err, "a binding");
        return false;
    }
    bound->launches[bound->n_launches++] = (qn__cuda_launch){.function = function,
                                                             .blocks = (unsigned)grid->blocks,
                                                             .threads = grid->threads,
                                                             .shared = grid->shared,
                                                             .first_at = bound->n_at,
                                                             .n_at = (uint32_t)n_at,
                                                             .args = bound->n_args};
    memcpy(bound->args + bound->n_args, args, size);
    bound->n_args += room;
    for (int i = 0; i < n_at; i++)
        bound->at[bound->n_at++] = operand[i] == QN__CUDA_SCRATCH  ? QN__CUDA_AT_SCRATCH
                                   : operand[i] == QN__CUDA_NONE   ? QN__CUDA_AT_NONE
                                   : operand[i] == QN__CUDA_BEHIND ? QN__CUDA_AT_BEHIND
                                   : operand[i] == QN__CUDA_UNPACKED
                                       ? QN__CUDA_AT_UNPACKED
                                       : call->first_operand + operand[i];
    return true;
}

void qn__cuda_forget_newest(qn__cuda_binding *bound)
{
    const qn__cuda_launch *last = &bound->launches[--bound->n_launches];
    bound->n_at = last->first_at;
    bound->n_args = last->args;
}

static bool bind_call(qn__cuda_binder *b, const qn__call *call)
{
    if (call->program)
        return qn__cuda_prepare_chain(b, call);
    if (call->copy)
        return qn__cuda_prepare_copy(b, call);
    return ((const qn__cuda_routine *)call->routine)->prepare(b, call);
}

/* Loads the kernels that are not yet there. */
static qn_status load_kernels(qn__cuda *cuda, qn__cuda_binding *bound, qn_error *err)
{
    int result = 0;
    pthread_mutex_lock(&cuda->lock);
    if (!qn__cuda_enter(cuda)) {
        pthread_mutex_unlock(&cuda->lock);
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    }
    for (uint32_t i = 0; i < bound->n_launches && result == 0; i++)
        result = qn__cuda_load_kernel(cuda, &bound->launches[i].function);
    qn__cuda_leave(cuda);
    pthread_mutex_unlock(&cuda->lock);
    return result == 0 ? QN_OK : qn__cuda_fail(cuda, err, result, "loading a kernel");
}

qn_status qn__cuda_bind(qn_device *device, const qn__plan *plan, qn__binding *binding,
                        qn_error *err)
{
    qn__cuda_binding *bound = calloc(1, sizeof *bound);
    if (!bound)
        return qn__fail_memory(err, "a binding");
    binding->device_part = bound;
    qn__cuda_binder b = {device->state, bound, binding, err};
    for (uint32_t i = 0; i < plan->n_steps; i++)
        if (!bind_call(&b, &binding->calls[i]))
            return err && err->code ? err->code : QN_DEVICE;
    qn__cuda_take_norms(&b);
    qn__cuda_drop_unread(&b);
    qn__cuda_finish_norms(&b);
    qn__cuda_finish_attention(&b);
    binding->launches = bound->n_launches;
    binding->bytes += sizeof *bound + bound->launch_room * sizeof *bound->launches +
                      bound->at_room * sizeof *bound->at + bound->args_room;
    if (bound->scratch || bound->behind || bound->unpacked || bound->kept)
        binding->workspace = scratch_at(binding->values) + scratch_at(bound->scratch) +
                             scratch_at(bound->behind) + scratch_at(bound->unpacked) + bound->kept;
    return load_kernels(b.cuda, bound, err);
}

/* A graph that still runs is freed by the driver when it is done. */
void qn__cuda_drop(qn_device *device, qn__binding *binding)
{
    qn__cuda *cuda = device->state;
    qn__cuda_binding *bound = binding->device_part;
    if (!bound)
        return;
    for (int i = 0; i < QN__CUDA_GRAPHS; i++) {
        if (bound->graphs[i].exec && qn__cuda_enter(cuda)) {
            cuda->cu.exec_destroy(bound->graphs[i].exec);
            qn__cuda_leave(cuda);
        }
        free(bound->graphs[i].slots);
    }
    free(bound->launches);
    free(bound->at);
    free(bound->args);
    free(bound);
}

/* ---- capturing ------------------------------------------------------------------------------- */

/* Writes the addresses of this run into the launches' arguments. */
static int fill_addresses(qn__cuda *cuda, qn__cuda_binding *bound, const qn__submission *sub)
{
    int result = 0;
    const qn__operand *operands = sub->binding->operands;
    char *workspace = sub->slots[sub->n_slots - 1];
    char *scratch = workspace + scratch_at(sub->binding->values),
         *behind = scratch + scratch_at(bound->scratch),
         *unpacked = behind + scratch_at(bound->behind),
         *kept = unpacked + scratch_at(bound->unpacked);
    for (uint32_t i = 0; i < bound->n_launches; i++) {
        const qn__cuda_launch *launch = &bound->launches[i];
        void **at = (void **)(bound->args + launch->args);
        for (uint32_t k = 0; k < launch->n_at; k++) {
            uint32_t from = bound->at[launch->first_at + k];
            at[k] = from == QN__CUDA_AT_SCRATCH  ? scratch
                    : from == QN__CUDA_AT_BEHIND ? behind
                    : from == QN__CUDA_AT_NONE   ? NULL
                    : from >= QN__CUDA_AT_UNPACKED
                        ? unpacked + (size_t)(from - QN__CUDA_AT_UNPACKED) * QN__CUDA_PIECE
                    : from >= QN__CUDA_AT_KEPT
                        ? kept + (size_t)(from - QN__CUDA_AT_KEPT) * 16
                        : (char *)sub->slots[operands[from].slot] + operands[from].offset;
        }
        if (launch->fill && result == 0)
            result = launch->fill(cuda, bound->args + launch->args);
    }
    return result;
}

/* The first begins when all ahead of the plan has ended: that may write what no step of it does. */
static int launch_all(qn__cuda *cuda, qn__cuda_binding *bound, qn__cu_stream stream)
{
    int result = 0;
    for (uint32_t i = 0; i < bound->n_launches && result == 0; i++) {
        const qn__cuda_launch *launch = &bound->launches[i];
        void *params[] = {bound->args + launch->args};
        qn__cu_attribute attributes[2];
        unsigned n = 0;
        if (cuda->overlaps && i && !launch->waits)
            attributes[n++] = (qn__cu_attribute){.id = QN__CU_BEFORE_THE_LAST, .value.on = 1};
        if (launch->cluster)
            attributes[n++] =
                (qn__cu_attribute){.id = QN__CU_CLUSTER, .value.cluster = {launch->cluster, 1, 1}};
        qn__cu_launch how = {.grid = {launch->blocks, 1, 1},
                             .block = {launch->threads, 1, 1},
                             .shared = launch->shared,
                             .stream = stream,
                             .attributes = attributes,
                             .n_attributes = n};
        result = cuda->cu.launch(&how, launch->function, params, NULL);
    }
    return result;
}

static int capture(qn__cuda *cuda, qn__cuda_binding *bound, qn__cu_graph *graph)
{
    *graph = NULL;
    int result = cuda->cu.capture_begin(cuda->capture, QN__CU_CAPTURE_THREAD_LOCAL);
    if (result != 0)
        return result;
    result = launch_all(cuda, bound, cuda->capture);
    int ended = cuda->cu.capture_end(cuda->capture, graph); /* always, or the stream stays in it */
    cuda->stats.captures++;
    return result ? result : ended;
}

/* Counts a graph where plans are counted. The driver does not say what of the host's memory it has
 * for one; this is what malloc gave for graphs of 5 to 1,000 launches (driver 580). Of the GPU's it
 * is less than half: 64 KB and 2.7 KB a launch. What a graph leaves the driver keeps for the next.
 */
static void count_graph(qn__binding *binding)
{
    enum { GRAPH = 12 << 10, LAUNCH = 6080 };
    const qn__cuda_binding *bound = binding->device_part;
    qn__plan_grown(binding, GRAPH + (size_t)bound->n_launches * LAUNCH + 2 * bound->n_args);
}

/* Puts the graph into the executable one, or makes that anew. */
static int instantiate(qn__cuda *cuda, qn__cu_exec *exec, qn__cu_graph graph)
{
    qn__cu_update_info info = {0};
    if (*exec && cuda->cu.graph_update(*exec, graph, &info) == 0) {
        cuda->stats.updates++;
        return 0;
    }
    if (*exec)
        cuda->cu.exec_destroy(*exec);
    *exec = NULL;
    cuda->stats.instantiations++;
    return cuda->cu.graph_instantiate(exec, graph, 0);
}

/* Whether to try again: memory was out, and what the device can do without is gone. That are blocks
 * that nobody uses, and other plans with their graphs, once these have run. */
static bool made_room(qn_device *device, int result)
{
    qn__cuda *cuda = device->state;
    if (result != QN__CU_OUT_OF_MEMORY)
        return false;
    qn__pool_trim(device, 0);
    qn__plan_cache_clear(&device->plans);
    cuda->cu.stream_synchronize(cuda->stream);
    return true;
}

/* The binding's graph for these slots comes first, or else the one to be used for them. */
static bool find_graph(qn__cuda_binding *bound, void *const *slots, size_t bytes)
{
    qn__cuda_graph *graphs = bound->graphs, found;
    int i = 0;
    bool same;
    do
        same = graphs[i].slots && graphs[i].exec && !memcmp(graphs[i].slots, slots, bytes);
    while (!same && ++i < QN__CUDA_GRAPHS);
    i -= i == QN__CUDA_GRAPHS;
    found = graphs[i];
    memmove(graphs + 1, graphs, (size_t)i * sizeof *graphs);
    graphs[0] = found;
    return same;
}

/* Makes the binding's first graph ready for the slots of a submission. */
static int make_ready(qn_device *device, const qn__submission *sub)
{
    qn__cuda *cuda = device->state;
    qn__cuda_binding *bound = sub->binding->device_part;
    size_t bytes = sub->n_slots * sizeof *sub->slots;
    if (find_graph(bound, sub->slots, bytes))
        return 0;
    qn__cuda_graph *ready = &bound->graphs[0];
    if (!ready->slots)
        ready->slots = malloc(bytes);
    qn__cu_graph graph = NULL;
    int result = ready->slots ? fill_addresses(cuda, bound, sub) : QN__CU_OUT_OF_MEMORY;
    if (result == 0)
        result = capture(cuda, bound, &graph);
    if (result == 0) {
        result = instantiate(cuda, &ready->exec, graph);
        if (made_room(device, result))
            result = instantiate(cuda, &ready->exec, graph);
    }
    if (graph)
        cuda->cu.graph_destroy(graph);
    if (result != 0) {
        free(ready->slots);
        ready->slots = NULL;
        return result;
    }
    memcpy(ready->slots, sub->slots, bytes);
    if (!ready->counted)
        count_graph(sub->binding);
    ready->counted = true;
    return 0;
}

/* So that what it computes is read as soon as it has run. */
static void mark_results(const qn__submission *sub, uint64_t number)
{
    const qn__plan *plan = sub->binding->plan;
    for (uint32_t i = 0; i < plan->n_targets; i++) {
        qn__buffer *buffer = sub->held[plan->output_slots[i]];
        atomic_store(&buffer->written_by, number);
        atomic_store(&buffer->written_since, false);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* Keeps what the submission looks at. */
static void remember_slots(qn__cuda *cuda, const qn__submission *sub)
{
    cuda->n_newest = 0;
    if (sub->n_held > cuda->newest_room) {
        qn__cuda_range *ranges = realloc(cuda->newest, sub->n_held * sizeof *ranges);
        if (!ranges)
            return;
        cuda->newest = ranges;
        cuda->newest_room = sub->n_held;
    }
    for (; cuda->n_newest < sub->n_held; cuda->n_newest++) {
        const qn__buffer *buffer = sub->held[cuda->n_newest];
        uintptr_t begin = (uintptr_t)buffer->data;
        cuda->newest[cuda->n_newest] = (qn__cuda_range){begin, begin + buffer->capacity};
    }
}

/* As a graph. */
static int replay(qn_device *device, const qn__submission *sub)
{
    qn__cuda *cuda = device->state;
    const qn__cuda_binding *bound = sub->binding->device_part;
    int result = make_ready(device, sub);
    if (result == 0)
        result = qn__cuda_put_before_next(cuda);
    if (result != 0)
        return result;
    result = cuda->cu.graph_launch(bound->graphs[0].exec, cuda->stream);
    if (made_room(device, result)) /* it may be the launch that gives a graph its memory */
        result = cuda->cu.graph_launch(bound->graphs[0].exec, cuda->stream);
    return result;
}

/* One by one, which costs the host more time. */
static int run_launches(qn_device *device, const qn__submission *sub)
{
    qn__cuda *cuda = device->state;
    qn__cuda_binding *bound = sub->binding->device_part;
    if (cuda->stats.one_by_one++ == 0)
        qn__log(device, QN_LOG_INFO, "%s: no memory for a graph: kernels are launched one by one",
                cuda->name);
    int result = fill_addresses(cuda, bound, sub);
    if (result == 0)
        result = qn__cuda_put(cuda);
    return result ? result : launch_all(cuda, bound, cuda->stream);
}

/* Under the lock, in the context. */
static qn_status launch_graph(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cuda *cuda = device->state;
    if (cuda->failure)
        return qn__cuda_fail(cuda, err, cuda->failure, "running an earlier plan");
    qn_status status = qn__submission_begin(sub, err);
    if (status != QN_OK)
        return status;
    int result = replay(device, sub);
    if (result == QN__CU_OUT_OF_MEMORY)
        result = run_launches(device, sub);
    if (result == 0)
        result = cuda->cu.event_record(cuda->done[cuda->submitted % QN__CUDA_EVENTS], cuda->stream);
    if (result != 0) {
        (void)qn__cuda_note_writes(cuda); /* some of it may run */
        return qn__cuda_fail(cuda, err, result, "launching a plan");
    }
    cuda->stats.launches++;
    remember_slots(cuda, sub);
    sub->device_part = (void *)(uintptr_t)++cuda->submitted;
    mark_results(sub, cuda->submitted);
    return QN_OK;
}

qn_status qn__cuda_submit(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cuda *cuda = device->state;
    const qn__cuda_binding *bound = sub->binding->device_part;
    qn_status status = QN_OK;
    if (!bound->n_launches) {
        qn__submission_end(sub, QN_OK);
        return QN_OK;
    }
    if (!qn__cuda_enter(cuda)) {
        qn__submission_end(sub, QN_DEVICE);
        return qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    }
    pthread_mutex_lock(&cuda->lock);
    status = launch_graph(device, sub, err);
    pthread_mutex_unlock(&cuda->lock);
    qn__cuda_leave(cuda);
    qn__submission_end(sub, status);
    return status;
}

/* Waits for the event behind the submission; where the ring has come round, for a later one. */
qn_status qn__cuda_wait(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cuda *cuda = device->state;
    uint64_t number = (uintptr_t)sub->device_part;
    if (sub->status != QN_OK || !number)
        return sub->status == QN_OK ? QN_OK : qn__fail(err, sub->status, "the evaluation failed");
    if (!qn__cuda_enter(cuda))
        return sub->status = qn__fail(err, QN_DEVICE, "%s: the context is lost", cuda->name);
    int result = cuda->cu.event_synchronize(cuda->done[(number - 1) % QN__CUDA_EVENTS]);
    qn__cuda_leave(cuda);
    if (result == 0)
        return QN_OK;
    qn__cuda_note_failure(cuda, result);
    return sub->status = qn__cuda_fail(cuda, err, result, "running a plan");
}
