/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels get: one struct each, passed by value, read by C and by CUDA. Each begins with the
 * addresses `at`, which the replay fills from the submission's slots; the rest is fixed at binding.
 * Strides, lengths and offsets count elements. `wide`: f64 instead of f32. Types are qn_dtype.
 */
#ifndef QN_CUDA_ARGS_H
#define QN_CUDA_ARGS_H

#include <stdint.h>

enum { QN__CUDA_AXES = 6, QN__CUDA_KEY_GROUP = 16, QN__CUDA_PAGE = 64, QN__CUDA_WIDEST = 256 };

/* Bytes of shared memory, at most, that a kernel of attend.cu has besides what its launch asks for.
 */
enum { QN__CUDA_STATIC_SHARED = 45 << 10 };

/* Of attend_half.cu: bytes for each element of a head, of which there are 64 or so many, and the
 * rows of products in a tile. */
enum { QN__CUDA_TILE_SHARED = 512, QN__CUDA_WIDEST_HALF = 128, QN__CUDA_TILE_ROWS = 64 };

typedef struct qn__cuda_view {
    int64_t ndim;
    int64_t shape[QN__CUDA_AXES], stride[QN__CUDA_AXES];
} qn__cuda_view;

/* ---- move.cu --------------------------------------------------------------------------------- */

typedef struct qn__cuda_arange_args {
    void *at[1]; /* y */
    int64_t n, type;
} qn__cuda_arange_args;

/* Words that come with the launch, in pieces: piece i is words end[i - 1] .. end[i] - 1. Arguments
 * have 4 KiB at most. */
enum { QN__CUDA_PUTS = 16, QN__CUDA_PUT_WORDS = 896 };

typedef struct qn__cuda_put_args {
    void *at[QN__CUDA_PUTS]; /* where each piece goes; NULL: nowhere */
    int32_t n, end[QN__CUDA_PUTS];
    uint32_t words[QN__CUDA_PUT_WORDS];
} qn__cuda_put_args;

/* The n elements of `from`, to the same places of `to`, which begins at to_offset; `size` is up to
 * 16, where several elements that lie side by side are one. */
typedef struct qn__cuda_copy_args {
    void *at[2]; /* from, to */
    qn__cuda_view from, to;
    int64_t n, to_offset;
    int64_t size; /* bytes an element */
} qn__cuda_copy_args;

/* y[i] = x[i, ids[i]] */
typedef struct qn__cuda_along_args {
    void *at[3];        /* x, ids, y */
    qn__cuda_view lead; /* x without its last axis */
    int64_t n, last, last_stride, size;
} qn__cuda_along_args;

/* y[ids[i], ...] = what `mode` makes of it and update[i, ...], in the order of i. Each column is
 * shared by `parts` threads: row id belongs to part id % parts. Of many ids their places come in
 * the order of ids. */
typedef struct qn__cuda_scatter_args {
    void *at[4]; /* ids, update, y, places */
    int64_t n_ids, columns, parts, y_rows, type;
    int64_t mode; /* qn_scatter_mode */
} qn__cuda_scatter_args;

/* The places of a row's elements, so that those come in order; each run of so many elements is
 * sorted, or two of them become one. */
enum { QN__CUDA_SORT_RUN = 512 };
typedef struct qn__cuda_argsort_args {
    void *at[3]; /* x, places before and after: [rows, n] */
    int64_t rows, n, run, type, descending;
} qn__cuda_argsort_args;

/* ---- reduce.cu ------------------------------------------------------------------------------- */

/* x's last axis, of n elements. Of rows in parts there are part_rows at a time, the first parts of
 * all first, and `whole` elements of one; 0: rows are whole. */
typedef struct qn__cuda_reduce_args {
    void *at[2];        /* x, y */
    qn__cuda_view lead; /* x without its last axis; of parts with an axis for these ahead */
    int64_t rows, n, stride;
    int64_t part_rows, whole;
    int64_t reduction; /* qn__reduction */
    int64_t type;      /* of x */
} qn__cuda_reduce_args;

/* The place of the largest of each row of x [rows, n], f32, cut into parts, which have a block
 * each.
 */
typedef struct qn__cuda_argmax_args {
    void *at[3]; /* x, best [rows, parts] u64, y */
    int64_t rows, n, parts;
} qn__cuda_argmax_args;

