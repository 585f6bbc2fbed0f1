/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions of sm_90a: boxes of a tensor copied into shared memory, products of them.
 *
 * A tile in shared memory has rows of 128 bytes, whose pieces of 16 are exchanged by row: piece c
 * of row r is at c ^ r % 8. It begins at a multiple of 1024 bytes.
 */
#ifndef QN_CUDA_TENSOR_CUH
#define QN_CUDA_TENSOR_CUH

#include "cuda/bulk.cuh"

/* ---- boxes ----------------------------------------------------------------------------------- */

/* Asks for the box of a map at (column, row); `full` learns when it is there. */
static __device__ void copy_box(void *to, const void *map, uint64_t *full, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(column), "r"(row)
                 : "memory");
}

/* The same of what a step reads once. */
static __device__ void copy_box_once(void *to, const void *map, uint64_t *full, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(column), "r"(row), "l"(leaves_first())
                 : "memory");
}

/* The same for some blocks of a cluster, a bit each, which get it at the same places. */
static __device__ void copy_box_to(void *to, const void *map, uint64_t *full, int column, int row,
                                   uint16_t blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(column), "r"(row), "h"(blocks)
                 : "memory");
}

/* The same of three axes, from (0, row, piece). */
static __device__ void copy_pieces(void *to, const void *map, uint64_t *full, int row, int piece)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(0), "r"(row), "r"(piece)
                 : "memory");
}

/* The same of what a step reads once. */
static __device__ void copy_pieces_once(void *to, const void *map, uint64_t *full, int row,
                                        int piece)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(0), "r"(row), "r"(piece),
                 "l"(leaves_first())
                 : "memory");
}

/* Asks for a map itself. */
static __device__ void fetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- a ring of stages ------------------------------------------------------------------------ */

/* A place in it, and how often it has been there, modulo 2. */
struct ring_place {
    int stage;
    uint32_t phase;

    __device__ void next(int stages)
    {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* A warp is done with a stage: who fills it learns that. */
static __device__ void give_back(uint64_t *empty)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

/* What the thread wrote into shared memory is seen by the copy engine and by products of wgmma. */
static __device__ void written_for_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- products -------------------------------------------------------------------------------- */

/* Four matrices of 8 x 8 halves for mma.sync (mma.cuh): each lane has the address of a row. */
static __device__ uint4 load_matrices(uint32_t at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* Describes a tile, of which 16 columns are read; 2 more are the next 16. */
static __device__ uint64_t tile_descriptor(const void *tile)
{
    return (uint64_t)(shared_address(tile) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

static __device__ void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ void products_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until no more than `left` groups of products are under way. */
template <int left> static __device__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/* What is read of a sum stays behind the wait. */
static __device__ void settled(float &c)
{
    asm volatile("" : "+f"(c)::"memory");
}
static __device__ void settled(int &c)
{
    asm volatile("" : "+r"(c)::"memory");
}

/* The 128 threads that multiply together, one group of them or the other. */
static __device__ void group_meets(int group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}
static __device__ void both_groups_meet()
{
    asm volatile("bar.sync 3, 256;" ::: "memory");
}

/* ---- registers ------------------------------------------------------------------------------- */

template <int n> static __device__ void registers_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> static __device__ void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

#endif
