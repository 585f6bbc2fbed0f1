/* SPDX-License-Identifier: Apache-2.0
 *
 * wide.cu on weights in f16.
 */
#define QN_WEIGHTS_F16
#include "cuda/wide.cu"
