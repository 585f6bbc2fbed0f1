/* SPDX-License-Identifier: Apache-2.0
 *
 * In the place of NVIDIA's driver, where there is no GPU: an H200 whose memory is the host's and
 * whose kernels do nothing, but whose names and grids a test can read. What the copy engine would
 * refuse is refused, and so is what blocks of a launch would race for. Each call may be made to
 * fail (no_driver.h), and what is given out is counted: what is not given back shows there, and to
 * AddressSanitizer; so does a use of what is gone.
 */
#include "no_driver.h"
#include "cuda/args.h"
#include "no_driver_image.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    INVALID = 1,
    NO_MEMORY = 2,
    NO_DEVICE = 100,
    NO_BINARY = 209,
    NOT_FOUND = 500,
    LOST = 700,
    MOST_SHARED = 232448,
    PIECE = 2 << 20
};

no_driver no_driver_state = {.version = 13000,
                             .arch = 90,
                             .gpus = 1,
                             .shared = MOST_SHARED,
                             .memory = (size_t)16 << 30,
                             .pinned = (size_t)1 << 40};

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

__attribute__((constructor)) static void read_environment(void)
{
    no_driver *d = &no_driver_state;
    d->version = (int)number_of("NO_DRIVER_VERSION", d->version);
    d->arch = (int)number_of("NO_DRIVER_ARCH", d->arch);
    d->gpus = (int)number_of("NO_DRIVER_GPUS", d->gpus);
    d->memory = (size_t)number_of("NO_DRIVER_MEMORY", (long)d->memory);
    d->pinned = (size_t)number_of("NO_DRIVER_PINNED", (long)d->pinned);
    d->fail_at = number_of("NO_DRIVER_FAIL_AT", 0);
    d->fail = getenv("NO_DRIVER_FAIL");
    d->result = (int)number_of("NO_DRIVER_RESULT", 0);
}

/* The result of a call: an error where it is to fail. */
static int result_of(const char *name)
{
    no_driver *d = &no_driver_state;
    long call = ++d->calls;
    bool fails = d->fail_at && (call == d->fail_at || (d->stays && call > d->fail_at));
    bool named = d->fail && strstr(name, d->fail);
    if (named && d->times && --d->times == 0)
        d->fail = NULL;
    if (!fails && !named)
        return 0;
    d->failed = name;
    return d->result ? d->result : LOST;
}

/* ---- what is given out ----------------------------------------------------------------------- */

/* All that is out, so that what is taken back twice, or never was given, is seen. */
typedef struct handle {
    struct handle *next;
    void *memory;        /* what was allocated; the handle itself or what it is of */
    size_t bytes, *of;   /* the count that they belong to; NULL: none */
    size_t runs, writes; /* of a stream or an event: what has ended when it has, see `order` */
} handle;

static handle *all;

/* `memory` is freed with the handle; NULL: the handle stands for nothing. */
static handle *give(void *memory, size_t bytes, size_t *of)
{
    handle *h = malloc(sizeof *h);
    if (!h)
        abort();
    *h = (handle){.next = all, .memory = memory, .bytes = bytes, .of = of};
    all = h;
    if (of)
        *of += bytes;
    no_driver_state.live++;
    return h;
}

static void take(handle *h)
{
    handle **p = &all;
    while (*p && *p != h)
        p = &(*p)->next;
    if (!*p) {
        fprintf(stderr, "no_driver: what is given back is not out\n");
        abort();
    }
    *p = h->next;
    if (h->of)
        *h->of -= h->bytes;
    no_driver_state.live--;
    free(h->memory);
    free(h);
}

/* Who maps it counts, too: it is gone when it is released and mapped nowhere. */
typedef struct piece {
    uint64_t at;
    handle *h;
    bool released;
} piece;

enum { MOST_PIECES = 1 << 14 };
static piece pieces[MOST_PIECES];

static bool captures;
static bool goes_on;    /* the launch ahead is of the same run: the next may begin before it ends */
static size_t captured; /* launches */

