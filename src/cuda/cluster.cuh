/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of a cluster, for sm_90.
 */
#ifndef QN_CUDA_CLUSTER_CUH
#define QN_CUDA_CLUSTER_CUH

#include "cuda/bulk.cuh"

static __device__ uint32_t rank_in_cluster()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of a cluster's blocks, whose warps are together: what they wrote into each other's
 * shared memory is seen. */
static __device__ void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* The same in two steps, between which a block does what needs no other: all are there. */
static __device__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same, however the warps have parted. */
static __device__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
}

/* Where a block has what is at this place here. */
static __device__ uint32_t address_at(uint32_t here, uint32_t rank)
{
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(here), "r"(rank));
    return at;
}
static __device__ uint32_t address_at(const void *p, uint32_t rank)
{
    return address_at(shared_address(p), rank);
}

/* Four numbers from such a place. */
static __device__ float4 get_four(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at));
    return v;
}

/* Four numbers to such a place; the barrier, of the same block, counts their bytes. */
static __device__ void put_four(uint32_t to, uint32_t barrier, const float *v)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, "
        "[%1];" ::"r"(to),
        "r"(barrier), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
        : "memory");
}

static __device__ void put_two(uint32_t to, uint32_t barrier, const float *v)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::"r"(
            to),
        "r"(barrier), "f"(v[0]), "f"(v[1])
        : "memory");
}

/* Arrives at a block's barrier, which is at the place of this one's. For the block's threads alone:
 * with .release.cluster it would wait for all that the GPU has written, at each arrival. What this
 * orders are reads, of products that are done, and the copy engine's writes. */
static __device__ void barrier_arrive_at(uint64_t *barrier, int rank)
{
    asm volatile("{\n.reg .b32 at;\n"
                 "mapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

#endif
