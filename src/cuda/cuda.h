/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device inside.
 *
 * Each operation has one qn__cuda_routine in the list cuda.def: `prepare` turns one call, with its
 * sizes, into launches of compiled kernels (kernels.def) and packs their arguments. A binding's
 * launches are captured once into a graph; a run whose pointers are those of the capture is one
 * graph launch.
 */
#ifndef QN_CUDA_CUDA_H
#define QN_CUDA_CUDA_H

#include "core/device.h"
#include "cuda/args.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "ops/params.h"

enum {
    QN__CUDA_THREADS = 256,  /* a block's, as the kernels are written */
    QN__CUDA_BLOCKS = 65535, /* the most in a launch: kernels loop over the rest */
    QN__CUDA_EVENTS = 32,
    QN__CUDA_STAGES = 32,
    QN__CUDA_STAGE_BYTES = 1 << 20,
    QN__CUDA_GRAPHS = 2, /* of a binding: a step's result and the next one's take turns */
    QN__CUDA_PIECE = 256 /* bytes: where parts of unpacked memory begin */
};

typedef enum qn__cuda_kernel {
#define CUDA_KERNEL(image, name) QN__CUDA_KERNEL_##name,
#include "cuda/kernels.def"
#undef CUDA_KERNEL
    QN__CUDA_KERNEL_COUNT
} qn__cuda_kernel;

typedef struct qn__cuda_program qn__cuda_program;

typedef struct qn__cuda_range {
    uintptr_t begin, end;
} qn__cuda_range;

typedef struct qn__cuda {
    qn__cu cu;
    qn__nvrtc nvrtc;             /* loaded with the first fused chain */
    char name[32];               /* the device's, for messages */
    int device, arch;            /* arch: 90 is sm_90 */
    int processors, most_shared; /* multiprocessors; bytes of shared memory a block may have */
    bool overlaps;               /* a launch may begin before the one ahead of it ends */
    size_t piece;                /* bytes that the driver maps at once */
    /* Clusters of so many blocks that run at once, each block on a multiprocessor of its own. */
    int clusters[QN__CUDA_FAR_BLOCKS + 1];
    qn__cu_context context;
    qn__cu_stream stream;  /* submissions and writes run on it, in order, */
    qn__cu_stream reading; /* but for reading what has been computed, beside what comes behind, */
    qn__cu_stream writing; /* and for small writes beside the last submission */
    qn__cu_stream capture; /* captured into, never run */
    /* What stands for each kernel until a binding is made (kernels.c): an address in stand_in, no
     * more. NULL: it does not run on this GPU. */
    qn__cu_function kernels[QN__CUDA_KERNEL_COUNT];
    char stand_in[QN__CUDA_KERNEL_COUNT];
    pthread_mutex_t lock;   /* what follows, and the order of submissions */
    qn__cu_module *modules; /* of each image; NULL: not loaded yet */
    qn__cu_function loaded[QN__CUDA_KERNEL_COUNT];
    qn__cu_event done[QN__CUDA_EVENTS]; /* behind submission i: done[i % QN__CUDA_EVENTS] */
    uint64_t submitted;
    qn__cuda_range *newest; /* what the last submission looks at; none: that is not known */
    uint32_t n_newest, newest_room;
    qn__cuda_program *programs;
    atomic_int failure; /* the first error of a run: the context is lost. No lock */
    qn__cuda_stats stats;
    pthread_mutex_t putting; /* what follows; behind the lock, where both are held */
    qn__cuda_put_args puts;  /* small writes that are not enqueued yet */
    qn__cu_event writes;     /* behind the last writes, small or not, that were enqueued */
    bool wrote_in_line;      /* ... on `stream` */
    pthread_mutex_t staging; /* what follows; never with another */
    pthread_cond_t free_stage;
    char *stages;   /* page-locked: writes pass through it. NULL until the first, or for good */
    size_t wired;   /* its bytes */
    bool no_stages; /* the driver gave none */
    bool busy[QN__CUDA_STAGES]; /* a thread fills it */
    bool used[QN__CUDA_STAGES]; /* staged[i] is behind its last copy */
    qn__cu_event staged[QN__CUDA_STAGES];
    size_t n_staged;         /* the stage behind the one that was taken last */
    pthread_mutex_t packing; /* held where rows of a group come from several threads */
} qn__cuda;