/* What a GPU has been given. Runs go to its first stream, one behind the other, with writes between
 * them; a put on another stream is to come behind all writes and all runs but the last, and the run
 * behind it sees what it wrote by an event. */
enum { MOST_GPUS = 4 };
static struct order {
    size_t runs, writes;        /* of the stream that they go to */
    const handle *main, *apart; /* that; the stream of puts that the next run does not see yet */
    const handle *event;        /* ... recorded behind the last of them */
    bool launches;              /* a run of launches one by one is not over */
} orders[MOST_GPUS];
static _Thread_local struct order *order = orders; /* of the context that the thread has */

/* What is left of a context that is gone. */
void no_driver_forget(void)
{
    while (all)
        take(all);
    memset(pieces, 0, sizeof pieces);
    captures = false;
    memset(orders, 0, sizeof orders);
}

static bool is_there(size_t n, size_t taken, size_t most)
{
    return n <= most && taken <= most - n;
}

/* What arrays and graphs have of the GPU's memory. */
static size_t used(void)
{
    return no_driver_state.used + no_driver_state.graphs;
}

static int give_memory(uint64_t *address, size_t n, size_t alignment, size_t *of)
{
    void *p = NULL;
    if (posix_memalign(&p, alignment, n ? n : 1))
        return NO_MEMORY;
    give(p, n, of);
    *address = (uintptr_t)p;
    return 0;
}

static handle *handle_of(uint64_t address)
{
    handle *h = all;
    while (h && (!h->memory || (uintptr_t)h->memory != address))
        h = h->next;
    return h;
}

static int give_handle(const char *name, void **out)
{
    int result = result_of(name);
    if (result == 0)
        *out = give(NULL, 0, NULL);
    return result;
}

static int take_handle(const char *name, void *h)
{
    take(h);
    return result_of(name);
}

/* ---- the device ------------------------------------------------------------------------------ */

int cuInit(void)
{
    int result = result_of(__func__);
    return result ? result : no_driver_state.gpus ? 0 : NO_DEVICE;
}
int cuDriverGetVersion(int *version)
{
    *version = no_driver_state.version;
    return result_of(__func__);
}
int cuDeviceGetCount(int *n)
{
    *n = no_driver_state.gpus;
    return result_of(__func__);
}
int cuDeviceGet(int *device, int index)
{
    *device = index;
    return result_of(__func__);
}
int cuDeviceGetName(char *name, int room)
{
    snprintf(name, (size_t)room, "none");
    return result_of(__func__);
}
int cuDeviceGetAttribute(int *value, int attribute)
{
    int result = result_of(__func__);
    if (result == 0)
        *value = attribute == 16   ? 132
                 : attribute == 75 ? no_driver_state.arch / 10
                 : attribute == 76 ? no_driver_state.arch % 10
                 : attribute == 97 ? no_driver_state.shared
                                   : 0;
    return result;
}
int cuDeviceTotalMem_v2(size_t *bytes)
{
    *bytes = no_driver_state.memory;
    return result_of(__func__);
}
int cuGetErrorName(int error, const char **name)
{
    static char other[32];
    snprintf(other, sizeof other, "CUDA_ERROR_%d", error);
    *name = error == NO_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
            : error == NO_BINARY ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
            : error == LOST      ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                 : other;
    return 0;
}
static handle *retained[MOST_GPUS]; /* once at a time */

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int result = give_handle(__func__, context);
    retained[device] = result == 0 ? *context : retained[device];
    orders[device] = (struct order){0};
    return result;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
    void *context = retained[device];
    retained[device] = NULL;
    return take_handle(__func__, context);
}

/* A context that is lost is one still. */
int cuCtxPushCurrent_v2(const void *context)
{
    for (int i = 0; i < MOST_GPUS; i++)
        order = retained[i] == context ? &orders[i] : order;
    return no_driver_state.stays ? 0 : result_of(__func__);
}
int cuCtxPopCurrent_v2(void **context)
{
    *context = NULL;
    return no_driver_state.stays ? 0 : result_of(__func__);
}

