/* SPDX-License-Identifier: Apache-2.0
 *
 * A cache's pages: which there are, writing rows to them, and taking those of blocks apart, for
 * attention, which reads floats.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

_Static_assert((int)QN__KEY_GROUP == (int)QN__CUDA_KEY_GROUP && (int)QN__PAGE == (int)QN__CUDA_PAGE,
               "keys lie as the kernels read them");

bool qn__cuda_keeps(const qn__encoding *e)
{
    switch (e - qn__encodings) {
    case QN__F32:
    case QN__F16:
    case QN__BF16:
    case QN__Q4_0:
    case QN__Q4_1:
    case QN__Q5_0:
    case QN__Q5_1:
    case QN__Q8_0:
    case QN__IQ4_NL: return true;
    default: return e->bits && !e->zeroed;
    }
}

bool qn__cuda_is_cache(const qn_array *cache)
{
    const qn__layout *l = qn__layout_of(cache->layout);
    return l ? qn__cuda_keeps(l->encoding)
             : cache->dtype == QN_F32 || qn__cuda_half((qn_dtype)cache->dtype);
}

/* ---- writing --------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 1 << 20 };

static bool takes_write(const qn_array *node)
{
    return qn__cuda_is_cache(node) &&
           (!node->layout || (node->in[1]->stride[3] == 1 && node->shape[3] <= QN__CUDA_ENCODED));
}

static qn__cuda_grid write_grid(int64_t work)
{
    const int64_t blocks = qn__cuda_parts(work, QN__CUDA_THREADS);
    return (qn__cuda_grid){blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, QN__CUDA_THREADS, 0};
}

/* Floats, in a launch with what comes before, if that can be. */
static bool write_floats(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *rows = &call->operand[1], *y = &call->operand[3];
    if (!qn__cuda_elements(rows))
        return true;
    qn__cuda_write_part part = {.page = y->stride[0],
                                .head = y->stride[1],
                                .pages = y->shape[0],
                                .keys = call->op == QN__OP_WRITE_KEYS,
                                .half = qn__cuda_half((qn_dtype)y->dtype)};
    memcpy(part.shape, rows->shape, sizeof part.shape);
    memcpy(part.stride, rows->stride, sizeof part.stride);
    part.quads = part.shape[3] % 4 == 0 && part.stride[3] == 1 && rows->offset % 16 == 0 &&
                 (part.stride[1] | part.stride[2]) % 4 == 0;
    const qn__cuda_grid grid = write_grid(qn__cuda_elements(rows) / (part.quads ? 4 : 1));
    return qn__cuda_turn_and_write(b, call, &part, grid.blocks) ||
           qn__cuda_add_part(b, QN__CUDA_KERNEL_write_cache, call, &grid, 3, &part, sizeof part);
}

/* Bytes of a head's page. */
static int64_t page_of_head(const qn__operand *cache)
{
    return (int64_t)qn__layout_bytes(cache->layout, QN__PAGE, cache->shape[3]);
}

/* If the newest launch makes these rows alone, by a Hadamard matrix, for nobody else, then it goes,
 * and they are turned on their way; returns the operand that is read then. */
static uint32_t take_turn_of(qn__cuda_binder *b, const qn__call *call, qn__cuda_encode_part *part)
{
    enum { X, Y };
    const qn__operand *operands = b->binding->operands, *rows = &call->operand[1];
    const uint32_t own = call->first_operand + 1;
    qn__cuda_binding *bound = b->bound;
    if (!bound->n_launches)
        return own;
    const qn__cuda_launch *last = &bound->launches[bound->n_launches - 1];
    const uint32_t *at = bound->at + last->first_at;
    if (last->function != b->cuda->kernels[QN__CUDA_KERNEL_hadamard])
        return own;
    const uint32_t x = at[X], y = at[Y];
    const qn__cuda_hadamard_args *turn = (const qn__cuda_hadamard_args *)(bound->args + last->args);
    if (!qn__cuda_same_place(&operands[y], rows) || turn->all != qn__cuda_elements(rows) ||
        !qn__cuda_is_spent(b, call, &operands[y]))
        return own;
    part->turn = turn->n;
    part->turn_scale = turn->scale;
    qn__cuda_forget_newest(bound);
    return x;
}

