/* SPDX-License-Identifier: Apache-2.0
 *
 * Barriers in shared memory, and on sm_90 copies there by the copy engine, whose bytes they count.
 */
#ifndef QN_CUDA_BULK_CUH
#define QN_CUDA_BULK_CUH

#include "cuda/common.cuh"

static __device__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* What lies there. */
template <class T> static __device__ T *shared_place(uint32_t address)
{
    return (T *)__cvta_shared_to_generic(address);
}

/* The warp's number, and one lane of the warp: what the compiler then knows to be the same for all
 * lanes lies in uniform registers, where the copy engine wants addresses, without a loop over the
 * lanes. */
static __device__ int warp_number()
{
    return __shfl_sync(~0u, threadIdx.x / 32, 0);
}
static __device__ bool is_elected()
{
#if __CUDA_ARCH__ >= 900
    uint32_t is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(is));
    return is;
#else
    return threadIdx.x % 32 == 0;
#endif
}

/* A value that is made here, by a whole warp, and not where it is used, which may be where others
 * wait. */
template <typename T> static __device__ T known_now(T v)
{
    return __shfl_xor_sync(~0u, v, 0);
}
template <typename T> static __device__ T *known_now(T *p)
{
    return (T *)known_now((uint64_t)p);
}

static __device__ void barrier_begin(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

/* What the thread began is seen by the copy engine. */
static __device__ void barriers_begun()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
#endif
}

/* An arrival, and so many bytes that are to be copied. */
static __device__ void barrier_expect(uint64_t *barrier, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

static __device__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

/* Whether the phase with this parity has ended. */
static __device__ bool barrier_ended(uint64_t *barrier, uint32_t parity)
{
    uint32_t ended;
    asm volatile("{\n.reg .pred ended;\n"
                 "mbarrier.test_wait.parity.shared.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended;\n}"
                 : "=r"(ended)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return ended;
}

/* Until the phase with this parity has ended. */
static __device__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred ended;\n"
                 "again:\n"
#if __CUDA_ARCH__ >= 900
                 "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 ended, [%0], %1;\n"
#else
                 "mbarrier.test_wait.parity.shared.b64 ended, [%0], %1;\n"
#endif
                 "@!ended bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
static __device__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    barrier_wait(shared_address(barrier), parity);
}

/* Asks for bytes that lie side by side; addresses and their number are multiples of 16. */
static __device__ void copy_bulk(void *to, const void *from, int bytes, uint64_t *full)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full))
                 : "memory");
}

/* The same of what a step reads once. */
static __device__ void copy_bulk_once(void *to, const void *from, int bytes, uint64_t *full)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(leaves_first())
                 : "memory");
}

#endif
