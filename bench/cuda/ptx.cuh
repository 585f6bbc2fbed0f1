// SPDX-License-Identifier: Apache-2.0
// The few PTX instructions that the kernels need: mbarriers, bulk copies into shared memory,
// programmatic dependent launch and the bf16 matrix product. Shared addresses are 32-bit.
#pragma once
#include <cstdint>

__device__ inline uint32_t smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ inline void bar_init(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(bar)), "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine.
__device__ inline void bar_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(bar)) : "memory");
}

__device__ inline bool bar_try(uint64_t *bar, uint32_t phase)
{
    uint32_t done;
    asm volatile("{\n .reg .pred p;\n"
                 " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 " selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(smem(bar)), "r"(phase)
                 : "memory");
    return done;
}

// Whether the phase is over, without waiting.
__device__ inline bool bar_test(uint64_t *bar, uint32_t phase)
{
    uint32_t done;
    asm volatile("{\n .reg .pred p;\n"
                 " mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 " selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(smem(bar)), "r"(phase)
                 : "memory");
    return done;
}

__device__ inline void bar_wait(uint64_t *bar, uint32_t phase)
{
    while (!bar_try(bar, phase))
        ;
}

__device__ inline void bar_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(bar)),
                 "r"(bytes)
                 : "memory");
}

// One thread; addresses and bytes are multiples of 16. The barrier counts the bytes that land.
__device__ inline void bulk_copy(void *dst, const void *src, uint32_t bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(smem(dst)),
                 "l"(src), "r"(bytes), "r"(smem(bar))
                 : "memory");
}

// Blocks until the kernels before this one are complete and what they wrote is visible.
__device__ inline void pdl_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next kernel start once every block of this one has said so.
__device__ inline void pdl_trigger()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// c[16x8] += a[16x16] b[16x8], bf16 in, f32 out.
__device__ inline void mma_bf16(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// ---- clusters: the same place in another block's shared memory, and barriers over all blocks ----

__device__ inline uint32_t cluster_rank()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ inline uint32_t at_rank(uint32_t address, uint32_t rank)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}

__device__ inline void cluster_store(uint32_t address, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

// Arrives at a barrier of another block; what this thread wrote before is visible to who waits.
__device__ inline void cluster_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar)
                 : "memory");
}

__device__ inline void cluster_wait(uint64_t *bar, uint32_t phase)
{
    uint32_t done;
    do
        asm volatile("{\n .reg .pred p;\n"
                     " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     " selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(smem(bar)), "r"(phase)
                     : "memory");
    while (!done);
}

// All threads of all blocks of the cluster.
__device__ inline void cluster_sync()
{
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}
