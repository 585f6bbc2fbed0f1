/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled kernels. A process uses a few of them, and to load all takes a tenth of the time to
 * the first token. So routines put addresses of ours for kernels into a binding's launches, which
 * the driver never sees: when the binding is made each kernel that it has is loaded, with its image
 * (a .cu file) where that is the first of it, and takes its place.
 */
#include "cuda/ceilings.h"
#include "cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* An image for each .cu file, made by the build. */
#define IMAGES(X)                                                                                  \
    X(move)                                                                                        \
    X(take)                                                                                        \
    X(order)                                                                                       \
    X(reduce)                                                                                      \
    X(scan)                                                                                        \
    X(rows)                                                                                        \
    X(sample)                                                                                      \
    X(matmul)                                                                                      \
    X(matmul_few)                                                                                  \
    X(linear)                                                                                      \
    X(stream)                                                                                      \
    X(wide)                                                                                        \
    X(split)                                                                                       \
    X(linear_f16)                                                                                  \
    X(stream_f16)                                                                                  \
    X(wide_f16)                                                                                    \
    X(split_f16)                                                                                   \
    X(split_units)                                                                                 \
    X(few_units)                                                                                   \
    X(units)                                                                                       \
    X(many)                                                                                        \
    X(unpack)                                                                                      \
    X(ternary)                                                                                     \
    X(ternary_wide)                                                                                \
    X(pages)                                                                                       \
    X(quantized)                                                                                   \
    X(attention)                                                                                   \
    X(attend)                                                                                      \
    X(attend_one)                                                                                  \
    X(attend_step)                                                                                 \
    X(attend_blocks)                                                                               \
    X(attend_step_blocks)                                                                          \
    X(attend_far)                                                                                  \
    X(attend_far_blocks)                                                                           \
    X(attend_half)                                                                                 \
    X(attend_wide)                                                                                 \
    X(attend_long)                                                                                 \
    X(attend_one_f16)                                                                              \
    X(attend_step_f16)                                                                             \
    X(attend_blocks_f16)                                                                           \
    X(attend_step_blocks_f16)                                                                      \
    X(attend_far_blocks_f16)                                                                       \
    X(attend_far_f16)                                                                              \
    X(attend_half_f16)                                                                             \
    X(attend_wide_f16)                                                                             \
    X(attend_long_f16)                                                                             \
    X(ceilings)                                                                                    \
    X(ceilings_wide)
#define IMAGE_ID(name)      IMAGE_##name,
#define IMAGE_EXTERN(name)  extern const unsigned long long qn__cuda_image_##name[];
#define IMAGE_POINTER(name) qn__cuda_image_##name,
enum { IMAGES(IMAGE_ID) IMAGE_COUNT };
IMAGES(IMAGE_EXTERN)

static const unsigned long long *const images[IMAGE_COUNT] = {IMAGES(IMAGE_POINTER)};

static const struct {
    int image;
    const char *name;
} known[] = {
#define CUDA_KERNEL(image, name) {IMAGE_##image, #name},
#include "cuda/kernels.def"
#undef CUDA_KERNEL
};

/* Some have instructions that sm_90 alone knows, ternary.cu those that came with it; unpack.cu is
 * for wide.cu. */
static bool runs_here(const qn__cuda *cuda, int image)
{
    switch (image) {
    case IMAGE_stream:
    case IMAGE_wide:
    case IMAGE_split:
    case IMAGE_stream_f16:
    case IMAGE_wide_f16:
    case IMAGE_split_f16:
    case IMAGE_split_units:
    case IMAGE_few_units:
    case IMAGE_many:
    case IMAGE_unpack:
    case IMAGE_ternary_wide:
    case IMAGE_attend_one:
    case IMAGE_attend_step:
    case IMAGE_attend_blocks:
    case IMAGE_attend_step_blocks:
    case IMAGE_attend_far:
    case IMAGE_attend_far_blocks:
    case IMAGE_attend_blocks_f16:
    case IMAGE_attend_step_blocks_f16:
    case IMAGE_attend_far_blocks_f16:
    case IMAGE_attend_wide:
    case IMAGE_attend_long:
    case IMAGE_attend_one_f16:
    case IMAGE_attend_step_f16:
    case IMAGE_attend_far_f16:
    case IMAGE_attend_wide_f16:
    case IMAGE_attend_long_f16:
    case IMAGE_ceilings_wide: return qn__cuda_has_wide(cuda);
    case IMAGE_ternary: return cuda->arch >= 90;
    default: return true;
    }
}

