/* SPDX-License-Identifier: Apache-2.0
 *
 * Cross-entropy of a linear layer, without its result: [..., V] of a large vocabulary is what
 * training would need most memory for.
 *
 * A kernel goes through the vocabulary once and makes the loss and, as it has the logits then, the
 * loss's gradient to x. So the node is [..., 1 + K]: the loss, and what its cotangent multiplies.
 * That part is not differentiated again: who tries is told so. Where a device has no kernel (plain
 * weights, as trained ones are), the losses are those of plain operations, and differentiate to
 * anything; of many logits some rows at a time.
 */
#include "ops/ops.h"

#include "base/sized.h"
#include "quant/layout.h"

/* ---- the gradient: the identity, whose derivative is an error -------------------------------- */

static qn__ir_value emit_last_derivative(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)ir, (void)params;
    return in[0];
}

static qn_array *refuse(qn_scope *s)
{
    return qn__scope_fail(s, QN_UNSUPPORTED,
                          "linear_cross_entropy has no second derivative; that of cross_entropy of "
                          "linear has");
}

static void vjp_last_derivative(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                                qn_array **grads)
{
    (void)node, (void)ct, (void)want;
    grads[0] = refuse(s);
}

static qn_array *jvp_last_derivative(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    (void)node, (void)tangents;
    return refuse(s);
}

const qn__op_def qn__last_derivative_op = {.name = "last_derivative",
                                           .class = QN__ELEMENTWISE,
                                           .emit = emit_last_derivative,
                                           .vjp = vjp_last_derivative,
                                           .jvp = jvp_last_derivative};

/* ---- recording ------------------------------------------------------------------------------- */

static qn_array *record_rows(qn_scope *s, int n_in, qn_array *const *in,
                             const qn__linear_cross_entropy_params *params)
{
    int64_t shape[QN_MAX_NDIM];
    const qn_array *x = in[0];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = params->loss_only ? 1 : 1 + x->shape[x->ndim - 1];
    return qn__record(s, QN__OP_LINEAR_CROSS_ENTROPY, (qn_dtype)x->dtype, x->ndim, shape, n_in, in,
                      params);
}

qn_array *qn_linear_cross_entropy(qn_scope *s, qn_array *x, qn_array *w, qn_array *targets,
                                  const qn_linear_cross_entropy_options *given)
{
    qn_linear_cross_entropy_options o;
    x = qn__input(s, x, "linear_cross_entropy");
    w = x ? qn__input(s, w, "linear_cross_entropy") : NULL;
    targets = w ? qn__input(s, targets, "linear_cross_entropy") : NULL;
    if (!targets ||
        qn__sized_in(&o, sizeof o, given, "qn_linear_cross_entropy_options", &s->error) != QN_OK)
        return qn__poison(s);
    if (w->ndim != 2 || x->ndim < 1 || x->shape[x->ndim - 1] != w->shape[1] ||
        !qn__is_float((qn_dtype)w->dtype))
        return qn__op_fail(s, "linear_cross_entropy", x, w, "x must be [..., K] and w [V, K]");
    if (!qn__one_a_row(targets, x) || qn__is_float((qn_dtype)targets->dtype))
        return qn__op_fail(s, "linear_cross_entropy", x, targets, "targets must be integers [...]");
    qn_dtype type = x->dtype == QN_F64 || w->dtype == QN_F64 ? QN_F64 : QN_F32;
    qn_array *in[4] = {qn_contiguous(s, qn_cast(s, x, type)), w, qn__indices(s, targets)};
    qn_array *weights = o.weights ? qn__input(s, o.weights, "linear_cross_entropy") : NULL;
    if (weights && !qn__one_a_row(weights, x))
        return qn__op_fail(s, "linear_cross_entropy", x, weights, "weights must be [...]");
    if (weights)
        in[3] = qn_contiguous(s, qn_stop_gradient(s, qn_cast(s, weights, type)));
    qn__linear_cross_entropy_params params = {
        .products = o.products == QN_PRODUCTS_AUTO ? qn__auto_products(s, w) : o.products,
        .softcap = o.softcap,
        .has_weights = weights != NULL,
        .loss_only = o.loss_only};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    qn_array *y = record_rows(s, 3 + params.has_weights, in, &params);
    if (qn__is_poison(s, y) || y->op != QN__OP_LINEAR_CROSS_ENTROPY)
        return y; /* decomposed: the losses themselves */
    return qn_squeeze(s, qn_slice(s, y, -1, 0, 1, 1), -1);
}

/* ---- what it means --------------------------------------------------------------------------- */

/* Logits that plain operations have at once: 64 MiB in f32. */
enum { CHUNK_LOGITS = 1 << 24 };

/* What the losses of some rows are of: x [..., K], targets and weights [...]; weights NULL: none.
 */
typedef struct part {
    qn_array *x, *targets, *weights;
} part;