/* Makes the device's context the thread's, and back. Every call into the driver stands between. */
bool qn__cuda_enter(qn__cuda *cuda);
void qn__cuda_leave(qn__cuda *cuda);

/* Of a call that fails only where the context is lost: keeps its first error. */
void qn__cuda_note_failure(qn__cuda *cuda, int result);

/* Records a driver's error: "cuda:0: CUDA_ERROR_...: while doing". */
qn_status qn__cuda_fail(qn__cuda *cuda, qn_error *err, int result, const char *doing);

/* ---- copies (copy.c) ------------------------------------------------------------------------- */

qn_status qn__cuda_write(qn_device *device, void *to, const void *host, size_t n, qn_error *err);
qn_status qn__cuda_read(qn_device *device, void *host, const qn__buffer *from, size_t offset,
                        size_t n, qn_error *err);
qn_status qn__cuda_copy(qn_device *device, void *to, const qn__buffer *from, size_t offset,
                        size_t n, qn_error *err);

/* Enqueues the small writes that are kept; in the context, before anything else is enqueued. */
int qn__cuda_put(qn__cuda *cuda);

/* The same with `lock`, before a submission: beside the last one, if that does not look at what
 * they go to. */
int qn__cuda_put_before_next(qn__cuda *cuda);

/* In the context: notes that something was enqueued that writes and is no submission. */
int qn__cuda_note_writes(qn__cuda *cuda);

/* Gives up those to memory that goes. */
void qn__cuda_forget_puts(qn__cuda *cuda, const void *data, size_t n);

void *qn__cuda_lend(qn_device *device, size_t n);
qn_status qn__cuda_settle(qn_device *device, void *lent, void *data, size_t n, qn_error *err);

/* As qn__device_ops' wired and copy_rate. */
size_t qn__cuda_wired(qn_device *device);
double qn__cuda_copy_rate(qn_device *device);

/* In the context, when nobody writes. */
void qn__cuda_free_stages(qn__cuda *cuda);

/* ceilings.c: as qn__device_ops' ceilings. */
void qn__cuda_ceilings(qn_device *device, qn_ceilings *out);

/* ---- compiled kernels (kernels.c) ------------------------------------------------------------ */

/* In the context; results of the driver. begin fills `kernels`, and loads what is there from the
 * beginning: a GPU or a driver that takes none of them is known then. load_kernel, under the lock,
 * puts a kernel into the place of what stands for it. */
int qn__cuda_begin_kernels(qn__cuda *cuda);
int qn__cuda_load_kernel(qn__cuda *cuda, qn__cu_function *function);
void qn__cuda_unload_kernels(qn__cuda *cuda);

/* ---- binding: turning calls into launches ---------------------------------------------------- */

/* How a kernel is launched. */
typedef struct qn__cuda_grid {
    int64_t blocks;
    unsigned threads, shared; /* of a block; bytes */
} qn__cuda_grid;

/* Fills in what follows from the addresses of a launch's arguments; a result of the driver. */
typedef int qn__cuda_fill(qn__cuda *cuda, void *args);

typedef struct qn__cuda_launch {
    qn__cu_function function;
    unsigned blocks, threads, shared;
    unsigned cluster;         /* blocks of one, where that is not the kernel's; 0: it is */
    uint32_t first_at, n_at;  /* its addresses, among the binding's */
    size_t args;              /* offset of its arguments in the binding's bytes */
    qn__cuda_fill *fill;      /* NULL: addresses are all that a run adds to the arguments */
    bool waits;               /* it begins when the one ahead has ended: it does not wait itself */
    uint8_t y_at, rounded_at; /* among its addresses: the result, f32, and where that may go rounded
                               * as well; 0: nowhere */
    uint8_t rounds;           /* ... qn__cuda_rounds */
    size_t turned;            /* ... and where, in the binding's bytes, it says how */
    uint8_t bytes_at;         /* the same of the result as bytes */
    size_t byte_form;
    bool moves; /* its result cannot lie where the plan has it */
    bool takes; /* rows by index, which may become f32 and get a norm (op_take.c) */
} qn__cuda_launch;