enum { QN__CUDA_SHORT_SOFTMAX = 1024 }; /* elements of a row, at most, that a warp has */
/* Long rows come in parts of `part`: their maxima and sums are [parts, rows]. */
typedef struct qn__cuda_softmax_args {
    void *at[4]; /* x, y: [rows, n]; maxima, sums of parts */
    int64_t rows, n, part, wide;
} qn__cuda_softmax_args;

/* y = (x - mean) / sqrt(variance + eps), times the weight, plus the bias: where there are such. */
typedef struct qn__cuda_layer_norm_args {
    void *at[4]; /* x, weight, bias, y: [rows, n]; NULL: there is none */
    int64_t rows, n, wide;
    double eps;
} qn__cuda_layer_norm_args;

/* ---- scan.cu --------------------------------------------------------------------------------- */

typedef struct qn__cuda_scan_args {
    void *at[2]; /* x, y: [rows, n] */
    int64_t rows, n, type;
    int64_t what; /* qn__cumulation */
    int64_t reverse, exclusive;
} qn__cuda_scan_args;

/* ---- rows.cu, sample.cu ---------------------------------------------------------------------- */

/* A token of each row of logits, which has so many blocks; of more rows than this each has one. The
 * best of each part of a row, as a rank; room for rows that are changed. */
enum { QN__CUDA_SHARED_ROWS = 256 };

typedef struct qn__cuda_sample_args {
    void *at[6]; /* logits [rows, vocab] f32, qn__sample_row [rows], qn__sample_entry, tokens, best
                    [rows, parts] u64, changed [rows, vocab] */
    int64_t rows, vocab, parts;
    int64_t early; /* no step writes the sample_rows */
} qn__cuda_sample_args;

/* How rows become bytes (made.cuh) with a scale each, or one a step: `padded` columns, for units of
 * such steps; step 0: in their order. */
typedef struct qn__cuda_byte_form {
    int64_t padded, step, zero;
    int32_t biased, by_step;
} qn__cuda_byte_form;

/* Bytes of a row of `columns` that a launch has made bytes; of one in its order: its head comes
 * first. */
#define QN__CUDA_MADE_ROW(columns, step) (16 + (columns) / (step)*8 + (columns))
#define QN__CUDA_ORDERED_ROW(columns)    (QN__CUDA_MADE_HEAD + (columns))
enum { QN__CUDA_MADE_HEAD = 128 };

/* How a result is rounded for a linear layer: turned (turned.cuh), to f16 and not to bf16. */
enum { QN__CUDA_TURNED = 1, QN__CUDA_AS_F16 = 2 };

/* Among a norm's addresses. */
enum {
    QN__CUDA_NORM_BESIDE = 3,
    QN__CUDA_NORM_Y_ROUNDED = QN__CUDA_NORM_BESIDE + 3,
    QN__CUDA_NORM_ADDED,
    QN__CUDA_NORM_WEIGHT,
    QN__CUDA_NORM_BEHIND,
    QN__CUDA_NORM_ROUNDED,
    QN__CUDA_NORM_BYTES,
    QN__CUDA_NORM_AT,
    QN__CUDA_NORM_SHORT_QUADS = 4, /* of a thread, at most, of rms_norm_short and _added */
    QN__CUDA_NORM_PAIR_QUADS = 128 /* of a row, at most, of rms_norm_pair */
};

/* Rows of n elements, up to QN__CUDA_HADAMARD, which lie side by side. */
enum { QN__CUDA_HADAMARD = 256 };
typedef struct qn__cuda_hadamard_args {
    void *at[3]; /* x, y, y as bf16; NULL: not wanted */
    int64_t all; /* elements */
    int32_t n;
    float scale;
    int8_t vectors, turned; /* vectors: 16 bytes at a time; turned: how y is rounded (turned.cuh) */
} qn__cuda_hadamard_args;

/* Of quads: what is added to the norm may be another array, and the sum be normed again. */
typedef struct qn__cuda_norm_args {
    void *at[QN__CUDA_NORM_AT]; /* x, weight (or x again), y: [rows, n]; of rms_norm_pair those of
                                   the other norm, [rows_beside, n]; y as bf16, of quads; what is
                                   added to y; the weight of the norm behind, that, and as bf16.
                                   NULL: not wanted */
    int64_t rows, rows_beside, n;
    int8_t has_weight, wide;
    int8_t quads;  /* f32 in vectors of 16 bytes */
    int8_t turned; /* how y is rounded (turned.cuh) */
    int8_t early;  /* no step writes the weights */
    double eps, eps_behind;
    qn__cuda_byte_form bytes; /* of what comes last */
} qn__cuda_norm_args;