/* The losses alone: their gradient is that of these operations. */
static qn_array *plain_losses(qn_scope *s, const part *of, qn_array *w,
                              const qn__linear_cross_entropy_params *p)
{
    qn_array *logits = qn_linear_with(s, of->x, w, NULL, (qn_products)p->products);
    if (p->softcap > 0 && !qn__is_poison(s, logits)) {
        qn_array *cap = qn__scalar_like(s, logits, p->softcap);
        logits = qn_multiply(s, qn_tanh(s, qn_divide(s, logits, cap)), cap);
    }
    qn_array *y = qn_cross_entropy(s, logits, of->targets);
    return of->weights ? qn_multiply(s, y, of->weights) : y;
}

static part slice_part(qn_scope *s, const part *of, int64_t from, int64_t to)
{
    return (part){qn_slice(s, of->x, 0, from, to, 1), qn_slice(s, of->targets, 0, from, to, 1),
                  of->weights ? qn_slice(s, of->weights, 0, from, to, 1) : NULL};
}

/* Rows chunk by chunk. Gradients make a chunk's logits again, so that those of all are never there,
 * and the weight's is a sum over the chunks. */
static qn_array *losses_in_chunks(qn_scope *s, const qn_array *node, int64_t rows, int64_t a_chunk)
{
    const qn__linear_cross_entropy_params *p = node->params;
    const int64_t flat_x[] = {rows, node->in[0]->shape[node->in[0]->ndim - 1]};
    int64_t n = (rows + a_chunk - 1) / a_chunk;
    qn_array **losses = qn__scope_alloc(s, (size_t)n * sizeof *losses);
    const part all = {qn_reshape(s, node->in[0], 2, flat_x), qn_reshape(s, node->in[2], 1, &rows),
                      p->has_weights ? qn_reshape(s, node->in[3], 1, &rows) : NULL};
    if (!losses)
        return qn__poison(s);
    for (int64_t i = 0; i < n; i++) {
        int64_t to = (i + 1) * a_chunk < rows ? (i + 1) * a_chunk : rows;
        const part one = slice_part(s, &all, i * a_chunk, to);
        qn_checkpoint_begin(s);
        losses[i] = plain_losses(s, &one, node->in[1], p);
        qn_checkpoint_end(s);
    }
    qn_array *y = qn_concatenate(s, losses, (int)n, 0);
    return qn_reshape(s, y, node->in[2]->ndim, node->in[2]->shape);
}

static qn_array *decompose_linear_cross_entropy(qn_scope *s, const qn_array *node)
{
    const qn__linear_cross_entropy_params *p = node->params;
    const part all = {node->in[0], node->in[2], p->has_weights ? node->in[3] : NULL};
    int64_t rows = qn__elements(node->in[2]), a_chunk = CHUNK_LOGITS / (node->in[1]->shape[0] + 1);
    a_chunk = a_chunk ? a_chunk : 1;
    return rows > a_chunk && !s->in_stretch ? losses_in_chunks(s, node, rows, a_chunk)
                                            : plain_losses(s, &all, node->in[1], p);
}

/* What the loss of each row changes by with its x: [..., K]. */
static qn_array *slope(qn_scope *s, const qn_array *node)
{
    qn__linear_cross_entropy_params params = *(const qn__linear_cross_entropy_params *)node->params;
    qn_array *whole = (qn_array *)node;
    if (params.loss_only) {
        params.loss_only = 0;
        whole = record_rows(s, node->n_in, node->in, &params);
    }
    qn_array *part = qn_slice(s, whole, -1, 1, INT64_MAX, 1);
    if (qn__is_poison(s, part))
        return part;
    return qn__elementwise(s, QN__OP_LAST_DERIVATIVE, (qn_dtype)part->dtype, 1, &part);
}

static bool is_asked_for_weight(qn_scope *s, const qn_array *node, bool asked)
{
    if (asked)
        qn__op_fail(s, "linear_cross_entropy", node->in[0], node->in[1],
                    "a packed weight has no gradient of its own");
    return asked;
}

static void vjp_linear_cross_entropy(qn_scope *s, const qn_array *node, qn_array *ct,
                                     const bool *want, qn_array **grads)
{
    if (!is_asked_for_weight(s, node, want[1]) && want[0])
        grads[0] = qn_multiply(s, slope(s, node), qn_slice(s, ct, -1, 0, 1, 1));
}

static qn_array *jvp_linear_cross_entropy(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    if (is_asked_for_weight(s, node, t[1]) || !t[0])
        return NULL;
    qn_array *loss = qn_sum(s, qn_multiply(s, slope(s, node), t[0]), -1, true);
    if (qn__is_poison(s, loss) || node->shape[node->ndim - 1] == 1)
        return loss;
    qn_array *both[] = {loss, qn__zeros_like(s, t[0])};
    return qn_concatenate(s, both, 2, -1);
}

const qn__op_def qn__linear_cross_entropy_op = {.name = "linear_cross_entropy",
                                                .class = QN__KERNEL,
                                                .params_size =
                                                    sizeof(qn__linear_cross_entropy_params),
                                                .decompose = decompose_linear_cross_entropy,
                                                .vjp = vjp_linear_cross_entropy,
                                                .jvp = jvp_linear_cross_entropy};