/* A binding's launches as an executable graph, for these slots; NULL: none yet. */
typedef struct qn__cuda_graph {
    qn__cu_exec exec;
    void **slots;
    bool counted; /* among the plan's bytes */
} qn__cuda_graph;

typedef struct qn__cuda_binding {
    qn__cuda_launch *launches;
    uint32_t n_launches, launch_room;
    uint32_t *at; /* for each address: the operand, an index into the binding's, or SCRATCH */
    uint32_t n_at, at_room;
    char *args;
    size_t n_args, args_room;
    size_t scratch, behind,
        unpacked;     /* bytes of the workspace behind its values, which launches have in turn */
    size_t kept;      /* ... and of what lies elsewhere than the plan has it, or not in the plan */
    uint32_t squares; /* where among that sums of squares lie (op_norm.c), or 0 */
    uint32_t x;       /* what the newest launch of linear layers multiplies, an operand */
    qn__cuda_graph graphs[QN__CUDA_GRAPHS]; /* the newest used first */
} qn__cuda_binding;

typedef struct qn__cuda_binder {
    qn__cuda *cuda;
    qn__cuda_binding *bound;
    const qn__binding *binding;
    qn_error *err;
} qn__cuda_binder;

/* Stand for an operand: the scratch memory of the launch; no address; more scratch memory, for what
 * a launch makes of what lies in the first; and that of weights taken out of their units. */
enum {
    QN__CUDA_SCRATCH = 255,
    QN__CUDA_NONE = 254,
    QN__CUDA_BEHIND = 253,
    QN__CUDA_UNPACKED = 252
};

/* The same among the addresses of a binding. */
#define QN__CUDA_AT_SCRATCH  UINT32_MAX
#define QN__CUDA_AT_NONE     (UINT32_MAX - 1)
#define QN__CUDA_AT_BEHIND   (UINT32_MAX - 2)
#define QN__CUDA_AT_UNPACKED (3u << 30) /* the least: so many times QN__CUDA_PIECE into these */
#define QN__CUDA_AT_KEPT     (1u << 31) /* the least: so many times 16 bytes into kept results */

/* Adds a launch over `work` threads (or blocks of threads, when by_block). args begins with n_at
 * addresses; operand[i] is the call's operand that address i points to. False when memory is out.
 */
bool qn__cuda_add(qn__cuda_binder *b, qn__cu_function function, int64_t work, bool by_block,
                  const void *args, size_t size, const qn__call *call, int n_at,
                  const uint8_t *operand);

/* The same for a compiled kernel; ARGS is a struct of args.h, OPERANDS a braced list in the order
 * of its addresses. */