typedef struct qn__cuda_rope_part {
    int64_t shape[4];
    int64_t x_stride[4], y_stride[4];
    int64_t half, traditional;
    int64_t batch_offset, row_offset; /* from one offset to the next; row_offset 0: rows count */
    int64_t each;                     /* heads that a thread turns */
    int64_t quads;                    /* ... and of each four pairs, which lie side by side */
} qn__cuda_rope_part;

/* One array, or two of the same type, the second with the blocks behind the first `blocks`. */
typedef struct qn__cuda_rope_args {
    void *at[8]; /* of each: x, offset, frequency, y: [B, H, L, D] */
    qn__cuda_rope_part part[2];
    int64_t blocks, wide;
    int64_t early; /* no step writes offsets and frequencies */
} qn__cuda_rope_args;

/* ---- matmul.cu, matmul_few.cu ---------------------------------------------------------------- */

/* Columns whose products are summed in one chain (matmul.cuh); bytes of a block of matmul.cu, at
 * most; of matmul_few.cu, by few rows or one: rows, warps of a block, bytes for each. */
enum { QN__CUDA_PRODUCT_SPAN = 128, QN__CUDA_PRODUCT_SHARED = 99 << 10, QN__CUDA_FEW_ROWS = 8 };
#define QN__CUDA_FEW_WARPS(rows)  ((rows) == 1 ? 8 : 16)
#define QN__CUDA_FEW_SHARED(rows) ((rows) == 1 ? 21 << 10 : 27 << 9)

enum { QN__CUDA_UNROUNDED, QN__CUDA_TO_BF16, QN__CUDA_TO_F16 };

/* y [m, n] = a [m, k] b [k, n], for each of a batch. a is f32 and b what the kernel says, or all is
 * f64. The elements of a row of a, or of a column of b, are `column` or `row` apart. */
typedef struct qn__cuda_product_args {
    void *at[3];        /* a, b, y: row-major, or of few rows as y_row and y_column say */
    qn__cuda_view a, b; /* the leading axes */
    int64_t batch, m, n, k;
    int64_t a_row, a_column, b_row, b_column, y_row, y_column;
    int8_t a_along, b_along;                /* k is the axis along which neighbours are read */
    int8_t a_vectors, b_vectors, y_vectors; /* ... four at once, or 16 bytes */
    int8_t rounded;                         /* what a is rounded to */
} qn__cuda_product_args;

/* ---- linear.cu ------------------------------------------------------------------------------- */

/* A span: columns whose products are summed before they meet the others. RING: chunks of 4 KiB that
 * a warp of linear_8 .. linear_64 has under way. SHARED: bytes of a block of linear_many. */
enum {
    QN__CUDA_SPAN = 256,
    QN__CUDA_RING = 3,
    QN__CUDA_LINEAR_SHARED = 3 * 4 * (128 * 64 + 64),
    QN__CUDA_LINEARS = 3,
    QN__CUDA_ADDED = 1 + 2 * QN__CUDA_LINEARS, /* among their addresses */
    QN__CUDA_ROUNDED,
    QN__CUDA_NORM_OF_X,
    QN__CUDA_SQUARES,
    QN__CUDA_ADDED_TO_X,
    QN__CUDA_SUM_WITH_X,
    QN__CUDA_NORM_OF_SUM,
    QN__CUDA_FACTOR,
    QN__CUDA_LINEAR_AT = QN__CUDA_FACTOR + QN__CUDA_LINEARS,
    QN__CUDA_MOST_SQUARED = 4096, /* columns of a row that comes with sums of its squares */
    QN__CUDA_RING_BARS = 128      /* bytes behind a ring of units: what says that copies landed, and
                                     behind the first one the scale of a norm (span_norm.cuh). Rings
                                     begin at multiples of 128, and so do most spans there: copies
                                     to elsewhere cost 5 % of memory */
};

/* Units as data, for kernels of several layouts (any.cuh): of which layout; columns and bytes of a
 * unit, the code of 0; of groups also bits of a code, columns of a group, the encoding of numbers.
 */
