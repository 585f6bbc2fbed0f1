/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding the driver and the compiler, and their functions.
 */
#include "cuda/driver.h"

#include "base/error.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

static void *open_first(const char *const *names, int n)
{
    void *library = NULL;
    for (int i = 0; i < n && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}

/* Stores a function's address; false when the library lacks it. (memcpy: ISO C has no cast from an
 * object's pointer to a function's.) */
static bool find_symbol(void *library, const char *symbol, void *to)
{
    void *address = dlsym(library, symbol);
    memcpy(to, &address, sizeof address);
    return address != NULL;
}

/* A driver that is too old is told by its version, which it has had from the beginning; functions
 * that it lacks follow from that. */
static qn_status check_version(void *library, qn_error *err)
{
    int (*get_version)(int *version);
    int version = 0;
    if (!find_symbol(library, "cuDriverGetVersion", &get_version) || get_version(&version) != 0 ||
        version >= QN__CU_OLDEST)
        return QN_OK;
    return qn__fail(err, QN_UNSUPPORTED,
                    "cuda: the NVIDIA driver is for CUDA %d.%d; one for CUDA %d.0 or newer is "
                    "needed (525 or newer, as nvidia-smi shows it)",
                    version / 1000, version % 1000 / 10, QN__CU_OLDEST / 1000);
}

qn_status qn__cu_load(qn__cu *cu, qn_error *err)
{
    static const char *const names[] = {"libcuda.so.1", "libcuda.so"};
    cu->library = open_first(names, 2);
    if (!cu->library) { /* it may be there and not fit: what the linker says of it is told */
        dlopen(names[0], RTLD_NOW | RTLD_LOCAL);
        const char *why = dlerror();
        return qn__fail(err, QN_UNSUPPORTED, "cuda: there is no NVIDIA driver: %.200s",
                        why ? why : names[0]);
    }
    if (check_version(cu->library, err) != QN_OK)
        return QN_UNSUPPORTED;
#define CU_FIND(name, symbol, params)                                                              \
    if (!find_symbol(cu->library, #symbol, &cu->name))                                             \
        return qn__fail(err, QN_UNSUPPORTED,                                                       \
                        "cuda: the driver lacks %s; one for CUDA 12.0 or newer is needed",         \
                        #symbol);
    QN__CU_LIST(CU_FIND)
#undef CU_FIND
    return QN_OK;
}

qn_status qn__nvrtc_load(qn__nvrtc *nvrtc, qn_error *err)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so",
                                        "/opt/cuda/lib64/libnvrtc.so"};
    nvrtc->library = open_first(names, 5);
    if (!nvrtc->library)
        return qn__fail(err, QN_UNSUPPORTED,
                        "cuda: libnvrtc.so.13 (or 12) is needed to compile fused operations; it "
                        "comes with the CUDA toolkit, or with pip install nvidia-cuda-nvrtc, whose "
                        "folder LD_LIBRARY_PATH then has to name");
#define NVRTC_FIND(name, symbol, params)                                                           \
    if (!find_symbol(nvrtc->library, #symbol, &nvrtc->name))                                       \
        return qn__fail(err, QN_UNSUPPORTED, "cuda: libnvrtc lacks %s", #symbol);
    QN__NVRTC_LIST(NVRTC_FIND)
#undef NVRTC_FIND
    return QN_OK;
}

void qn__cu_unload(qn__cu *cu)
{
    if (cu->library)
        dlclose(cu->library);
}

void qn__nvrtc_unload(qn__nvrtc *nvrtc)
{
    if (nvrtc->library)
        dlclose(nvrtc->library);
}