#define QN__CUDA_ADD(b, kernel, work, by_block, args, call, ...)                                   \
    qn__cuda_add(b, (b)->cuda->kernels[QN__CUDA_KERNEL_##kernel], work, by_block, &(args),         \
                 sizeof(args), call, (int)(sizeof(args).at / sizeof *(args).at),                   \
                 (const uint8_t[]){__VA_ARGS__})

/* The same with a grid of its own; args as above. */
bool qn__cuda_add_grid(qn__cuda_binder *b, qn__cu_function function, const qn__cuda_grid *grid,
                       const void *args, size_t size, const qn__call *call, int n_at,
                       const uint8_t *operand);

#define QN__CUDA_ADD_GRID(b, kernel, grid, args, call, ...)                                        \
    qn__cuda_add_grid(b, (b)->cuda->kernels[QN__CUDA_KERNEL_##kernel], grid, &(args),              \
                      sizeof(args), call, (int)(sizeof(args).at / sizeof *(args).at),              \
                      (const uint8_t[]){__VA_ARGS__})

/* Takes the newest launch back: another one does what it would have done. */
void qn__cuda_forget_newest(qn__cuda_binding *bound);

/* Asks for so many bytes of scratch memory; the next launch overwrites them. Behind, unpacked: of
 * the others. */
void qn__cuda_want_scratch(qn__cuda_binder *b, size_t bytes);
void qn__cuda_want_behind(qn__cuda_binder *b, size_t bytes);
void qn__cuda_want_unpacked(qn__cuda_binder *b, size_t bytes);

/* The newest launch can round its result (op_round.c), to bf16 or to f16, or to either as it is
 * asked; `turned` is the place of that in its arguments. */
typedef enum qn__cuda_rounds {
    QN__CUDA_ROUNDS_BF16,
    QN__CUDA_ROUNDS_F16,
    QN__CUDA_ROUNDS_EITHER
} qn__cuda_rounds;
void qn__cuda_may_round(qn__cuda_binder *b, uint8_t y_at, uint8_t rounded_at, size_t turned,
                        qn__cuda_rounds rounds);

/* The newest launch can make its result bytes; `form` is the place of the form in its arguments. */
void qn__cuda_may_make_bytes(qn__cuda_binder *b, uint8_t bytes_at, size_t form);

/* The rows of a linear layer's x as bytes in scratch memory, by the launch that makes x, where that
 * is the newest. False: it is another, or cannot. */
bool qn__cuda_bytes_of_x(qn__cuda_binder *b, const qn__call *call, const qn__cuda_byte_form *form);

/* The rows of a linear layer's x, rounded to the type of its weight, in scratch memory, turned
 * (turned.cuh) or as they are, for the launch that follows: by the launch that makes x, where that
 * is the newest, or by one of its own, if `always`. *place: the operand that has them; 0: they are
 * as they were. */
bool qn__cuda_round_x(qn__cuda_binder *b, const qn__call *call, int64_t rows, bool turned,
                      bool always, uint8_t *place);

/* The arguments of the newest launch, where that is of this kernel, has room for a second call (as
 * many addresses again), and neither needs what the other makes; else NULL. Then put_beside adds
 * the last n_at operands of the call, and its blocks. */
void *qn__cuda_beside(qn__cuda_binder *b, int kernel, const qn__call *call, uint32_t n_at);
void qn__cuda_put_beside(qn__cuda_binder *b, const qn__call *call, uint32_t n_at, unsigned blocks);

/* Whether a launch behind number i reads some of what that writes to y, which is in the workspace.
 * What is written there later is another value, which the plan has put there since this one's
 * readers have run. */
bool qn__cuda_launch_is_read(const qn__cuda_binder *b, uint32_t i, const qn__operand *y);

/* So many bytes of the workspace that nothing else has: an address. */
uint32_t qn__cuda_keep(qn__cuda_binder *b, size_t bytes);

/* Address k of launch i, a result in the workspace: whether all launches that read it do so where
 * it begins; and moves it to where nothing else lies, with its readers. */
bool qn__cuda_can_move_result(const qn__cuda_binder *b, uint32_t i, uint32_t k);
void qn__cuda_move_result(qn__cuda_binder *b, uint32_t i, uint32_t k);

/* A launch of a kernel whose arguments are the addresses of two calls, n_at each, a part of `size`
 * bytes for each and, in 64 bits, the blocks of the first; or the call as the second one of the
 * newest launch. Its addresses, which are its last n_at operands; NULL with the binder's error. */
uint32_t *qn__cuda_add_part(qn__cuda_binder *b, int kernel, const qn__call *call,
                            const qn__cuda_grid *grid, uint32_t n_at, const void *part,
                            size_t size);

/* Once all is bound: norms that the next launch can make, which alone reads them, are its own
 * (op_norm.c). */
void qn__cuda_take_norms(qn__cuda_binder *b);

/* Once all is bound: of what was rounded, f32 results that nothing reads are not written. */
void qn__cuda_drop_unread(qn__cuda_binder *b);

/* Likewise: norms of short rows have kernels of their own (op_rows.c); attention of a token knows
 * what comes next, and results that cannot lie where the plan has them move (op_attend.c). */
void qn__cuda_finish_norms(qn__cuda_binder *b);
void qn__cuda_finish_attention(qn__cuda_binder *b);

/* Whether two operands begin at the same place. */
bool qn__cuda_same_place(const qn__operand *a, const qn__operand *b);

/* Whether two operands may have an element in common. */
bool qn__cuda_overlap(const qn__operand *a, const qn__operand *b);

/* Whether all calls behind `call` that read y, which is in the workspace, read it where it begins,
 * so that it may lie elsewhere. And whether an operand is what a step makes. */
bool qn__cuda_may_move(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y);
bool qn__cuda_is_result(const qn__binding *binding, uint32_t operand);

/* Whether a call behind `call` reads y, which is in the workspace, before something else lies
 * there. */
bool qn__cuda_is_read_behind(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y);

/* Whether y is a value of the plan's own that nobody reads behind the call: who makes it may leave
 * that to who reads it. */
bool qn__cuda_is_spent(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y);

/* A cache's pages (op_cache.c): whether there are kernels for caches of such an encoding, and such
 * an array. */
bool qn__cuda_keeps(const qn__encoding *e);
bool qn__cuda_is_cache(const qn_array *cache);

/* Whether keys or values are in blocks, or floats other than those of `type` that attention reads.
 * Then `unpack` adds the launch that takes their pages apart, and says what the floats are that
 * attention reads instead; and `find` gives its newest launch their addresses. */
bool qn__cuda_is_unpacked(const qn__call *attend, qn_dtype type);
bool qn__cuda_unpack_cache(qn__cuda_binder *b, const qn__call *attend, qn_dtype type,
                           qn__operand floats[2]);
void qn__cuda_find_unpacked(qn__cuda_binder *b, const qn__call *attend, qn_dtype type);

/* What kernels are told of a type of floats: itself, if it has 16 bits, or 0. */
static inline int qn__cuda_half(qn_dtype type)
{
    return type == QN_BF16 || type == QN_F16 ? type : 0;
}

/* Keys of few rows are turned on their way to the cache, in a launch with their queries
 * (op_rope.c), which values join. False: the call needs a launch of its own. */
bool qn__cuda_turn_and_write(qn__cuda_binder *b, const qn__call *call,
                             const qn__cuda_write_part *write, int64_t blocks);

/* Queries turned by a Hadamard matrix of n, times scale: if the newest launches have made these by
 * rope, and written the keys and values of the same few rows to caches in blocks, one launch does
 * all of that, and true is returned; *added: whether there was memory. */
bool qn__cuda_turn_blocks(qn__cuda_binder *b, const qn__call *call, int64_t n, float scale,
                          bool *added);

/* Results of attention turned by a Hadamard matrix of n, times scale: if the newest launch has made
 * them alone, of a cache in blocks that it takes apart itself, it does that, and true is returned.
 */
bool qn__cuda_turn_back(qn__cuda_binder *b, const qn__call *call, int64_t n, float scale);

/* If the newest launch turns the only row that attention, the call, reads and writes it to the
 * cache, then attention's launch does that (attend_step.cu), and norms of heads before it: takes
 * them away, and what they knew goes to `to` and, as operands, to addresses, which are those from
 * QN__CUDA_TURN_QUERIES on. *moves: attention's result must lie elsewhere than the plan has it. */
bool qn__cuda_take_turn(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_turn_args *to,
                        uint32_t *addresses, bool *moves);

/* The same over a cache in blocks, of turn_blocks (attend_step_blocks.cu). */
bool qn__cuda_take_blocks_turn(qn__cuda_binder *b, const qn__call *call,
                               qn__cuda_attend_blocks_args *to, uint32_t *addresses, bool *moves);

/* The same over keys as they are and values in blocks: of turn_and_write and write_blocks. */
bool qn__cuda_take_values_turn(qn__cuda_binder *b, const qn__call *call,
                               qn__cuda_attend_blocks_args *to, uint32_t *addresses, bool *moves);

/* Whether such a launch, of those addresses, may put the call's result y: while others still read
 * what is to be turned, or, if it *moves, where nothing else lies. */
bool qn__cuda_may_put(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y,
                      const uint32_t *addresses, int64_t query_head, bool *moves);

/* An array that a call reads, times a number that another of its operands is; -1: as it is. */
typedef struct qn__cuda_scaled {
    int array, factor;
} qn__cuda_scaled;

/* `scaled`, which the newest launch, of linear layers, makes for nobody else, plus operand `added`
 * of f32 that lie side by side, or alone (-1): that launch does it. False: it cannot. */
bool qn__cuda_add_behind(qn__cuda_binder *b, const qn__call *call, const qn__cuda_scaled *scaled,
                         int added);

/* The same where the newest launch is a norm of f32 (op_rows.c). */
bool qn__cuda_add_to_norm(qn__cuda_binder *b, const qn__call *call);

/* Where the newest launch takes rows by index (op_take.c): what the call reads, operand 0, for
 * nobody else, is f32 by that launch, and times a factor; the norm of it, too, is that launch's.
 * False: it cannot. */
bool qn__cuda_convert_taken(qn__cuda_binder *b, const qn__call *call, bool scaled, float factor);
bool qn__cuda_norm_taken(qn__cuda_binder *b, const qn__call *call, const qn__cuda_norm_args *norm);

/* Whether y of a launch is what the call reads as `array`, and nobody reads it elsewhere. */
bool qn__cuda_is_for_call_alone(const qn__cuda_binder *b, const qn__call *call, int array,
                                const qn__operand *y);

/* Whether no step of the plan writes what the operand lies in: a kernel may read it before those
 * ahead of it have ended. */
bool qn__cuda_is_fixed(const qn__cuda_binder *b, const qn__operand *o);

/* Linear layers that stream (op_linear.c): whether such a weight can, and the launch. */
bool qn__cuda_streams(const qn__operand *x, const qn__operand *w);

/* A kernel over plain weights in bf16, or `half`, the same over f16; and whether a launch is of
 * those from `first` to `last`, of either type. */
qn__cu_function qn__cuda_weights_kernel(const qn__cuda *cuda, bool half, int kernel);
bool qn__cuda_is_of_weights(const qn__cuda *cuda, qn__cu_function function, int first, int last);
bool qn__cuda_stream_linear(qn__cuda_binder *b, const qn__call *call);

/* The arguments of a launch of linear layers, whatever its kernel: those of each begin so. */
qn__cuda_linears_args *qn__cuda_linears_of(const qn__cuda_binder *b, const qn__cuda_launch *launch);

/* The newest launch and its arguments with this call's weight added: where that is one of the same
 * kernel with the same x, and no step writes either weight. NULL: it cannot join. */
const qn__cuda_linears_args *qn__cuda_join_linear(qn__cuda_binder *b, qn__cu_function function,
                                                  const qn__call *call, int64_t rows,
                                                  qn__cuda_launch **launch);

/* What the addresses of a launch of one layer stand for: x and the weight from these operands. */
void qn__cuda_linear_operands(uint8_t x, uint8_t w, uint8_t at[QN__CUDA_LINEAR_AT]);

/* What a linear layer's arguments begin with; false: it has more rows or columns than they hold. */
bool qn__cuda_begin_linear(qn__cuda_binder *b, const qn__call *call, qn__cuda_linears_args *args);

/* A launch of its own, with x from this operand; and the tiles of `size` rows of all its weights.
 */
bool qn__cuda_add_linear(qn__cuda_binder *b, qn__cu_function function, const qn__cuda_grid *grid,
                         const qn__cuda_linears_args *args, const qn__call *call, uint8_t x);
int64_t qn__cuda_linear_tiles(const qn__cuda_linears_args *args, int64_t size);

/* An activation of one array times another, where the newest launch is of the two linear layers
 * that make both for nobody else: that does it. False: it cannot. */
typedef struct qn__cuda_gate {
    qn__cuda_scaled gate, up;
    int activation;
} qn__cuda_gate;
bool qn__cuda_gate_behind(qn__cuda_binder *b, const qn__call *call, const qn__cuda_gate *gate);

/* Linear layers whose weights the copy engine of sm_90 brings (op_wide.c); choose finds the kernel
 * and the tiles of the newest launch, which is one of these; join gives that the weight, if it can
 * have it. A weight in units is first taken out of them, by `unpack`, or in passing, by the kernels
 * from `in_units` on; can_unpack: there is memory for so many rows of it. */
bool qn__cuda_has_wide(const qn__cuda *cuda);
bool qn__cuda_can_unpack(const qn__cuda_binder *b, const qn__cuda_linears_args *linears);
void qn__cuda_choose_wide(qn__cuda_binder *b);
bool qn__cuda_is_wide(const qn__cuda *cuda, qn__cu_function function);
bool qn__cuda_join_wide(qn__cuda_binder *b, const qn__cuda_linears_args *linears,
                        const qn__call *call);
bool qn__cuda_wide_linear(qn__cuda_binder *b, const qn__cuda_linears_args *linears,
                          const qn__call *call, qn__cu_function unpack, int in_units);
bool qn__cuda_is_of_unit_values(const qn__cuda *cuda, qn__cu_function function);

/* Whether what the operand lies in is written by one step, which writes rows of a cache. */
bool qn__cuda_is_appended(const qn__cuda_binder *b, const qn__operand *o);

/* Weights in units (op_units.c): of which layouts there are kernels, for which linear layers, and
 * their launches. */
bool qn__cuda_has_units(qn__layout_id layout);
qn__cuda_units qn__cuda_units_as_data(qn__layout_id layout);
bool qn__cuda_takes_units(const qn_array *node);
bool qn__cuda_linear_units(qn__cuda_binder *b, const qn__call *call);
bool qn__cuda_is_units(const qn__cuda *cuda, qn__cu_function function);
/* Launches of one row on units: which can put sums of squares beside their results, which can make
 * norms of their row; one that can gets the kernel that does. */
bool qn__cuda_unit_row_makes_squares(const qn__cuda_binder *b, const qn__cuda_launch *launch);
bool qn__cuda_unit_row_takes_norm(const qn__cuda_binder *b, const qn__cuda_launch *launch);
void qn__cuda_unit_row_gets_norms(const qn__cuda_binder *b, qn__cuda_launch *launch);
bool qn__cuda_takes_factors(const qn__cuda *cuda, qn__cu_function function);

/* The blocks of a launch whose arguments have changed. */
void qn__cuda_units_again(const qn__cuda_binder *b, qn__cuda_launch *launch);

/* Those on ternary weights (op_ternary.c): whether that has kernels for a call with these
 * arguments, its launch, and the same as of all units. */
bool qn__cuda_goes_ternary(const qn__cuda *cuda, const qn__call *call,
                           const qn__cuda_linears_args *args);
bool qn__cuda_linear_ternary(qn__cuda_binder *b, const qn__call *call,
                             const qn__cuda_linears_args *args);
bool qn__cuda_is_ternary(const qn__cuda *cuda, qn__cu_function function);
bool qn__cuda_is_ternary_row(const qn__cuda *cuda, qn__cu_function function);
void qn__cuda_ternary_again(const qn__cuda_binder *b, qn__cuda_launch *launch);

/* What takes rows out of units of this layout. */
qn__cu_function qn__cuda_take_units(const qn__cuda *cuda, qn__layout_id layout,
                                    qn__cuda_units *units);

/* What a user's CUDA C++ is compiled as (op_custom.c), of n characters; malloc. */
char *qn__cuda_custom_text(const qn_primitive *primitive, const qn_cuda_kernel *kernel, size_t *n);

typedef struct qn__cuda_routine {
    qn__op_id op;
    /* Whether it can compute this node, whose inputs are plain; NULL: f32 and f64. */
    bool (*accepts)(const qn_array *node);
    bool (*prepare)(qn__cuda_binder *b, const qn__call *call);
    unsigned units_in; /* bit i: input i may be in units, which accepts looks at */
} qn__cuda_routine;

/* The operations of cuda.def by id; NULL where there is none. */
extern const qn__cuda_routine *const qn__cuda_routines[QN__OP_COUNT];

/* Copies operand 0 to the last, element by element. */
bool qn__cuda_prepare_copy(qn__cuda_binder *b, const qn__call *call);

/* All axes multiplied, and all but the last. */
int64_t qn__cuda_elements(const qn__operand *o);
int64_t qn__cuda_rows(const qn__operand *o);

/* Whether a kernel is one of those from `first` to `last` in kernels.def. */
static inline bool qn__cuda_is_among(const qn__cuda *cuda, qn__cu_function function, int first,
                                     int last)
{
    for (int i = first; i <= last; i++)
        if (function == cuda->kernels[i])
            return true;
    return false;
}

/* Into how many parts of `size` n falls. */
static inline int64_t qn__cuda_parts(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Bytes of shared memory of a block beside which no other one of its kernel fits. */
static inline int qn__cuda_alone_shared(const qn__cuda *cuda)
{
    return cuda->most_shared / 2;
}

/* An operand's axes first .. ndim - 1. */
qn__cuda_view qn__cuda_view_of(const qn__operand *o, int first, int ndim);

/* ---- fused chains (chain.c) ------------------------------------------------------------------ */

/* Adds the launch of a chain, compiling its program unless the device has it. */
bool qn__cuda_prepare_chain(qn__cuda_binder *b, const qn__call *call);

/* The text of a chain's kernel `chain`, as snprintf. */
size_t qn__cuda_chain_text(const qn__ir *program, char *text, size_t room);

/* ---- programs made at run time (program.c) --------------------------------------------------- */

typedef struct qn__cuda_source {
    const char *what; /* for messages */
    const char *text; /* of n characters; CUDA C++ or PTX */
    size_t n;
    const char *kernel; /* extern "C" */
    bool exact;         /* products and sums are rounded one by one */
    bool is_ptx;
} qn__cuda_source;

/* Its kernel: the device's, or made now. NULL with the binder's error. */
qn__cu_function qn__cuda_function(qn__cuda_binder *b, const qn__cuda_source *source);

/* Compiles for an architecture (90: sm_90) into `size` bytes of code that the driver loads; freed
 * with free. */
char *qn__cuda_compile(const qn__nvrtc *nvrtc, const qn__cuda_source *source, int arch,
                       size_t *size, qn_error *err);

/* program_file.c: the code that was kept of a text of n bytes, freed with free, or NULL; and keeps
 * it. */
char *qn__cuda_program_read(const char *text, size_t n, int arch);
void qn__cuda_program_write(const char *text, size_t n, int arch, const char *code, size_t size);

/* unload: in the context, whose modules go, too. */
void qn__cuda_programs_free(qn__cuda *cuda, bool unload);

/* ---- the replay (replay.c) ------------------------------------------------------------------- */

qn_status qn__cuda_bind(qn_device *device, const qn__plan *plan, qn__binding *binding,
                        qn_error *err);
void qn__cuda_drop(qn_device *device, qn__binding *binding);
qn_status qn__cuda_submit(qn_device *device, qn__submission *submission, qn_error *err);
qn_status qn__cuda_wait(qn_device *device, qn__submission *submission, qn_error *err);

#endif