/* ---- memory ---------------------------------------------------------------------------------- */

int cuMemGetInfo_v2(size_t *there, size_t *all)
{
    *there = no_driver_state.memory - used();
    *all = no_driver_state.memory;
    return result_of(__func__);
}
int cuMemAlloc_v2(uint64_t *address, size_t n)
{
    no_driver *d = &no_driver_state;
    int result = result_of(__func__);
    if (result == 0 && !is_there(n, used(), d->memory))
        result = NO_MEMORY;
    return result ? result : give_memory(address, n, 256, &d->used);
}
int cuMemFree_v2(uint64_t address)
{
    take(handle_of(address));
    return result_of(__func__);
}
int cuMemGetAllocationGranularity(size_t *bytes)
{
    *bytes = PIECE;
    return result_of(__func__);
}
int cuMemAddressReserve(uint64_t *address, size_t n)
{
    int result = result_of(__func__);
    return result ? result : give_memory(address, n, PIECE, NULL);
}
int cuMemAddressFree(uint64_t address)
{
    take(handle_of(address));
    return result_of(__func__);
}

static piece *piece_at(uint64_t at)
{
    for (int i = 0; i < MOST_PIECES; i++)
        if (pieces[i].h && pieces[i].at == at)
            return &pieces[i];
    return NULL;
}

static void let_go(piece *p)
{
    if (!p->released || p->at)
        return;
    take(p->h);
    *p = (piece){0};
}

int cuMemCreate(unsigned long long *out, size_t bytes)
{
    no_driver *d = &no_driver_state;
    int result = result_of(__func__), i = 0;
    if (result)
        return result;
    while (i < MOST_PIECES && pieces[i].h)
        i++;
    if (i == MOST_PIECES || !is_there(bytes, used(), d->memory))
        return NO_MEMORY;
    pieces[i] = (piece){.h = give(NULL, bytes, &d->used)};
    *out = (unsigned long long)i + 1;
    return 0;
}
int cuMemRelease(unsigned long long handle_number)
{
    piece *p = &pieces[handle_number - 1];
    p->released = true;
    let_go(p);
    return result_of(__func__);
}
int cuMemMap(uint64_t address, size_t bytes, size_t offset, unsigned long long handle_number)
{
    int result = result_of(__func__);
    (void)offset;
    if (result)
        return result;
    if (address % PIECE || bytes != pieces[handle_number - 1].h->bytes || piece_at(address))
        return INVALID;
    pieces[handle_number - 1].at = address;
    return 0;
}
int cuMemUnmap(uint64_t address)
{
    piece *p = piece_at(address);
    if (!p)
        return INVALID;
    p->at = 0;
    let_go(p);
    return result_of(__func__);
}
int cuMemSetAccess(void)
{
    return result_of(__func__);
}
int cuMemAllocHost_v2(void **p, size_t n)
{
    no_driver *d = &no_driver_state;
    uint64_t address;
    int result = result_of(__func__);
    if (result == 0 && !is_there(n, d->locked, d->pinned))
        result = NO_MEMORY;
    if (result == 0)
        result = give_memory(&address, n, 4096, &d->locked);
    if (result == 0)
        *p = (void *)(uintptr_t)address;
    return result;
}
int cuMemFreeHost(void *p)
{
    take(handle_of((uintptr_t)p));
    return result_of(__func__);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, handle *stream)
{
    int result = result_of(__func__);
    if (result == 0)
        memcpy((void *)(uintptr_t)to, from, n);
    if (result == 0 && stream == order->main)
        stream->writes = ++order->writes;
    return result;
}

int cuMemcpyPeerAsync(uint64_t to, void *there, uint64_t from, void *here, size_t n)
{
    int result = there == here ? LOST : result_of(__func__);
    if (result == 0)
        memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n);
    return result;
}
int cuDeviceCanAccessPeer(int *can, int device, int other)
{
    *can = device != other;
    return result_of(__func__);
}
int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    (void)context;
    (void)flags;
    return result_of(__func__);
}

