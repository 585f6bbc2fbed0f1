/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_step.cu over a cache in f16.
 */
#define QN_CACHE_F16
#include "cuda/attend_step.cu"