typedef struct qn__cuda_units {
    int32_t layout, columns, bytes, zero, biased, bits, group, type, zeroed;
} qn__cuda_units;

/* y [rows, n] = x [rows, k] w [n, k]^T of up to three weights. x is row-major; f32 for linear_8 and
 * units, which may have it made bytes, else rounded, up to linear_64 turned (turned.cuh) in
 * rows of whole 32 columns. Gated: the one result is activation(x w0^T) * (x w1^T), or of 2 with
 * the weights exchanged. */
enum { QN__CUDA_SILU, QN__CUDA_RELU_SQUARED, QN__CUDA_GELU_TANH };

/* A block that begins waits for each piece of 64 bytes of its arguments that it reads first, which
 * lie nowhere near: they are as short as they can be. */
typedef struct qn__cuda_linears_args {
    void *at[QN__CUDA_LINEAR_AT]; /* x; w and y of each; the first again where there are fewer;
                                     what is added to y [rows, n] of one weight, or NULL; a gated y
                                     as bf16, or NULL, and then y may be NULL; of one row of x:
                                     the weight of its norm; sums of squares (norm.cuh), those of x
                                     where that is normed, and else where those of y go; what is
                                     added to x behind that norm, where the sum goes, and the weight
                                     of the sum's norm; of units, what y of each is multiplied by.
                                     NULL: none */
    int32_t n[QN__CUDA_LINEARS];  /* 0 rows: none */
    int32_t k;
    float eps, eps_behind; /* of a norm of x, and of its sum's */
    int32_t made;          /* x has been made bytes, rows of so many; 0: it is f32 */
    int32_t ahead; /* of units with one row of x: spans that a block asks for before x has come */
    int8_t early;  /* no step writes the weights */
    int8_t gated, activation;
    int8_t turned; /* how a gated y is rounded */
    int8_t whole;  /* bytes of x have a scale a row */
    int8_t half;   /* plain weights are f16, and not bf16 */
    /* Of units with several rows of x: places of a warp's ring, and turns of sums. */
    int8_t places, turns;
    /* Kernels of one row on units read three pieces, up to here. */
    int32_t stride[QN__CUDA_LINEARS], rows;
    int32_t group; /* of weights in units: rows of x that a block has at most */
    qn__cuda_units units;
} qn__cuda_linears_args;

/* ---- take.cu --------------------------------------------------------------------------------- */

/* Among the addresses of rows by index. */
enum {
    QN__CUDA_TAKE_WEIGHT = 3,
    QN__CUDA_TAKE_NORMED,
    QN__CUDA_TAKE_ROUNDED,
    QN__CUDA_TAKE_AT,
    QN__CUDA_TAKE_QUADS = 4 /* of a thread, at most, where there is a norm */
};

/* y[i, ...] = x[ids[i], ...]: rows of `columns` elements, copied; or made f32, which may get a
 * factor, and a norm behind it. */
typedef struct qn__cuda_take_args {
    void *at[QN__CUDA_TAKE_AT]; /* x, ids, y; the weight of a norm of y, that, and as bf16. NULL:
                                   not wanted */
    qn__cuda_view row;          /* x without its first axis */
    int64_t n_ids, columns, x_rows, x_stride, size;
    int64_t type;   /* of x that is not in units */
    int64_t scaled; /* by the factor */
    int8_t turned;  /* how the norm is rounded (turned.cuh) */
    float factor, eps;
    qn__cuda_units units;
} qn__cuda_take_args;

/* Of wide.cu: rows of x in a tile, and bytes of a block; rows of x up to which columns are split.
 */
enum {
    QN__CUDA_WIDE_ROWS = 128,
    QN__CUDA_WIDE_SHARED = 226 << 10,
    QN__CUDA_SPLIT_ROWS = 2 * QN__CUDA_WIDE_ROWS,
    QN__CUDA_SPLIT_UNITS = 128 /* rows of a weight in units */
};

/* Says where a tensor lies and in which boxes it is copied; the driver writes it. */
typedef struct qn__cuda_map {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        char bytes[128];
} qn__cuda_map;

/* Of stream.cu: warps that multiply, stages at most, rows of x at most, what columns are a multiple
 * of, bytes of a block. */
