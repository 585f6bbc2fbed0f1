/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_far_blocks.cu over keys in f16, beside values in blocks.
 */
#define QN_CACHE_F16
#include "cuda/attend_far_blocks.cu"