/* Bytes of shared memory that a launch may ask for; 0: what every kernel may. */
static int most_dynamic(const qn__cuda *cuda, int image)
{
    switch (image) {
    case IMAGE_matmul: return QN__CUDA_PRODUCT_SHARED;
    case IMAGE_matmul_few:
    case IMAGE_linear:
    case IMAGE_linear_f16:
    case IMAGE_units: return cuda->most_shared;
    case IMAGE_ternary: return QN__CUDA_TERNARY_SHARED;
    case IMAGE_ternary_wide: return QN__CUDA_TERNARY_WIDE_SHARED(256, 128);
    case IMAGE_stream:
    case IMAGE_wide:
    case IMAGE_split:
    case IMAGE_stream_f16:
    case IMAGE_wide_f16:
    case IMAGE_split_f16:
    case IMAGE_split_units:
    case IMAGE_few_units: return QN__CUDA_WIDE_SHARED;
    case IMAGE_many: return QN__CUDA_MANY_SHARED;
    case IMAGE_attend_one:
    case IMAGE_attend_one_f16: return QN__CUDA_ONE_SHARED(QN__CUDA_WIDEST);
    case IMAGE_attend_step:
    case IMAGE_attend_step_f16:
    case IMAGE_attend_blocks:
    case IMAGE_attend_blocks_f16: return qn__cuda_alone_shared(cuda);
    case IMAGE_attend_step_blocks:
    case IMAGE_attend_step_blocks_f16: return QN__CUDA_STEP_UNITS_SHARED(QN__CUDA_WIDEST, 8, 1);
    case IMAGE_attend_far:
    case IMAGE_attend_far_f16:
    case IMAGE_attend_far_blocks:
    case IMAGE_attend_far_blocks_f16: return QN__CUDA_FAR_SHARED;
    case IMAGE_attend_wide:
    case IMAGE_attend_long:
    case IMAGE_attend_wide_f16:
    case IMAGE_attend_long_f16: return QN__CUDA_ATTEND_WIDE_SHARED;
    case IMAGE_attention:
        return cuda->most_shared < QN__CUDA_ATTENTION_SHARED(128) ? QN__CUDA_ATTENTION_SHARED(64)
                                                                  : QN__CUDA_ATTENTION_SHARED(128);
    case IMAGE_attend: return cuda->most_shared - QN__CUDA_STATIC_SHARED;
    case IMAGE_attend_half:
    case IMAGE_attend_half_f16: return QN__CUDA_TILE_SHARED * QN__CUDA_WIDEST_HALF;
    case IMAGE_ceilings: return QN__CUDA_READ_RING * QN__CUDA_READ_TURN;
    case IMAGE_ceilings_wide: return QN__CUDA_MULTIPLY_SHARED;
    default: return 0;
    }
}

/* Clusters of more than eight blocks are to be asked for. */
static bool has_large_cluster(int kernel)
{
    return strstr(known[kernel].name, "_of_9");
}

