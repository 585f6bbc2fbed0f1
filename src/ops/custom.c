/* SPDX-License-Identifier: Apache-2.0
 *
 * The one operation behind all user primitives (quern/extend.h). Its parameters are the primitive,
 * whose address is its identity as long as the device lives, and so as long as any plan does, and
 * the user's parameters, filled up with zeros.
 */
#include "core/device.h"
#include "ops/ops.h"

static void view_of(const qn_array *a, qn_view *view)
{
    *view = (qn_view){.dtype = (qn_dtype)a->dtype, .ndim = a->ndim};
    memcpy(view->shape, a->shape, sizeof view->shape);
}

static bool good_result(const qn_view *out)
{
    int64_t n = 16;
    if ((unsigned)out->dtype >= QN_DTYPE_COUNT || out->ndim < 0 || out->ndim > QN_MAX_NDIM)
        return false;
    for (int i = 0; i < out->ndim; i++)
        if (out->shape[i] < 0 || __builtin_mul_overflow(n, out->shape[i] ? out->shape[i] : 1, &n))
            return false;
    return true;
}

static bool infer(qn_scope *s, const qn_primitive *p, qn_array *const *in, const void *params,
                  qn_view *out)
{
    const qn_primitive_def *def = &p->def;
    qn_view views[QN_MAX_CUSTOM_INPUTS];
    qn_error err = {0};
    for (int i = 0; i < def->n_inputs; i++)
        view_of(in[i], &views[i]);
    *out = views[0];
    if (def->infer && def->infer(views, params, out, &err) != QN_OK) {
        char text[128];
        qn__scope_fail(s, err.code ? err.code : QN_INVALID, "%s/%s: %s: %s", p->library, def->name,
                       qn__describe(in[0], text), err.message);
        return false;
    }
    if (!good_result(out))
        qn__scope_fail(s, QN_INVALID, "%s/%s: its shape rule gives no shape", p->library,
                       def->name);
    return s->error.code == QN_OK;
}

/* Kernels are for kinds of devices. */
static bool has_kernel(qn_scope *s, const qn_primitive *p)
{
    const char *kind = s->device->ops->kind;
    if (!strcmp(kind, "cpu") ? p->def.cpu != NULL : !strcmp(kind, "cuda") && p->def.cuda)
        return true;
    qn__scope_fail(s, QN_UNSUPPORTED, "%s/%s: it has no kernel for device %s; it has one for %s",
                   p->library, p->def.name, s->device->name, p->def.cpu ? "cpu" : "cuda");
    return false;
}

qn_array *qn_custom(qn_scope *s, const qn_primitive *p, qn_array *const *in, int n,
                    const void *params, size_t params_size)
{
    qn_array *inputs[QN_MAX_CUSTOM_INPUTS];
    if (!s || s->error.code != QN_OK)
        return qn__poison(s);
    if (!p)
        return qn__scope_fail(s, QN_INVALID, "custom: the primitive is NULL");
    const qn_primitive_def *def = &p->def;
    if (p->device != s->device || n != def->n_inputs || params_size != def->params_size)
        return qn__scope_fail(s, QN_INVALID,
                              "%s/%s: %d inputs and %zu bytes of parameters%s; it takes "
                              "%d and %zu",
                              p->library, def->name, n, params_size,
                              p->device != s->device ? " on a device where it is not registered"
                                                     : "",
                              def->n_inputs, def->params_size);
    for (int i = 0; i < n; i++) {
        inputs[i] = qn__input(s, in[i], def->name);
        if (!inputs[i])
            return qn__poison(s);
        if (inputs[i]->layout)
            return qn__op_fail(s, def->name, inputs[i], NULL, "packed weights are not read");
    }
    qn__custom_params all = {.primitive = p};
    if (params_size)
        memcpy(all.params, params, params_size);
    qn_view out;
    if (!has_kernel(s, p) || !infer(s, p, inputs, all.params, &out))
        return qn__poison(s);
    return qn__record(s, QN__OP_CUSTOM, out.dtype, out.ndim, out.shape, n, inputs, &all);
}

static void vjp_custom(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                       qn_array **grads)
{
    const qn__custom_params *c = node->params;
    const qn_primitive *p = c->primitive;
    if (!p->def.vjp) {
        qn__scope_fail(s, QN_UNSUPPORTED, "%s/%s has no derivative", p->library, p->def.name);
        return;
    }
    p->def.vjp(s, node->in, (qn_array *)node, c->params, ct, want, grads);
    for (int i = 0; i < node->n_in && s->error.code == QN_OK; i++)
        if (want[i] && grads[i] && !qn__same_shape(grads[i], node->in[i]))
            qn__op_fail(s, p->def.name, grads[i], node->in[i],
                        "a gradient has not its input's shape");
}

static qn_array *jvp_custom(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__custom_params *c = node->params;
    const qn_primitive *p = c->primitive;
    if (!p->def.jvp)
        return qn__scope_fail(s, QN_UNSUPPORTED, "%s/%s has no forward derivative", p->library,
                              p->def.name);
    return p->def.jvp(s, node->in, (qn_array *)node, c->params, tangents);
}

const qn__op_def qn__custom_op = {.name = "custom",
                                  .class = QN__KERNEL,
                                  .params_size = sizeof(qn__custom_params),
                                  .vjp = vjp_custom,
                                  .jvp = jvp_custom};
