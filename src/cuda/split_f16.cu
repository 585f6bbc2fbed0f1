/* SPDX-License-Identifier: Apache-2.0
 *
 * split.cu on weights in f16.
 */
#define QN_WEIGHTS_F16
#include "cuda/split.cu"
