/* SPDX-License-Identifier: Apache-2.0
 *
 * In the place of NVIDIA's driver, where there is no GPU: an H200 whose memory is the host's and
 * whose kernels do nothing, but whose names and grids a test can read. What the copy engine would
 * refuse is refused.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REFUSED = 1, NO_MEMORY = 2, MOST_SHARED = 232448, ROOM = 1 << 16 };

/* The launches of the newest capture, "name blocks threads" each on a line. */
char no_driver_launches[ROOM];

typedef struct launch {
    unsigned grid[3], block[3], shared;
} launch;

static int get_memory(uint64_t *address, size_t n, size_t alignment)
{
    void *p = NULL;
    if (posix_memalign(&p, alignment, n ? n : 1))
        return NO_MEMORY;
    *address = (uintptr_t)p;
    return 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}
int cuDeviceGetCount(int *n)
{
    *n = 1;
    return 0;
}
int cuDeviceGet(int *device)
{
    *device = 0;
    return 0;
}
int cuDeviceGetName(char *name, int room)
{
    snprintf(name, (size_t)room, "none");
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute)
{
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 97 ? MOST_SHARED : 0;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes)
{
    *bytes = (size_t)16 << 30;
    return 0;
}
int cuGetErrorName(int error, const char **name)
{
    *name = error == NO_MEMORY ? "NO_MEMORY" : "REFUSED";
    return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t n)
{
    return get_memory(address, n, 256);
}
int cuMemFree_v2(uint64_t address)
{
    free((void *)(uintptr_t)address);
    return 0;
}
int cuMemGetAllocationGranularity(size_t *bytes)
{
    *bytes = 2 << 20;
    return 0;
}
int cuMemAddressReserve(uint64_t *address, size_t n)
{
    return get_memory(address, n, 2 << 20);
}
int cuMemAddressFree(uint64_t address)
{
    return cuMemFree_v2(address);
}
int cuMemAllocHost_v2(void **p, size_t n)
{
    *p = malloc(n);
    return *p ? 0 : NO_MEMORY;
}
int cuMemFreeHost(void *p)
{
    free(p);
    return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n)
{
    memcpy((void *)(uintptr_t)to, from, n);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n)
{
    (void)from;
    memset(to, 0, n);
    return 0;
}
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *data, const uint64_t *shape,
                           const uint64_t *apart, const unsigned *box)
{
    (void)map;
    (void)type;
    for (unsigned i = 0; i < rank; i++)
        if (!shape[i] || !box[i] || box[i] > 256 || (i + 1 < rank && apart[i] % 16))
            return REFUSED;
    return (uintptr_t)data % 16 ? REFUSED : 0;
}
int cuModuleGetFunction(const char **function, void *module, const char *name)
{
    static const char *names[256];
    static int n;
    int i = 0;
    (void)module;
    while (i < n && strcmp(names[i], name))
        i++;
    if (i == n && n < 256)
        names[n++] = strdup(name);
    *function = i < n ? names[i] : "?";
    return 0;
}
int cuLaunchKernelEx(const launch *how, const char *name)
{
    size_t used = strlen(no_driver_launches);
    snprintf(no_driver_launches + used, ROOM - used, "%s %u %u\n", name, how->grid[0],
             how->block[0]);
    return how->shared > MOST_SHARED || how->block[0] > 1024 || !how->grid[0] ? REFUSED : 0;
}
int cuStreamBeginCapture_v2(void)
{
    no_driver_launches[0] = 0;
    return 0;
}

/* What gives a handle gives this one. */
static int give_handle(void **handle)
{
    *handle = no_driver_launches;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **handle)
{
    return give_handle(handle);
}
int cuCtxPopCurrent_v2(void **handle)
{
    return give_handle(handle);
}
int cuStreamCreate(void **handle)
{
    return give_handle(handle);
}
int cuEventCreate(void **handle)
{
    return give_handle(handle);
}
int cuModuleLoadData(void **handle)
{
    return give_handle(handle);
}
int cuMemCreate(void **handle)
{
    return give_handle(handle);
}
int cuGraphInstantiateWithFlags(void **handle)
{
    return give_handle(handle);
}
int nvrtcCreateProgram(void **handle)
{
    return give_handle(handle);
}
int cuStreamEndCapture(void *stream, void **graph)
{
    (void)stream;
    return give_handle(graph);
}

/* The rest has nothing to do. */
#define NOTHING(name)                                                                              \
    int name(void)                                                                                 \
    {                                                                                              \
        return 0;                                                                                  \
    }
NOTHING(cuInit)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuCtxPushCurrent_v2)
NOTHING(cuMemRelease)
NOTHING(cuMemMap)
NOTHING(cuMemUnmap)
NOTHING(cuMemSetAccess)
NOTHING(cuStreamDestroy_v2)
NOTHING(cuStreamSynchronize)
NOTHING(cuStreamWaitEvent)
NOTHING(cuEventDestroy_v2)
NOTHING(cuEventRecord)
NOTHING(cuEventSynchronize)
NOTHING(cuModuleUnload)
NOTHING(cuFuncSetAttribute)
NOTHING(cuGraphDestroy)
NOTHING(cuGraphExecUpdate_v2)
NOTHING(cuGraphLaunch)
NOTHING(cuGraphExecDestroy)
NOTHING(nvrtcDestroyProgram)
NOTHING(nvrtcCompileProgram)

/* Programs compile to nothing. */
int nvrtcGetProgramLogSize(void *program, size_t *n)
{
    (void)program;
    *n = 1;
    return 0;
}
int nvrtcGetProgramLog(void *program, char *log)
{
    (void)program;
    *log = 0;
    return 0;
}
int nvrtcGetCUBINSize(void *program, size_t *n)
{
    (void)program;
    *n = 1;
    return 0;
}
int nvrtcGetCUBIN(void *program, char *code)
{
    (void)program;
    *code = 0;
    return 0;
}
