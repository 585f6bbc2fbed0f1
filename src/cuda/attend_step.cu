/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token over a cache in bf16, for sm_90, which turns the token's queries and its
 * key and writes key and value to the cache; and of a few, of any sequences, whose keys and values
 * a launch ahead has written (attend_few.cuh). The bits are those of attend_half.cu.
 *
 * All that was in the cache before is asked for before the launches ahead have ended. A block is so
 * small that it begins beside those of the layers ahead, and those of the layer behind beside it.
 */
#include "cuda/attend_few.cuh"

/* The row that the step adds, to the cache: by the last threads, since the first warps join. */
template <int D, int C>
static __device__ void write_row(const qn__cuda_attend_args &a, const step_room<D, C> &s, int head)
{
    const int i = BLOCK - 1 - (int)threadIdx.x, k = 2 * i;
    if (i >= D / 2)
        return;
    const int slot = s.step.slot;
    if (slot < 0)
        return;
    write_key<D>(a, k, ((const uint2 *)&s.key[k / 16][k % 8 / 2])[k % 16 / 8].x, head, slot);
    if (i < D / 8)
        ((uint4 *)place_of_value<D>(a, head, slot))[i] = s.value[i];
}

/* For what is never so: registers that a kernel has although it needs fewer. Blocks of few lie two
 * on one multiprocessor, where they make each other wait, while others have none. */
template <int N> static __device__ void hold_registers(float *room)
{
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(v[i]) : "l"(room + i));
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("st.global.f32 [%0], %1;" ::"l"(room + i), "f"(v[i]));
}

/* Blocks: [key heads][C] */
template <int D, int C, bool NEAR>
static __device__ void attend_step(const qn__cuda_attend_turn_args &t)
{
    extern __shared__ __align__(128) char shared_room[];
    step_room<D, C> &s = *(step_room<D, C> *)shared_room;
    const qn__cuda_attend_args &a = t.a;
    const int rank = (int)rank_in_cluster(), head = blockIdx.x / C, rows = (int)a.shared,
              mine = first_page<C>(rank);
    if (t.next_holds_back)
        let_next_begin();
    token_step::numbers known;
    known.ask(a);
    const int turns = min((int)threadIdx.x, D / 2 - 1),
              offset = load_now(a.at[QN__CUDA_TURN_OFFSET]);
    const float frequency =
        __int_as_float(load_now((const float *)a.at[QN__CUDA_TURN_FREQUENCY] + turns));
    begin_barriers<C>(s); /* meanwhile: the cluster's blocks have to be there early */
    token_step own;
    const bool fits = own.find<C>(a, known, rank, mine);
    if (!fits) {
        if (NEAR && D < QN__CUDA_WIDEST && a.d < 0)
            hold_registers<D == 64 ? 78 : 126>((float *)a.at[6]);
        let_next_begin();
        cluster_wait();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    const seen_pages &seen = own.seen;
    step_work w = {rank, head, head * rows, rows, 0, own.adds, own.place, seen.n};
    cached_page<D> keys = {};
    if (mine < seen.n)
        ask_page_of(a, s, seen, w, keys, mine, own.at);
    if (!NEAR && mine + GROUPS * C < seen.n)
        fetch_page<D>(a, head, seen.place(mine + GROUPS * C));
    if (!t.next_holds_back)
        let_next_begin(); /* behind what was asked for, which its weights would keep waiting */
    expect_pages<C>(s, min(seen.n, step_parts<D, C>::most(rows)), rows);
    if (threadIdx.x < D / 2) {
        float2 turn;
        sincosf((float)offset * frequency, &turn.x, &turn.y);
        s.turn[threadIdx.x] = turn;
    }
    w.find<D, C>(s.values, seen, mine);
    join_places places = {};
    if (NEAR)
        places.find<true>(a, s, w);
    if (threadIdx.x == 0)
        s.step = own;
    clear_queries<D, BLOCK>(s.q, rows, threadIdx.x);
    typedef shared_row<D, BLOCK> R;
    R row;
    row.begin(t, own, threadIdx.x, head);
    const int k = R::first(threadIdx.x);
    const uint32_t q = known_now(shared_address(query_place<D>(s.q, R::row_of(threadIdx.x), k))),
                   key = known_now(shared_address((uint2 *)&s.key[k / 16][k % 8 / 2] + k % 16 / 8));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R::PARTS; i++)
        row.turn[i].take(&s.turn[k + 2 * i]);
    cluster_wait(); /* all are there, and so are their barriers */
    wait_for_last();
    row.load(t);
    keys.pack(); /* while queries come */
    row.share(
        t, shared_place<uint32_t>(q),
        [=](int i, uint2 v) {
            uint2 *const to = shared_place<uint2>(key) + 2 * i;
            to[0] = make_uint2(v.x, v.x);
            to[D / 32 * 8] = make_uint2(v.y, v.y);
        },
        [&](uint2 v) { ((uint2 *)s.value)[D / 4 - BLOCK + (int)threadIdx.x] = v; });
    __syncthreads();
    attend_pages<D, C, NEAR>(a, s, w, places, keys, plain_results<step_room<D, C>::COLUMNS>{},
                             [&] { write_row(a, s, head); });
}

