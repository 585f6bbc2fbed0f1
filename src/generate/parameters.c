/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's weights by name.
 */
#include "generate/model.h"

#include "base/error.h"
#include "core/array.h"
#include "ops/ops.h"
#include "quant/layout.h"

#include <string.h>

static const qn__parameter *find_parameter(const qn_model *m, const char *name)
{
    for (int i = 0; i < m->decoder.n_parameters; i++)
        if (!strcmp(m->decoder.parameters[i].name, name))
            return &m->decoder.parameters[i];
    return NULL;
}

int qn_model_n_parameters(const qn_model *m)
{
    return m->decoder.n_parameters;
}

const char *qn_model_parameter_name(const qn_model *m, int i)
{
    return i >= 0 && i < m->decoder.n_parameters ? m->decoder.parameters[i].name : NULL;
}

qn_array *qn_model_parameter(const qn_model *m, const char *name)
{
    const qn__parameter *p = find_parameter(m, name);
    return p ? *p->slot : NULL;
}

static qn_status check_value(const qn__parameter *p, const qn_array *value, qn_error *err)
{
    char text[128], wanted[128];
    if (!*p->slot)
        return qn__fail(err, QN_STATE, "the model was opened without its weights");
    const char *as = qn__parameter_quantised(p);
    if (as)
        return qn__fail(err, QN_UNSUPPORTED, "%s is %s; dense parameters alone can be set", p->name,
                        as);
    if (!qn__same_shape(value, *p->slot) || value->layout || !qn__is_float((qn_dtype)value->dtype))
        return qn__fail(err, QN_INVALID, "%s: %s; floats in the shape of %s are wanted", p->name,
                        qn__describe(value, text), qn__describe(*p->slot, wanted));
    return QN_OK;
}

/* As the slot has it: a matrix packed, in its type, a vector in f32. */
static qn_array *make_value(qn_scope *s, const qn__parameter *p, qn_array *value)
{
    if (p->ndim == 2)
        return qn_pack(s, qn_cast(s, value, (qn_dtype)(*p->slot)->dtype));
    qn_array *a = qn_contiguous(s, qn_cast(s, value, QN_F32));
    if (p->plus_one)
        a = qn_add(s, a, qn_scalar(s, QN_F32, 1));
    return qn_eval(s, a) == QN_OK ? qn_retain(a) : NULL;
}

qn_status qn_model_set_parameter(qn_model *m, const char *name, qn_array *value, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    const qn__parameter *p = find_parameter(m, name);
    if (!p)
        return qn__fail(err, QN_NOT_FOUND, "the model has no parameter \"%.100s\"", name);
    if (check_value(p, value, err) != QN_OK)
        return err->code;
    qn_scope *s = qn_scope_begin(m->device);
    qn_array *made = make_value(s, p, value);
    if (made) {
        qn_release(*p->slot);
        *p->slot = made;
    } else {
        qn__fail(err, qn_scope_status(s), "%s: %s", name, qn_scope_error(s));
    }
    qn_scope_end(s);
    return err->code;
}