/* Zeros: kernels have computed nothing. */
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n)
{
    int result = result_of(__func__);
    if (result == 0) {
        memcpy(to, (const void *)(uintptr_t)from, n); /* it has to be there */
        memset(to, 0, n);
    }
    return result;
}
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *data, const uint64_t *shape,
                           const uint64_t *apart, const unsigned *box)
{
    (void)map;
    (void)type;
    for (unsigned i = 0; i < rank; i++)
        if (!shape[i] || !box[i] || box[i] > 256 || (i + 1 < rank && apart[i] % 16))
            return INVALID;
    return (uintptr_t)data % 16 ? INVALID : result_of(__func__);
}

/* ---- streams and events ---------------------------------------------------------------------- */

int cuStreamCreate(void **stream)
{
    int result = give_handle(__func__, stream);
    if (result == 0 && !order->main)
        order->main = *stream;
    return result;
}
int cuStreamDestroy_v2(void *stream)
{
    return take_handle(__func__, stream);
}
int cuEventCreate(void **event)
{
    return give_handle(__func__, event);
}
int cuEventDestroy_v2(void *event)
{
    return take_handle(__func__, event);
}

/* Behind each run. */
int cuEventRecord(handle *event, handle *stream)
{
    int result = result_of(__func__);
    goes_on = false;
    if (result != 0)
        return result;
    if (order->launches && stream == order->main) {
        stream->runs = ++order->runs;
        order->launches = false;
    }
    event->runs = stream->runs;
    event->writes = stream->writes;
    if (stream == order->apart)
        order->event = event;
    else if (event == order->event)
        order->event = NULL;
    return 0;
}
int cuStreamWaitEvent(handle *stream, const handle *event)
{
    int result = result_of(__func__);
    if (result != 0)
        return result;
    stream->runs = stream->runs < event->runs ? event->runs : stream->runs;
    stream->writes = stream->writes < event->writes ? event->writes : stream->writes;
    if (event == order->event && stream == order->main)
        order->apart = order->event = NULL;
    return 0;
}
/* All streams that are waited for have ended. */
int cuStreamSynchronize(const handle *stream)
{
    int result = result_of(__func__);
    if (result == 0 && stream == order->apart)
        order->apart = order->event = NULL;
    if (stream == order->main)
        order->launches = false;
    return result;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Of an image without code for the GPU nothing is known but that the driver compiles it. */
int cuModuleLoadData(void **module, const void *image)
{
    int result = result_of(__func__);
    no_driver_code code = no_driver_find_code(image, no_driver_state.arch);
    if (result == 0 && !code.runs)
        return NO_BINARY;
    if (result != 0)
        return result;
    no_driver_state.images += code.is_image;
    no_driver_state.compiled += code.is_image && !code.elf;
    no_driver_code *known = malloc(sizeof code);
    if (!known)
        abort();
    *known = code;
    *module = give(known, 0, NULL);
    return 0;
}
int cuModuleUnload(void *module)
{
    return take_handle(__func__, module);
}
/* For good: a test asks for the same ones again and again. */
typedef struct function {
    char name[64];
    unsigned fixed, shared; /* bytes that a block has by its code, and that a launch may ask for */
} function;

enum { MOST_FUNCTIONS = 1024, USUAL_SHARED = 48 << 10, DYNAMIC_SHARED = 8 };

int cuModuleGetFunction(function **out, void *module, const char *name)
{
    static function functions[MOST_FUNCTIONS];
    static int n;
    int i = 0, result = result_of(__func__);
    const no_driver_code *code = ((const handle *)module)->memory;
    long fixed = code->elf ? no_driver_static_shared(code->elf, no_driver_state.arch, name) : 0;
    if (fixed < 0)
        return NOT_FOUND;
    while (i < n && strcmp(functions[i].name, name) != 0)
        i++;
    if (i == MOST_FUNCTIONS)
        return INVALID;
    if (i == n)
        snprintf(functions[n++].name, sizeof functions->name, "%s", name);
    functions[i].fixed = (unsigned)fixed;
    functions[i].shared = USUAL_SHARED - (unsigned)fixed;
    *out = &functions[i];
    return result;
}

int cuFuncSetAttribute(function *f, int attribute, int value)
{
    if (attribute == DYNAMIC_SHARED && value + (int)f->fixed > no_driver_state.shared)
        return INVALID;
    if (attribute == DYNAMIC_SHARED)
        f->shared = (unsigned)value;
    return result_of(__func__);
}

enum { CLUSTER = 4, BEFORE_THE_LAST = 6 }; /* attributes of a launch */

typedef struct attribute {
    int64_t id;
    unsigned value[16];
} attribute;

typedef struct launch {
    unsigned grid[3], block[3], shared;
    handle *stream;
    const attribute *attributes;
    unsigned n_attributes;
} launch;

/* The value of a launch's attribute; 0: it has none. */
static unsigned attribute_of(const launch *how, int64_t id)
{
    for (unsigned i = 0; i < how->n_attributes; i++)
        if (how->attributes[i].id == id)
            return how->attributes[i].value[0];
    return 0;
}

int cuOccupancyMaxActiveClusters(int *n, const function *f, const launch *how)
{
    /* of an H200 that was looked at, a block a multiprocessor */
    static const int of[] = {0, 132, 66, 39, 30, 22, 17, 15, 15, 13};
    *n = how->shared > f->shared ? 0 : of[attribute_of(how, CLUSTER)];
    return result_of(__func__);
}

/* The one kernel that does something, since without it arrays would have no values. */
static void put(const qn__cuda_put_args *a)
{
    for (int i = 0, first = 0; i < a->n; first = a->end[i++])
        if (a->at[i])
            memcpy(a->at[i], a->words + first, (size_t)(a->end[i] - first) * 4);
}

static int put_on(handle *stream, const qn__cuda_put_args *a)
{
    if (stream == order->main) {
        stream->writes = ++order->writes;
    } else {
        if (stream->runs + 1 < order->runs || stream->writes < order->writes)
            return INVALID;
        order->apart = stream;
        order->event = NULL;
    }
    put(a);
    return 0;
}

/* Whether rows of heads that lie so far apart overlap; NULL: there are none. */
static bool rows_overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    return a && b && (const char *)a < (const char *)b + b_bytes &&
           (const char *)b < (const char *)a + a_bytes;
}
static int64_t bytes_of_heads(int64_t heads, int64_t apart, int64_t columns)
{
    return ((heads - 1) * apart + columns) * (int64_t)sizeof(float);
}