enum {
    QN__CUDA_STREAM_WARPS = 8,
    QN__CUDA_STREAM_RING = 32,
    QN__CUDA_STREAM_ROWS = 64,
    QN__CUDA_STREAM_COLUMNS = 64,
    QN__CUDA_STREAM_SHARED = 216 << 10
};

/* Of few_units.cu: rows of x at most, tiles of 16 rows of weights that a block has at once, which
 * are as many as warps that multiply, stages at most. */
enum { QN__CUDA_FEW_UNITS_ROWS = 64, QN__CUDA_FEW_UNITS_TILES = 16, QN__CUDA_FEW_UNITS_RING = 8 };

/* The same with the maps of each weight and of x. */
typedef struct qn__cuda_wide_args {
    qn__cuda_linears_args linears;
    int64_t box, x_box;               /* rows of a weight, of x, that are copied at once */
    int64_t slots, deep, ring, apart; /* of stream.cu: tiles that a block has at once, boxes of 64
                                         columns in a stage, stages (also of split.cuh), warps that
                                         share spans */
    int64_t of_span;                  /* ... stages of a span */
    int64_t each, others;  /* ... tiles of a block, or pairs; of the second weight or the third */
    int64_t second, third; /* ... the first blocks that have these */
    int64_t keeps;         /* ... warps have their first span in registers when x comes */
    int64_t early;         /* ... that are asked for before the launches ahead have ended */
    int64_t flight;  /* ... that are under way at once, of one row; early then: before x is there */
    int64_t by_rows; /* deep, of wide.cu, or of split.cuh */
    int64_t sums_at; /* of that: where others' sums come to, in bytes; 0: the stages' place */
    int64_t in_units;        /* the first kernel that takes the weights apart in passing; 0: none */
    int64_t units_at, depth; /* ... where its ring of spans is, and so many of these */
    int64_t blocks;   /* of few_units.cu: of a cluster, which share the columns; slots there are
                         tiles at once, apart warps of a tile */
    int64_t unpacked; /* the weights lie one behind the other in scratch memory */
    qn__cuda_map map[QN__CUDA_LINEARS + 1], last_map[QN__CUDA_LINEARS];
} qn__cuda_wide_args;

/* Rows of `columns` become rows of `padded`, with zeros behind. */
typedef struct qn__cuda_round_args {
    void *at[2]; /* x; bf16, or bytes as many.cu has them */
    int64_t rows, columns, padded;
    int64_t turned;
} qn__cuda_round_args;

/* ---- units.cu -------------------------------------------------------------------------------- */

/* Of unpack.cu: w [n, k] as rows of `padded` bf16, from row `first` of the second on; padded is a
 * multiple of 64. */
typedef struct qn__cuda_unpack_args {
    void *at[2]; /* w in units; bf16 */
    int64_t n, k, padded, first;
} qn__cuda_unpack_args;

/* Rows of x as bytes. */
typedef struct qn__cuda_row_bytes_args {
    void *at[2]; /* x [rows, columns]; made rows */
    int64_t rows, columns;
    qn__cuda_byte_form form;
} qn__cuda_row_bytes_args;

/* Of many.cu: rows of x in a tile, bytes of a block. */
enum { QN__CUDA_MANY_ROWS = 128, QN__CUDA_MANY_SHARED = 226 << 10 };

/* Of ternary_wide.cu: columns of a stage; bytes of one of so many rows of the weight and of x; how
 * many there are; bytes of a block, whose stages begin at a multiple of 1024. made: rows of bytes
 * in their order. */
enum { QN__CUDA_TERNARY_DEEP = 128 };
#define QN__CUDA_TERNARY_STAGE(rows, x_rows)                                                       \
    ((x_rows)*QN__CUDA_TERNARY_DEEP + (rows)*QN__CUDA_TERNARY_DEEP / 4)
#define QN__CUDA_TERNARY_STAGES(rows, x_rows)                                                      \
    (((x_rows) <= 64 ? 128 << 10 : 192 << 10) / QN__CUDA_TERNARY_STAGE(rows, x_rows))
#define QN__CUDA_TERNARY_WIDE_SHARED(rows, x_rows)                                                 \
    (QN__CUDA_TERNARY_STAGES(rows, x_rows) * QN__CUDA_TERNARY_STAGE(rows, x_rows) + 1024)
typedef struct qn__cuda_ternary_args {
    qn__cuda_linears_args linears;
    int64_t box, x_box; /* units of a weight, rows of x that are copied at once */
    qn__cuda_map map[QN__CUDA_LINEARS + 1]; /* of each weight and of x */
} qn__cuda_ternary_args;