/* Registers are left for the layers beside, whose warps have 64 or 72: of a scheduler's 16,384 two
 * warps of 160 and three of theirs, or two of 96 and five. More would be spilled than others gain:
 * what comes from local memory behind the cluster's barrier comes from far away. */
#define TOKEN_KERNEL(NAME, D, C, NEAR, REGISTERS)                                                  \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __maxnreg__(REGISTERS)                    \
        CACHE_KERNEL(NAME##_##D##_of_##C)(const __grid_constant__ qn__cuda_attend_turn_args t)     \
    {                                                                                              \
        static_assert(sizeof(step_room<D, C>) == QN__CUDA_STEP_SHARED(D, C), "");                  \
        attend_step<D, C, NEAR>(t);                                                                \
    }
#define STEP_KERNEL(D, C, REGISTERS) TOKEN_KERNEL(attend_step, D, C, false, REGISTERS)
#define NEAR_KERNEL(D, C, REGISTERS) TOKEN_KERNEL(attend_near, D, C, true, REGISTERS)
#define FEW_KERNEL(D, C, REGISTERS)                                                                \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __maxnreg__(REGISTERS)                    \
        CACHE_KERNEL(attend_few_##D##_of_##C)(const __grid_constant__ qn__cuda_attend_args a)      \
    {                                                                                              \
        static_assert(sizeof(step_room<D, C>) == QN__CUDA_STEP_SHARED(D, C), "");                  \
        attend_few<D, C, cached_page<D>>(a, plain_results<D / C>{});                               \
    }
STEP_KERNEL(64, 4, 104)
STEP_KERNEL(64, 8, 104)
STEP_KERNEL(128, 4, 144)
STEP_KERNEL(128, 8, 144)
STEP_KERNEL(256, 4, 176)
STEP_KERNEL(256, 8, 160)
NEAR_KERNEL(64, 4, 96)
NEAR_KERNEL(64, 8, 96)
NEAR_KERNEL(128, 4, 144)
NEAR_KERNEL(128, 8, 144)
NEAR_KERNEL(256, 4, 144)
NEAR_KERNEL(256, 8, 144)
NEAR_KERNEL(256, 9, 144)
FEW_KERNEL(64, 1, 112)
FEW_KERNEL(64, 2, 112)
FEW_KERNEL(64, 4, 112)
FEW_KERNEL(64, 8, 112)
FEW_KERNEL(128, 1, 144)
FEW_KERNEL(128, 2, 144)
FEW_KERNEL(128, 4, 144)
FEW_KERNEL(128, 8, 144)
FEW_KERNEL(256, 4, 176)
FEW_KERNEL(256, 8, 176)
