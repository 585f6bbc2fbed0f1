/* SPDX-License-Identifier: Apache-2.0
 *
 * Running sums, products, maxima and minima along rows: a block a row, which it passes in pieces of
 * PIECE elements. A thread has OWN neighbours of a piece in shared memory, from the left; then the
 * threads of a warp join what is before them, those at 1, 2, 4 ... in turn, and so do warps. So the
 * order depends on an element's place only.
 */
#include "cuda/common.cuh"

enum { OWN = 16, PIECE = OWN * THREADS };
enum { RUNNING_SUM, RUNNING_PRODUCT, RUNNING_MAX, RUNNING_MIN }; /* qn__cumulation */

/* What came before, and an element. NaN wins. */
template <typename T> static __device__ T joined(int64_t what, T a, T b)
{
    switch (what) {
    case RUNNING_SUM: return a + b;
    case RUNNING_PRODUCT: return a * b;
    case RUNNING_MAX: return a != a || a > b ? a : b;
    default: return a != a || a < b ? a : b;
    }
}

/* Threads' places lie so that those of a warp are in different banks. */
static __device__ int spread(int i)
{
    return i + i / OWN;
}

template <typename T> static __device__ void scan_rows(const qn__cuda_scan_args &a, void *room)
{
    T *piece = (T *)room, *of_warp = piece + PIECE + THREADS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const T *x = (const T *)a.at[0] + r * a.n;
        T *y = (T *)a.at[1] + r * a.n, before = a.what == RUNNING_PRODUCT ? (T)1 : (T)0;
        for (int64_t first = 0; first < a.n; first += PIECE) {
            const int n = (int)min(a.n - first, (int64_t)PIECE), own = threadIdx.x * OWN,
                      mine = min(max(n - own, 0), (int)OWN);
            const auto at = [&](int i) { return a.reverse ? a.n - 1 - first - i : first + i; };
            for (int i = threadIdx.x; i < n; i += THREADS)
                piece[spread(i)] = x[at(i)];
            __syncthreads();
            T v = mine ? piece[spread(own)] : (T)0;
            for (int i = 1; i < mine; i++)
                v = piece[spread(own + i)] = joined(a.what, v, piece[spread(own + i)]);
            /* Threads without elements are the last: what they have joins nobody's. */
            for (int d = 1; d < 32; d *= 2) {
                const T left = __shfl_up_sync(~0u, v, d);
                if (lane >= d && mine)
                    v = joined(a.what, left, v);
            }
            if (lane == 31)
                of_warp[warp] = v;
            const T ahead = __shfl_up_sync(~0u, v, 1);
            __syncthreads();
            /* Of all before a thread: earlier pieces, earlier warps, its own warp's. */
            bool any = first > 0;
            T sum = before;
            for (int w = 0; w < warp; w++, any = true)
                sum = any ? joined(a.what, sum, of_warp[w]) : of_warp[w];
            if (lane)
                sum = any ? joined(a.what, sum, ahead) : ahead;
            any = any || lane;
            for (int i = 0; i < mine; i++) {
                T &to = piece[spread(own + i)];
                to = any ? joined(a.what, sum, to) : to;
            }
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += THREADS) {
                if (!a.exclusive)
                    y[at(i)] = piece[spread(i)];
                else
                    y[at(i)] = i ? piece[spread(i - 1)] : before;
            }
            before = piece[spread(n - 1)];
            __syncthreads();
        }
    }
}

extern "C" __global__ void scan(qn__cuda_scan_args a)
{
    __shared__ double room[PIECE + THREADS + THREADS / 32];
    wait_for_others();
    switch (a.type) {
    case QN_F64: scan_rows<double>(a, room); break;
    case QN_I32: scan_rows<int32_t>(a, room); break;
    case QN_I64: scan_rows<int64_t>(a, room); break;
    default: scan_rows<float>(a, room); break;
    }
}
