/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing npz and npy: arrays in host memory, through the atomic writer.
 */
#ifndef QN_IO_NPZ_WRITE_H
#define QN_IO_NPZ_WRITE_H

#include "io/safetensors.h"

/* An archive of stored members, one NAME.npy an array. */
qn_status qn__npz_write(const char *path, const qn__tensor_data *tensors, size_t n, qn_error *err);

/* One array. */
qn_status qn__npy_write(const char *path, const qn__tensor_data *tensor, qn_error *err);

#endif