/* Whether attention that turns its only row writes over what a block may still read that is later
 * than all others, which no GPU shows: all begin at once. A block writes to where its own queries
 * were when it has read them. */
static bool writes_over_row(const qn__cuda_attend_turn_args *t)
{
    const qn__cuda_attend_args *a = &t->a;
    const void *y = a->at[6], *q = a->at[QN__CUDA_TURN_QUERIES];
    const int64_t bytes = bytes_of_heads(a->heads, a->y_stride[1], a->e);
    const bool own = y == q && a->y_stride[1] == t->query_head;
    return (!own && rows_overlap(y, bytes, q, bytes_of_heads(a->heads, t->query_head, a->d))) ||
           rows_overlap(y, bytes, a->at[QN__CUDA_TURN_KEYS],
                        bytes_of_heads(a->groups, t->key_head, a->d)) ||
           rows_overlap(y, bytes, a->at[QN__CUDA_TURN_VALUES],
                        bytes_of_heads(a->groups, t->value_head, a->e));
}
static bool is_token_attention(const char *name)
{
    return !strncmp(name, "attend_step_", 12) || !strncmp(name, "attend_near_", 12) ||
           !strncmp(name, "attend_far_", 11);
}

int cuLaunchKernelEx(const launch *how, const function *f, void *const *params)
{
    char *to = no_driver_state.launches;
    size_t length = strlen(to);
    const unsigned cluster = attribute_of(how, CLUSTER);
    if (how->shared > f->shared || !how->block[0] || how->block[0] > 1024 || !how->grid[0] ||
        (is_token_attention(f->name) && writes_over_row(params[0])) ||
        (attribute_of(how, BEFORE_THE_LAST) && !captures && !goes_on) || cluster > 8 ||
        (cluster && how->grid[0] % cluster))
        return INVALID;
    goes_on = !captures && strcmp(f->name, "put") != 0;
    captured += captures;
    if (captures)
        length += (size_t)snprintf(to + length, NO_DRIVER_ROOM - length, "%s %u %u", f->name,
                                   how->grid[0], how->block[0]);
    if (captures && length < NO_DRIVER_ROOM)
        length += cluster > 1
                      ? (size_t)snprintf(to + length, NO_DRIVER_ROOM - length, " of %u", cluster)
                      : 0;
    if (captures && length < NO_DRIVER_ROOM)
        snprintf(to + length, NO_DRIVER_ROOM - length, "\n");
    int result = result_of(__func__);
    if (result == 0 && !captures && !strcmp(f->name, "put"))
        return put_on(how->stream, params[0]);
    if (result == 0 && !captures && order->apart)
        return INVALID;
    order->launches |= !captures;
    return result;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

int cuStreamBeginCapture_v2(void)
{
    int result = captures ? INVALID : result_of(__func__);
    no_driver_state.launches[0] = 0;
    captured = 0;
    captures = captures || result == 0;
    return result;
}

/* The stream is out of it, whatever comes of it. */
int cuStreamEndCapture(void *stream, void **graph)
{
    (void)stream;
    if (!captures)
        return INVALID;
    captures = false;
    *graph = NULL;
    int result = result_of(__func__);
    if (result == 0)
        *graph = give(NULL, captured, NULL);
    return result;
}
int cuGraphDestroy(void *graph)
{
    return take_handle(__func__, graph);
}
int cuGraphInstantiateWithFlags(void **exec, const handle *graph)
{
    no_driver *d = &no_driver_state;
    size_t bytes = graph->bytes * NO_DRIVER_LAUNCH_BYTES;
    int result = result_of(__func__);
    if (result == 0 && !is_there(bytes, used(), d->memory))
        result = NO_MEMORY;
    if (result == 0)
        *exec = give(NULL, bytes, &d->graphs);
    return result;
}
int cuGraphExecDestroy(void *exec)
{
    return take_handle(__func__, exec);
}

int cuGraphLaunch(void *exec, handle *stream)
{
    (void)exec;
    if (order->apart)
        return INVALID;
    int result = result_of(__func__);
    if (result == 0)
        stream->runs = ++order->runs;
    return result;
}

/* ---- the rest has nothing to do -------------------------------------------------------------- */

#define NOTHING(name)                                                                              \
    int name(void)                                                                                 \
    {                                                                                              \
        return result_of(#name);                                                                   \
    }
NOTHING(cuEventSynchronize)
NOTHING(cuGraphExecUpdate_v2)

/* ---- NVRTC: programs compile to nothing ------------------------------------------------------ */

int nvrtcCreateProgram(void **program)
{
    return give_handle(__func__, program);
}
int nvrtcDestroyProgram(void **program)
{
    return take_handle(__func__, *program);
}
int nvrtcCompileProgram(void)
{
    return result_of(__func__);
}
int nvrtcGetProgramLogSize(void *program, size_t *n)
{
    (void)program;
    *n = 1;
    return result_of(__func__);
}
int nvrtcGetProgramLog(void *program, char *log)
{
    (void)program;
    *log = 0;
    return result_of(__func__);
}
int nvrtcGetCUBINSize(void *program, size_t *n)
{
    (void)program;
    *n = 1;
    return result_of(__func__);
}
int nvrtcGetCUBIN(void *program, char *code)
{
    (void)program;
    *code = 0;
    return result_of(__func__);
}