static int load(qn__cuda *cuda, int kernel)
{
    int image = known[kernel].image, most = most_dynamic(cuda, image), result = 0;
    qn__cu_function function = NULL;
    if (!cuda->modules[image])
        result = cuda->cu.module_load(&cuda->modules[image], images[image]);
    if (result == 0)
        result = cuda->cu.module_function(&function, cuda->modules[image], known[kernel].name);
    if (result == 0 && most)
        result = cuda->cu.function_set(function, QN__CU_DYNAMIC_SHARED, most);
    /* A multiprocessor divides its first memory anew only when it has no block: attention would
     * wait for all of these, which want little, and not begin beside them. */
    if (result == 0 && image == IMAGE_ternary)
        result = cuda->cu.function_set(function, QN__CU_SHARED_SHARE, 100);
    if (result == 0 && has_large_cluster(kernel))
        result = cuda->cu.function_set(function, QN__CU_LARGE_CLUSTERS, 1);
    if (result == 0)
        cuda->loaded[kernel] = function;
    return result;
}

int qn__cuda_load_kernel(qn__cuda *cuda, qn__cu_function *function)
{
    uintptr_t at = (uintptr_t)*function - (uintptr_t)cuda->stand_in;
    if (at >= sizeof cuda->stand_in) /* compiled at run time */
        return 0;
    int result = cuda->loaded[at] ? 0 : load(cuda, (int)at);
    *function = cuda->loaded[at];
    return result;
}

/* How many clusters of so many blocks find room at once that run a kernel, or those noted already
 * if they are fewer. */
static int ask_clusters(qn__cuda *cuda, int kernel, unsigned blocks, unsigned threads,
                        unsigned shared)
{
    const qn__cu_attribute cluster = {.id = QN__CU_CLUSTER, .value.cluster = {blocks, 1, 1}};
    const qn__cu_launch how = {.grid = {blocks, 1, 1},
                               .block = {threads, 1, 1},
                               .shared = shared,
                               .attributes = &cluster,
                               .n_attributes = 1};
    int n = 0, *const least = &cuda->clusters[blocks];
    qn__cu_function function = cuda->kernels[kernel];
    int result = qn__cuda_load_kernel(cuda, &function);
    if (result == 0)
        result = cuda->cu.most_clusters(&n, function, &how);
    *least = *least == 0 || n < *least ? n : *least;
    return result;
}

/* ... whose blocks have a multiprocessor each: how these lie together differs from one GPU to the
 * next. The largest clusters are those of attention over far pages; of all others a small kernel
 * that takes as much shared memory is asked for. */
static int find_clusters(qn__cuda *cuda)
{
    int result = 0;
    for (unsigned blocks = 1; blocks < QN__CUDA_FAR_BLOCKS && result == 0; blocks++)
        result = ask_clusters(cuda, QN__CUDA_KERNEL_multiply_wide, blocks,
                              QN__CUDA_MULTIPLY_THREADS, QN__CUDA_MULTIPLY_SHARED);
    for (int i = 0; i < 2 && result == 0; i++)
        result = ask_clusters(
            cuda, i ? QN__CUDA_KERNEL_attend_far_128_of_9 : QN__CUDA_KERNEL_attend_far_64_of_9,
            QN__CUDA_FAR_BLOCKS, QN__CUDA_FAR_THREADS, QN__CUDA_FAR_SHARED);
    return result;
}

int qn__cuda_begin_kernels(qn__cuda *cuda)
{
    cuda->modules = calloc(IMAGE_COUNT, sizeof *cuda->modules);
    if (!cuda->modules)
        return QN__CU_OUT_OF_MEMORY;
    for (int i = 0; i < QN__CUDA_KERNEL_COUNT; i++)
        if (runs_here(cuda, known[i].image))
            cuda->kernels[i] = (qn__cu_function)(void *)&cuda->stand_in[i];
    int result = load(cuda, QN__CUDA_KERNEL_put);
    return result == 0 && runs_here(cuda, IMAGE_attend_far) ? find_clusters(cuda) : result;
}

void qn__cuda_unload_kernels(qn__cuda *cuda)
{
    for (int i = 0; cuda->modules && i < IMAGE_COUNT; i++)
        if (cuda->modules[i])
            cuda->cu.module_unload(cuda->modules[i]);
}
