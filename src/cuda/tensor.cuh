/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions of sm_90a: barriers in shared memory, boxes of a tensor copied there, products of
 * them.
 *
 * A tile in shared memory has rows of 128 bytes, whose pieces of 16 are exchanged by row: piece c
 * of row r is at c ^ r % 8. It begins at a multiple of 1024 bytes.
 */
#ifndef QN_CUDA_TENSOR_CUH
#define QN_CUDA_TENSOR_CUH

#include <cstdint>

static __device__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers -------------------------------------------------------------------------------- */

static __device__ void barrier_begin(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* What the thread began is seen by the copy engine. */
static __device__ void barriers_begun()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
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
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/* Until the phase with this parity has ended. */
static __device__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred ended;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 ended, [%0], %1;\n"
                 "@!ended bra again;\n}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* ---- boxes ----------------------------------------------------------------------------------- */

/* Asks for the box of a map at (column, row); `full` learns when it is there. */
static __device__ void copy_box(void *to, const void *map, uint64_t *full, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(column), "r"(row)
                 : "memory");
}

/* ---- products -------------------------------------------------------------------------------- */

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