static bool write_blocks(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *rows = &call->operand[1], *y = &call->operand[3];
    const int64_t head = page_of_head(y), d = rows->shape[3];
    if (!qn__cuda_elements(rows))
        return true;
    qn__cuda_encode_part part = {.head_stride = rows->stride[1],
                                 .row_stride = rows->stride[2],
                                 .page = y->shape[1] * head,
                                 .head = head,
                                 .pages = y->shape[0],
                                 .heads = (int32_t)rows->shape[1],
                                 .length = (int32_t)rows->shape[2],
                                 .d = (int32_t)d,
                                 .units = qn__cuda_units_as_data(y->layout)};
    const uint32_t from = take_turn_of(b, call, &part);
    const int size = d <= 128   ? 0
                     : d <= 256 ? 1
                                : 2,
              kernel =
                  size + (y->layout == QN__UNITS_OF(QN__IQ4_NL) ? QN__CUDA_KERNEL_write_curve_1
                                                                : QN__CUDA_KERNEL_write_blocks_1);
    const qn__cuda_grid grid = write_grid(rows->shape[1] * rows->shape[2] * 32);
    part.vectors = b->binding->operands[from].offset % 16 == 0 &&
                   (part.head_stride | part.row_stride) % 4 == 0;
    uint32_t *at = qn__cuda_add_part(b, kernel, call, &grid, 3, &part, sizeof part);
    if (at)
        *at = from;
    return at;
}

static bool launch_write(qn__cuda_binder *b, const qn__call *call)
{
    return call->operand[3].layout ? write_blocks(b, call) : write_floats(b, call);
}

const qn__cuda_routine qn__cuda_write_keys = {QN__OP_WRITE_KEYS, takes_write, launch_write, 1 << 0};
const qn__cuda_routine qn__cuda_write_values = {QN__OP_WRITE_VALUES, takes_write, launch_write,
                                                1 << 0};

/* ---- taking apart ---------------------------------------------------------------------------- */

enum { KEYS, VALUES, KINDS };

static bool is_unpacked(const qn__operand *cache, qn_dtype type)
{
    return cache->layout || (qn_dtype)cache->dtype != type;
}

bool qn__cuda_is_unpacked(const qn__call *attend, qn_dtype type)
{
    return is_unpacked(&attend->operand[1], type) || is_unpacked(&attend->operand[2], type);
}

/* How the pages of a call lie in scratch memory: the keys, the values, the table, which begin at
 * multiples of QN__CUDA_PIECE bytes. Pages lie in the order of the table, or, where that has more
 * places than there are pages, or one of both arrays is read as it is, by their numbers. */
typedef struct unpacked {
    bool by_number;
    int64_t pages;
    size_t at[KINDS + 1], bytes; /* at: in pieces */
} unpacked;

/* Of a page of a head. Keys that are floats have one axis more. */
static int64_t head_elements(const qn__call *call, int i)
{
    return QN__PAGE * (i == KEYS ? call->operand[0].shape[3] : call->operand[2].shape[3]);
}

static unpacked unpacked_of(const qn__call *call, qn_dtype type)
{
    const qn__operand *cache = &call->operand[1], *table = &call->operand[4];
    const int64_t places = table->shape[0] * table->shape[1], pages = cache->shape[0];
    const bool both = is_unpacked(&cache[KEYS], type) && is_unpacked(&cache[VALUES], type);
    unpacked u = {.by_number = !both || places > pages};
    u.pages = u.by_number ? pages : places;
    for (int i = 0; i <= KINDS; i++) {
        size_t bytes = i == KINDS ? (size_t)places * sizeof(int32_t) * !u.by_number
                       : is_unpacked(&cache[i], type)
                           ? (size_t)(u.pages * cache[i].shape[1] * head_elements(call, i)) *
                                 qn__dtype_size(type)
                           : 0;
        u.at[i] = u.bytes / QN__CUDA_PIECE;
        u.bytes += (bytes + QN__CUDA_PIECE - 1) / QN__CUDA_PIECE * QN__CUDA_PIECE;
    }
    return u;
}

