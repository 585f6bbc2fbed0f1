/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GPU can do at best: kernels that do nothing but read (ceilings.cu), and nothing but
 * multiply in bf16 (ceilings.cu, ceilings_wide.cu). A GPU that multiplies slows down within some
 * 40 ms: what counts is what it does then, as in a long prompt.
 */
#include "cuda/ceilings.h"

#include "base/clock.h"
#include "cuda/cuda.h"

enum { RUNS = 3, READS = 8, ROUNDS = 20000, MOST_LAUNCHES = 100 };

static const size_t most_bytes = (size_t)8 << 30, least_bytes = (size_t)64 << 20;

typedef struct loop {
    qn__cu_function function; /* loaded */
    qn__cu_launch how;
    void *args;
} loop;

/* Seconds of so many launches, one behind the other; 0: they failed. */
static double time_launches(qn__cuda *cuda, const loop *l, int n)
{
    void *params[] = {l->args};
    double begun = qn__seconds();
    int result = 0;
    for (int i = 0; i < n && result == 0; i++)
        result = cuda->cu.launch(&l->how, l->function, params, NULL);
    if (result == 0)
        result = cuda->cu.stream_synchronize(cuda->stream);
    if (result != 0)
        qn__cuda_note_failure(cuda, result);
    return result == 0 ? qn__seconds() - begun : 0;
}

/* A launch of so many blocks for each multiprocessor; false: the GPU has no such kernel. */
static bool begin_loop(qn__cuda *cuda, loop *l, int kernel, int blocks, unsigned threads,
                       unsigned shared)
{
    l->function = cuda->kernels[kernel];
    l->how = (qn__cu_launch){.grid = {(unsigned)(cuda->processors * blocks), 1, 1},
                             .block = {threads, 1, 1},
                             .shared = shared,
                             .stream = cuda->stream};
    if (!l->function)
        return false;
    pthread_mutex_lock(&cuda->lock);
    int result = qn__cuda_load_kernel(cuda, &l->function);
    pthread_mutex_unlock(&cuda->lock);
    return result == 0;
}

/* Memory to read: many times what the second cache has, but never more than half of what is free.
 */
static qn__cu_address take_memory(qn__cuda *cuda, size_t *bytes)
{
    qn__cu_address at = 0;
    size_t there = 0, all;
    if (cuda->cu.mem_info(&there, &all) != 0)
        return 0;
    for (*bytes = most_bytes; *bytes >= least_bytes; *bytes /= 2)
        if (*bytes <= there / 2 && cuda->cu.mem_alloc(&at, *bytes) == 0)
            return at;
    return 0;
}

/* Bytes a second, of the best run. */
static double measure_read(qn__cuda *cuda, qn__cu_address result)
{
    const bool bulk = cuda->arch >= 90;
    const int blocks = bulk ? 1 : QN__CUDA_READ_BLOCKS;
    size_t bytes = 0;
    double best = 0;
    loop l = {0};
    qn__cu_address data = take_memory(cuda, &bytes);
    qn__cuda_read_args args = {(const char *)(uintptr_t)data, 0, (uint32_t *)(uintptr_t)result};
    if (!data)
        return 0;
    l.args = &args;
    bool ok =
        bulk ? begin_loop(cuda, &l, QN__CUDA_KERNEL_read_bulk, blocks, 32,
                          QN__CUDA_READ_RING * QN__CUDA_READ_TURN)
             : begin_loop(cuda, &l, QN__CUDA_KERNEL_read_memory, blocks, QN__CUDA_READ_THREADS, 0);
    args.turns = (int64_t)bytes / QN__CUDA_READ_TURN / (cuda->processors * blocks);
    ok = ok && time_launches(cuda, &l, 1) > 0;
    for (int i = 0; ok && i < RUNS; i++) {
        double work = (double)args.turns * QN__CUDA_READ_TURN * l.how.grid[0] * READS,
               taken = time_launches(cuda, &l, READS);
        best = taken > 0 && work / taken > best ? work / taken : best;
    }
    cuda->cu.mem_free(data);
    return best;
}

/* Operations a second in a fifth of a second, behind a tenth. */
static double measure_products(qn__cuda *cuda, qn__cu_address result)
{
    const bool wide = qn__cuda_has_wide(cuda);
    const double operations = 2.0 * ROUNDS * (wide ? QN__CUDA_WIDE_ROUND : QN__CUDA_FEW_ROUND);
    qn__cuda_multiply_args args = {ROUNDS, (uint32_t *)(uintptr_t)result};
    loop l = {.args = &args};
    bool ok = wide ? begin_loop(cuda, &l, QN__CUDA_KERNEL_multiply_wide, 1,
                                QN__CUDA_MULTIPLY_THREADS, QN__CUDA_MULTIPLY_SHARED)
                   : begin_loop(cuda, &l, QN__CUDA_KERNEL_multiply, QN__CUDA_MULTIPLY_BLOCKS,
                                QN__CUDA_MULTIPLY_THREADS, 0);
    /* the first launch waits for the kernel itself */
    double one = ok && time_launches(cuda, &l, 1) > 0 ? time_launches(cuda, &l, 1) : 0;
    if (one <= 0)
        return 0;
    int n = one * MOST_LAUNCHES > 0.1 ? (int)(0.1 / one) + 1 : MOST_LAUNCHES;
    double taken = time_launches(cuda, &l, n) > 0 ? time_launches(cuda, &l, 2 * n) : 0;
    return taken > 0 ? operations * l.how.grid[0] * 2 * n / taken : 0;
}

void qn__cuda_ceilings(qn_device *device, qn_ceilings *out)
{
    qn__cuda *cuda = device->state;
    qn__cu_address result = 0;
    if (!qn__cuda_enter(cuda))
        return;
    if (cuda->cu.mem_alloc(&result, sizeof(uint32_t)) == 0) {
        out->read = measure_read(cuda, result);
        out->bf16 = measure_products(cuda, result);
        cuda->cu.mem_free(result);
    }
    qn__cuda_leave(cuda);
}