/* Of ternary.cu: tiles of a block at most; columns that its threads have in registers; bytes of a
 * block. */
enum {
    QN__CUDA_TERNARY_TILES = 16,
    QN__CUDA_TERNARY_COLUMNS = 8192,
    QN__CUDA_TERNARY_SHARED = 96 << 10
};

/* ---- quantized.cu ---------------------------------------------------------------------------- */

/* y [B, m, n] = x [B, m, k] by w [matrices, n, k] of codes in words, each batch by the matrix that
 * ids say, by its own, or by the only one. */
typedef struct qn__cuda_quantized_args {
    void *at[6]; /* x; words [matrices, n, ...]; scales, biases [matrices, n, k / group]; ids [B] or
                    NULL; y */
    int64_t m, n, k, matrices, group;
    int64_t type;    /* of scales and biases */
    int64_t vectors; /* x is read 16 bytes at a time */
} qn__cuda_quantized_args;

/* ---- attention.cu ---------------------------------------------------------------------------- */

/* Of rows of so many columns: keys at once, so few that three blocks fit; bytes of a block. */
#define QN__CUDA_ATTENTION_KEYS(columns) ((columns) == 64 ? 64 : 32)
#define QN__CUDA_ATTENTION_SHARED(columns)                                                         \
    (4 * (64 * ((columns) + 8) + QN__CUDA_ATTENTION_KEYS(columns) * (2 * (columns) + 12)))

typedef struct qn__cuda_attention_args {
    void *at[7]; /* q [B, H, L, D], k [B, G, S, D], v [B, G, S, E], mask [B, H, L, S] f32 or bool,
                    sinks [H], first [B, L] i32, y [B, H, L, E]. NULL: there is none */
    int64_t q_stride[4], k_stride[4], v_stride[4], mask_stride[4], y_stride[4];
    int64_t window;
    int32_t batch, heads, shared; /* heads that share a key head */
    int32_t length, keys, d, e;
    float scale, softcap;
    int8_t causal, adds;                    /* adds: the mask is f32 */
    int8_t q_vectors, k_vectors, v_vectors; /* four columns lie side by side */
} qn__cuda_attention_args;

/* ---- attend.cu ------------------------------------------------------------------------------- */

typedef struct qn__cuda_write_part {
    int64_t shape[4]; /* of the rows */
    int64_t stride[4];
    int64_t page, head; /* of the cache: from one to the next */
    int64_t pages, keys;
    int64_t half;  /* the cache's type, where that is bf16 or f16; or 0: f32 */
    int64_t quads; /* a thread has four elements of a row */
} qn__cuda_write_part;

/* One cache, or two, the second with the blocks behind the first `blocks`. */
typedef struct qn__cuda_write_args {
    void *at[6]; /* of each: rows [1, G, T, D] f32, slots [T], cache */
    qn__cuda_write_part part[2];
    int64_t blocks;
} qn__cuda_write_args;

/* Of pages.cu: rows [1, G, T, D] into pages of units, one cache or two as above; D is up to
 * QN__CUDA_ENCODED. */
enum { QN__CUDA_ENCODED = 1024 };
typedef struct qn__cuda_encode_part {
    int64_t head_stride, row_stride; /* of the rows, whose elements lie side by side */
    int64_t page, head;              /* of the cache: bytes from one to the next */
    int64_t pages;
    int32_t heads, length, d;
    int32_t vectors; /* rows are read 16 bytes at a time */
    int32_t turn;    /* so many elements at once by a Hadamard matrix, times its scale; 0: none */
    float turn_scale;
    qn__cuda_units units;
} qn__cuda_encode_part;
typedef struct qn__cuda_encode_args {
    void *at[6]; /* of each: rows, slots [T], cache */
    qn__cuda_encode_part part[2];
    int64_t blocks;
} qn__cuda_encode_args;

/* Few rows on their way to a cache in blocks, and their queries: norms of heads, if there are
 * weights, rope, a Hadamard matrix; heads of D, 64, 128 or 256. */