/* As the launch that takes them apart reads them. */
static void describe_pages(qn__cuda_unpack_pages_args *args, const qn__call *call, int i)
{
    const qn__operand *cache = &call->operand[1 + i];
    const int64_t size = (int64_t)qn__dtype_size((qn_dtype)cache->dtype);
    args->d[i] = (int32_t)(head_elements(call, i) / QN__PAGE);
    if (cache->layout) {
        args->head[i] = page_of_head(cache);
        args->page[i] = cache->shape[1] * args->head[i];
        args->units[i] = qn__cuda_units_as_data(cache->layout);
    } else {
        args->head[i] = cache->stride[1] * size;
        args->page[i] = cache->stride[0] * size;
        args->units[i] = (qn__cuda_units){.layout = QN__PLAIN, .type = cache->dtype};
    }
}

/* What attention has to know of an operand that lies in scratch memory. */
static qn__operand floats_of(const qn__call *call, int i, const unpacked *u, qn_dtype type)
{
    qn__operand o = call->operand[1 + i];
    o.layout = QN__PLAIN;
    o.dtype = type;
    o.offset = 0;
    o.shape[0] = u->pages;
    o.stride[1] = head_elements(call, i);
    o.stride[0] = o.shape[1] * o.stride[1];
    return o;
}

bool qn__cuda_unpack_cache(qn__cuda_binder *b, const qn__call *call, qn_dtype type,
                           qn__operand floats[2])
{
    const qn__operand *cache = &call->operand[1], *table = &call->operand[4];
    const unpacked u = unpacked_of(call, type);
    qn__cuda_unpack_pages_args args = {.pages = cache->shape[0],
                                       .sequences = (int32_t)table->shape[0],
                                       .width = (int32_t)table->shape[1],
                                       .heads = (int32_t)cache->shape[1],
                                       .half = qn__cuda_half(type)};
    uint8_t operands[] = {
        QN__CUDA_NONE, QN__CUDA_NONE, 4,
        QN__CUDA_NONE, QN__CUDA_NONE, u.by_number ? QN__CUDA_NONE : QN__CUDA_UNPACKED};
    int n = 0;
    for (int i = 0; i < KINDS; i++) {
        floats[i] = cache[i];
        if (!is_unpacked(&cache[i], type))
            continue;
        describe_pages(&args, call, i);
        operands[i] = (uint8_t)(1 + i);
        operands[3 + i] = QN__CUDA_UNPACKED;
        floats[i] = floats_of(call, i, &u, type);
        n++;
    }
    const int64_t blocks = n * table->shape[0] * table->shape[1] * cache->shape[1];
    const qn__cuda_grid grid = {blocks, QN__CUDA_THREADS, 0};
    qn__cuda_want_unpacked(b, u.bytes);
    if (!blocks)
        return true;
    if (!QN__CUDA_ADD_GRID(b, unpack_pages, &grid, args, call, operands[0], operands[1],
                           operands[2], operands[3], operands[4], operands[5]))
        return false;
    uint32_t *at = b->bound->at + b->bound->launches[b->bound->n_launches - 1].first_at + 3;
    for (int i = 0; i <= KINDS; i++)
        if (at[i] == QN__CUDA_AT_UNPACKED)
            at[i] += (uint32_t)u.at[i];
    return true;
}

void qn__cuda_find_unpacked(qn__cuda_binder *b, const qn__call *call, qn_dtype type)
{
    const unpacked u = unpacked_of(call, type);
    uint32_t *at = b->bound->at + b->bound->launches[b->bound->n_launches - 1].first_at;
    for (int i = 0; i < KINDS; i++)
        if (is_unpacked(&call->operand[1 + i], type))
            at[1 + i] = QN__CUDA_AT_UNPACKED + (uint32_t)u.at[i];
    if (!u.by_number)
        at[4] = QN__CUDA_AT_UNPACKED + (uint32_t)u.at[KINDS];
}
