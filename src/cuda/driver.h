/* SPDX-License-Identifier: Apache-2.0
 *
 * NVIDIA's driver and its run-time compiler, loaded when the first device is opened: the library
 * links to neither, and runs where they are absent. Only what is called is declared, under the
 * names of the CUDA 12.0 interface (a function's symbol carries the version of its signature).
 *
 * https://docs.nvidia.com/cuda/cuda-driver-api  https://docs.nvidia.com/cuda/nvrtc
 */
#ifndef QN_CUDA_DRIVER_H
#define QN_CUDA_DRIVER_H

#include "quern/base.h"

typedef uint64_t qn__cu_address;
typedef struct CUctx_st *qn__cu_context;
typedef struct CUstream_st *qn__cu_stream;
typedef struct CUevent_st *qn__cu_event;
typedef struct CUmod_st *qn__cu_module;
typedef struct CUfunc_st *qn__cu_function;
typedef struct CUgraph_st *qn__cu_graph;
typedef struct CUgraphExec_st *qn__cu_exec;
typedef struct _nvrtcProgram *qn__nvrtc_program;

/* Where memory is, in a description of an allocation or of who may use it. */
typedef struct qn__cu_location {
    int type, id;
} qn__cu_location;

typedef struct qn__cu_allocation {
    int type, handle_types;
    qn__cu_location location;
    void *windows;
    unsigned char flags[8];
} qn__cu_allocation;

typedef struct qn__cu_access {
    qn__cu_location location;
    int flags;
} qn__cu_access;

/* An attribute of a launch: its number, and its value, which has room for the longest. */
typedef struct qn__cu_attribute {
    int64_t id;
    union {
        int on;
        unsigned cluster[3];
        char room[64];
    } value;
} qn__cu_attribute;

typedef struct qn__cu_launch {
    unsigned grid[3], block[3], shared;
    qn__cu_stream stream;
    const qn__cu_attribute *attributes;
    unsigned n_attributes;
} qn__cu_launch;

typedef struct qn__cu_update_info {
    int result;
    void *error_node, *error_from_node;
} qn__cu_update_info;

/* Results, flags and attributes that are named here, with the values of the interface. */
enum {
    QN__CU_OUT_OF_MEMORY = 2,
    QN__CU_NO_DEVICE = 100,
    QN__CU_INVALID_IMAGE = 200, /* what a driver says that is too old for the kernels: */
    QN__CU_NO_BINARY = 209,
    QN__CU_UNSUPPORTED_PTX = 222,
    QN__CU_OLDEST = 12000, /* version */
    QN__CU_STREAM_NON_BLOCKING = 1,
    QN__CU_CAPTURE_THREAD_LOCAL = 1,
    QN__CU_EVENT_DISABLE_TIMING = 2,
    QN__CU_MULTIPROCESSORS = 16,
    QN__CU_COMPUTE_MAJOR = 75,
    QN__CU_COMPUTE_MINOR = 76,
    QN__CU_MOST_SHARED = 97,      /* of a device */
    QN__CU_DYNAMIC_SHARED = 8,    /* of a function */
    QN__CU_SHARED_SHARE = 9,      /* ... percent of a multiprocessor's first memory */
    QN__CU_LARGE_CLUSTERS = 14,   /* ... clusters of more than eight blocks */
    QN__CU_CLUSTER = 4,           /* of a launch */
    QN__CU_BEFORE_THE_LAST = 6,   /* of a launch: it may begin before the one ahead of it ends */
    QN__CU_EDGES_OF_12_3 = 12030, /* from this version on a graph keeps that */
    QN__CU_ON_DEVICE = 1,
    QN__CU_PINNED = 1,
    QN__CU_READ_WRITE = 3,
    QN__CU_TENSOR_BF16 = 9,        /* of a tensor map */
    QN__CU_TENSOR_SWIZZLED = 3,    /* by 128 bytes */
    QN__CU_TENSOR_SWIZZLED_32 = 1, /* by 32 */
    QN__CU_TENSOR_ALONE = 0        /* nothing beside it into the second cache: what lies there is
                                    * wanted later, and memory would be read in another order */
};