enum {
    QN__CUDA_BLOCKS_QUERIES, /* then keys, values, of [1, H, T, D] */
    QN__CUDA_BLOCKS_OFFSET = 3,
    QN__CUDA_BLOCKS_FREQUENCY,
    QN__CUDA_BLOCKS_SLOTS,
    QN__CUDA_BLOCKS_Y,                                /* queries' results: [T, H, D] */
    QN__CUDA_BLOCKS_CACHE,                            /* of keys, of values */
    QN__CUDA_BLOCKS_NORM = QN__CUDA_BLOCKS_CACHE + 2, /* of queries, of keys */
    QN__CUDA_BLOCKS_AT = QN__CUDA_BLOCKS_NORM + 2
};
typedef struct qn__cuda_turn_blocks_args {
    void *at[QN__CUDA_BLOCKS_AT];
    qn__cuda_encode_part part[2];    /* of keys, of values */
    int64_t head_stride, row_stride; /* of queries */
    int32_t heads;                   /* of queries */
    float scale, norm_eps;           /* scale: of queries, behind the matrix */
    int8_t row_offset, early;        /* early: no step writes offset, frequencies and slots */
} qn__cuda_turn_blocks_args;

/* The pages in a step's table out of their units, or from floats of 16 bits to f32, each to where
 * it is in that, or to its own number. */
typedef struct qn__cuda_unpack_pages_args {
    void *at[6];              /* keys, values as they are kept, or NULL; table [B, W]; both as
                                 floats; where each page of the table is then, or NULL: where it
                                 was */
    int64_t page[2], head[2]; /* bytes from one to the next */
    int64_t pages;
    int32_t sequences, width, heads, d[2];
    int32_t half;            /* the type of floats, where that is bf16 or f16; or 0: f32 */
    qn__cuda_units units[2]; /* of layout QN__PLAIN: floats of 16 bits, of this type */
} qn__cuda_unpack_pages_args;

/* Queries turned, keys turned on their way to the cache, values to theirs. */
typedef struct qn__cuda_turn_args {
    void *at[12]; /* queries, offset, frequency, y; keys, offset, frequency, slots, cache; values,
                     slots, cache */
    qn__cuda_rope_part rope[2];
    qn__cuda_write_part write[2];
    int64_t blocks[2]; /* of queries and keys: those behind are of values */
    int64_t early;     /* no step writes offsets, frequencies and the keys' slots */
} qn__cuda_turn_args;

/* Of attend_one.cu: bytes of a block over heads of d. */
#define QN__CUDA_PAGE_SHARED(d) ((d)*256)
#define QN__CUDA_ONE_SHARED(d)  ((d)*32 + 4096 + 2 * QN__CUDA_PAGE_SHARED(d))

/* Of attend_step.cu: rows of products; groups of warps in a block, a page each; tiles at most where
 * there are several tokens; in a cluster of so many blocks those that join, and pages' rows that
 * each joins at once; bytes of a block. */
enum { QN__CUDA_STEP_ROWS = 8, QN__CUDA_STEP_GROUPS = 2, QN__CUDA_STEP_TILES = 32 };
#define QN__CUDA_STEP_JOINERS(blocks) ((blocks) < 8 ? (blocks) : 8)
#define QN__CUDA_STEP_SLOTS(blocks)   ((blocks) < 4 ? 64 : 16 * (blocks))
#define QN__CUDA_STEP_SHARED(d, blocks)                                                            \
    (QN__CUDA_PAGE_SHARED(d) + (d)*26 + 4096 +                                                     \
     QN__CUDA_STEP_SLOTS(blocks) * ((d) / QN__CUDA_STEP_JOINERS(blocks) * 4 + 24) + 80)

/* Of attend_blocks.cu, whose blocks have some rows of results to turn back. */
#define QN__CUDA_BACK_ROWS(blocks) ((QN__CUDA_STEP_ROWS + (blocks)-1) / (blocks))
#define QN__CUDA_BLOCKS_SHARED(d, blocks)                                                          \
    (QN__CUDA_STEP_SHARED(d, blocks) + QN__CUDA_BACK_ROWS(blocks) * (d)*4 + 16)

/* The same of attend_step_blocks.cu: two pages as they lie, of eight bits or fewer, or of keys that
 * are halves, and a key and a value, in a tile each and as bf16. */
#define QN__CUDA_STEP_UNITS_SHARED(d, blocks, halves)                                              \
    ((d) * ((halves) ? 466 : 330) + 4096 + QN__CUDA_STEP_SLOTS(blocks) * ((d) / (blocks)*4 + 24) + \
     QN__CUDA_BACK_ROWS(blocks) * (d)*4 + 128)

