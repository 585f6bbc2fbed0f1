/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of safetensors_dtype.h.
 */
#include "io/safetensors_dtype.h"

#include <string.h>

static const char *const dtype_names[] = {
#define DTYPE_NAME(name, bytes, kind, file_name) [QN_##name] = file_name,
    QN_DTYPE_LIST(DTYPE_NAME)
#undef DTYPE_NAME
};

static const uint8_t dtype_sizes[] = {
#define DTYPE_SIZE(name, bytes, kind, file_name) [QN_##name] = bytes,
    QN_DTYPE_LIST(DTYPE_SIZE)
#undef DTYPE_SIZE
};

qn_status qn__safetensors_dtype(const char *name, size_t size, qn_dtype *dtype)
{
    static const char *const others[] = {
        "F4",      "F6_E2M3",     "F6_E3M2",     "F8_E5M2", "F8_E4M3",
        "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64",
    };
    for (int i = 0; i < QN_DTYPE_COUNT; i++)
        if (strlen(dtype_names[i]) == size && memcmp(dtype_names[i], name, size) == 0) {
            *dtype = (qn_dtype)i;
            return QN_OK;
        }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strlen(others[i]) == size && memcmp(others[i], name, size) == 0)
            return QN_UNSUPPORTED;
    return QN_FORMAT;
}

const char *qn__safetensors_dtype_name(qn_dtype dtype)
{
    return dtype_names[dtype];
}

uint64_t qn__safetensors_dtype_size(qn_dtype dtype)
{
    return dtype_sizes[dtype];
}