/* name, symbol, parameters; each returns 0 or an error code. */
#define QN__CU_LIST(X)                                                                             \
    X(init, cuInit, (unsigned flags))                                                              \
    X(error_name, cuGetErrorName, (int error, const char **name))                                  \
    X(version, cuDriverGetVersion, (int *version))                                                 \
    X(device_count, cuDeviceGetCount, (int *n))                                                    \
    X(device_get, cuDeviceGet, (int *device, int index))                                           \
    X(device_name, cuDeviceGetName, (char *name, int room, int device))                            \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))             \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, int device))                            \
    X(context_retain, cuDevicePrimaryCtxRetain, (qn__cu_context * context, int device))            \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                 \
    X(context_push, cuCtxPushCurrent_v2, (qn__cu_context context))                                 \
    X(context_pop, cuCtxPopCurrent_v2, (qn__cu_context * context))                                 \
    X(mem_info, cuMemGetInfo_v2, (size_t * there, size_t * all))                                   \
    X(mem_alloc, cuMemAlloc_v2, (qn__cu_address * address, size_t bytes))                          \
    X(mem_free, cuMemFree_v2, (qn__cu_address address))                                            \
    X(granularity, cuMemGetAllocationGranularity,                                                  \
      (size_t * bytes, const qn__cu_allocation *what, int recommended))                            \
    X(address_reserve, cuMemAddressReserve,                                                        \
      (qn__cu_address * address, size_t bytes, size_t alignment, qn__cu_address wish,              \
       unsigned long long flags))                                                                  \
    X(address_free, cuMemAddressFree, (qn__cu_address address, size_t bytes))                      \
    X(mem_create, cuMemCreate,                                                                     \
      (unsigned long long *handle, size_t bytes, const qn__cu_allocation *what,                    \
       unsigned long long flags))                                                                  \
    X(mem_release, cuMemRelease, (unsigned long long handle))                                      \
    X(mem_map, cuMemMap,                                                                           \
      (qn__cu_address address, size_t bytes, size_t offset, unsigned long long handle,             \
       unsigned long long flags))                                                                  \
    X(mem_unmap, cuMemUnmap, (qn__cu_address address, size_t bytes))                               \
    X(mem_set_access, cuMemSetAccess,                                                              \
      (qn__cu_address address, size_t bytes, const qn__cu_access *who, size_t n))                  \
    X(tensor_map, cuTensorMapEncodeTiled,                                                          \
      (void *map, int type, unsigned rank, void *data, const uint64_t *shape,                      \
       const uint64_t *bytes_apart, const unsigned *box, const unsigned *step, int interleave,     \
       int swizzle, int fetch, int outside))                                                       \
    X(host_alloc, cuMemAllocHost_v2, (void **data, size_t bytes))                                  \
    X(host_free, cuMemFreeHost, (void *data))                                                      \
    X(copy_in, cuMemcpyHtoDAsync_v2,                                                               \
      (qn__cu_address to, const void *from, size_t bytes, qn__cu_stream stream))                   \
    X(copy_out, cuMemcpyDtoHAsync_v2,                                                              \
      (void *to, qn__cu_address from, size_t bytes, qn__cu_stream stream))                         \
    X(copy_peer, cuMemcpyPeerAsync,                                                                \
      (qn__cu_address to, qn__cu_context there, qn__cu_address from, qn__cu_context here,          \
       size_t bytes, qn__cu_stream stream))                                                        \
    X(can_reach, cuDeviceCanAccessPeer, (int *can, int device, int other))                         \
    X(let_reach, cuCtxEnablePeerAccess, (qn__cu_context other, unsigned flags))                    \
    X(stream_create, cuStreamCreate, (qn__cu_stream * stream, unsigned flags))                     \
    X(stream_destroy, cuStreamDestroy_v2, (qn__cu_stream stream))                                  \
    X(stream_synchronize, cuStreamSynchronize, (qn__cu_stream stream))                             \
    X(stream_wait, cuStreamWaitEvent, (qn__cu_stream stream, qn__cu_event event, unsigned flags))  \
    X(event_create, cuEventCreate, (qn__cu_event * event, unsigned flags))                         \
    X(event_destroy, cuEventDestroy_v2, (qn__cu_event event))                                      \
    X(event_record, cuEventRecord, (qn__cu_event event, qn__cu_stream stream))                     \
    X(event_synchronize, cuEventSynchronize, (qn__cu_event event))                                 \
    X(module_load, cuModuleLoadData, (qn__cu_module * module, const void *image))                  \
    X(module_unload, cuModuleUnload, (qn__cu_module module))                                       \
    X(module_function, cuModuleGetFunction,                                                        \
      (qn__cu_function * function, qn__cu_module module, const char *name))                        \
    X(function_set, cuFuncSetAttribute, (qn__cu_function function, int attribute, int value))      \
    X(most_clusters, cuOccupancyMaxActiveClusters,                                                 \
      (int *n, qn__cu_function function, const qn__cu_launch *how))                                \
    X(launch, cuLaunchKernelEx,                                                                    \
      (const qn__cu_launch *how, qn__cu_function function, void **params, void **extra))           \
    X(capture_begin, cuStreamBeginCapture_v2, (qn__cu_stream stream, int mode))                    \
    X(capture_end, cuStreamEndCapture, (qn__cu_stream stream, qn__cu_graph * graph))               \
    X(graph_destroy, cuGraphDestroy, (qn__cu_graph graph))                                         \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                                              \
      (qn__cu_exec * exec, qn__cu_graph graph, unsigned long long flags))                          \
    X(graph_update, cuGraphExecUpdate_v2,                                                          \
      (qn__cu_exec exec, qn__cu_graph graph, qn__cu_update_info * info))                           \
    X(graph_launch, cuGraphLaunch, (qn__cu_exec exec, qn__cu_stream stream))                       \
    X(exec_destroy, cuGraphExecDestroy, (qn__cu_exec exec))