/* Among the addresses of attention: its result; behind its own those of a launch that turns its
 * only row and writes it to the cache, too (attend_step.cu). */
enum {
    QN__CUDA_ATTEND_RESULT = 6,
    QN__CUDA_TURN_QUERIES = 9,
    QN__CUDA_TURN_OFFSET,
    QN__CUDA_TURN_FREQUENCY,
    QN__CUDA_TURN_KEYS,
    QN__CUDA_TURN_VALUES,
    QN__CUDA_TURN_SLOTS,
    QN__CUDA_TURN_QUERY_NORM, /* weights of norms before that, over heads of 128 or 256, or NULL */
    QN__CUDA_TURN_KEY_NORM,
    QN__CUDA_ATTEND_AT
};

typedef struct qn__cuda_attend_args {
    void *at[QN__CUDA_ATTEND_AT]; /* q [1, H, T, D], keys [P, G, 4, D, 16], values [P, G, 64, E],
                    tiles [N, 4], table [B, W], sinks [H], y, parts of pages (attend.cuh), y as
                    bf16, of tiles and of attend_join. NULL: not wanted */
    /* What attend_step.cu reads comes first, so that its blocks wait for few pieces of 64 bytes. */
    int64_t y_stride[4];
    int64_t k_page, k_head, v_page, v_head;
    int64_t pages, tiles, sequences, width;
    int64_t length, window, keep;
    float scale, softcap;
    int32_t groups, shared; /* heads that share a key head */
    int8_t has_sinks;
    int8_t half;   /* the cache's type, where that is bf16 or f16; or 0: f32 */
    int8_t turned; /* how y is rounded (turned.cuh) */
    int8_t early;  /* no step writes tiles and table, and of the cache one, this step's rows */
    int32_t split; /* pages' results go to attend_join: so many blocks share them, or by
                      attend_rows, which each has a page */
    int32_t d, e, tile;
    int64_t heads, q_stride[4];
    int64_t parts_at; /* where parts begin, in floats */
} qn__cuda_attend_args;

/* Of a launch that turns its only row, whose elements lie side by side, and writes it to the cache.
 */
typedef struct qn__cuda_attend_turn_args {
    qn__cuda_attend_args a;
    int64_t query_head, key_head, value_head; /* from one head to the next */
    float norm_eps;
    int32_t next_holds_back; /* the launch behind has little under way before this one has ended */
} qn__cuda_attend_turn_args;

/* Over a cache in blocks that attention takes apart itself. Rows are turned by a Hadamard matrix:
 * that of a launch which turns its only row, times these scales. */
typedef struct qn__cuda_attend_blocks_args {
    qn__cuda_attend_turn_args t;
    float back;     /* rows of results, times this; 0: they are not turned */
    float scale[3]; /* queries, key and value */
} qn__cuda_attend_blocks_args;

/* Of attend_wide.cu and attend_long.cu: bytes of a block. */
enum { QN__CUDA_ATTEND_WIDE_SHARED = 193 << 10 };

/* The same with maps of keys, as rows of 16, and of values, as rows of a head. */
typedef struct qn__cuda_attend_wide_args {
    qn__cuda_attend_args a;
    qn__cuda_map keys, values;
} qn__cuda_attend_wide_args;

/* Of attend_far.cu, with its maps: bytes of a block and its threads; blocks of the largest cluster,
 * and rows that it has at most. */
enum {
    QN__CUDA_FAR_SHARED = 226 << 10,
    QN__CUDA_FAR_THREADS = 352,
    QN__CUDA_FAR_BLOCKS = 9,
    QN__CUDA_FAR_ROWS = 6
};
/* Of attend_far_blocks.cu: warps that multiply, fewer where keys are halves, and threads. */
#define QN__CUDA_FAR_UNIT_WARPS(d, halves)   ((d) == 64 ? 12 : (halves) ? 6 : 8)
#define QN__CUDA_FAR_UNIT_THREADS(d, halves) (32 * (5 + QN__CUDA_FAR_UNIT_WARPS(d, halves)))
typedef struct qn__cuda_attend_far_args {
    qn__cuda_attend_turn_args t;
    qn__cuda_map keys, values;
} qn__cuda_attend_far_args;

#endif