typedef struct qn__cu {
    void *library;
#define CU_MEMBER(name, symbol, params) int(*name) params;
    QN__CU_LIST(CU_MEMBER)
#undef CU_MEMBER
} qn__cu;

#define QN__NVRTC_LIST(X)                                                                          \
    X(create, nvrtcCreateProgram,                                                                  \
      (qn__nvrtc_program * program, const char *text, const char *name, int n_headers,             \
       const char *const *headers, const char *const *include_names))                              \
    X(destroy, nvrtcDestroyProgram, (qn__nvrtc_program * program))                                 \
    X(compile, nvrtcCompileProgram,                                                                \
      (qn__nvrtc_program program, int n_options, const char *const *options))                      \
    X(log_size, nvrtcGetProgramLogSize, (qn__nvrtc_program program, size_t * size))                \
    X(log, nvrtcGetProgramLog, (qn__nvrtc_program program, char *log))                             \
    X(code_size, nvrtcGetCUBINSize, (qn__nvrtc_program program, size_t * size))                    \
    X(code, nvrtcGetCUBIN, (qn__nvrtc_program program, char *code))

typedef struct qn__nvrtc {
    void *library;
#define NVRTC_MEMBER(name, symbol, params) int(*name) params;
    QN__NVRTC_LIST(NVRTC_MEMBER)
#undef NVRTC_MEMBER
} qn__nvrtc;

/* Fill the tables. QN_UNSUPPORTED, naming the library, when it is not there, too old, or lacks a
 * function. */
qn_status qn__cu_load(qn__cu *cu, qn_error *err);
qn_status qn__nvrtc_load(qn__nvrtc *nvrtc, qn_error *err);

/* Also of tables that were never filled. */
void qn__cu_unload(qn__cu *cu);
void qn__nvrtc_unload(qn__nvrtc *nvrtc);

#endif
