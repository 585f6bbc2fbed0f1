/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's adapters: their names and numbers.
 */
#include "generate/model.h"

#include "base/error.h"
#include "models/adapter.h"

#include <stdlib.h>
#include <string.h>

/* The last part of a path, without slashes at its end. */
static char *last_part(const char *path)
{
    size_t n = strlen(path), begin;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (begin = n; begin > 0 && path[begin - 1] != '/';)
        begin--;
    return strndup(path + begin, n - begin);
}

static qn_status keep_names(qn_model *m, const qn_model_options *o, qn_error *err)
{
    m->adapter_names = calloc(o->n_adapters + 1, sizeof *m->adapter_names);
    if (!m->adapter_names)
        return qn__fail_memory(err, "adapters");
    for (size_t i = 0; i < o->n_adapters; i++) {
        const qn_adapter *a = &o->adapters[i];
        if (!(m->adapter_names[i] = a->name ? strdup(a->name) : last_part(a->path)))
            return qn__fail_memory(err, "adapters");
        for (size_t k = 0; k < i; k++)
            if (!strcmp(m->adapter_names[k], m->adapter_names[i]))
                return qn__fail(err, QN_INVALID, "two adapters are called \"%s\"; name one of them",
                                m->adapter_names[i]);
    }
    return QN_OK;
}

qn_status qn__model_open_adapters(qn_model *m, const qn_model_options *o, qn_error *err)
{
    qn__adapter_place places[QN__MOST_ADAPTERS];
    if (!o->n_adapters || o->no_weights)
        return QN_OK;
    if (o->n_adapters > QN__MOST_ADAPTERS)
        return qn__fail(err, QN_LIMIT, "%zu adapters; a model has %d at most", o->n_adapters,
                        QN__MOST_ADAPTERS);
    for (size_t i = 0; i < o->n_adapters; i++) {
        const qn_adapter *a = &o->adapters[i];
        places[i] = (qn__adapter_place){a->path, a->scale != 0 ? (double)a->scale : 1};
    }
    if (keep_names(m, o, err) != QN_OK)
        return err->code;
    return qn__adapters_load(&m->decoder, m->device, places, (int)o->n_adapters, err);
}

void qn__model_close_adapters(qn_model *m)
{
    for (size_t i = 0; m->adapter_names && m->adapter_names[i]; i++)
        free(m->adapter_names[i]);
    free(m->adapter_names);
}

int qn_model_n_adapters(const qn_model *m)
{
    return m->decoder.n_adapters;
}

const char *qn_model_adapter_name(const qn_model *m, int i)
{
    return i >= 1 && i <= m->decoder.n_adapters ? m->adapter_names[i - 1] : NULL;
}

qn_status qn__model_adapter(const qn_model *m, int asked, int32_t *out, qn_error *err)
{
    int n = m->decoder.n_adapters;
    if (asked < QN_ADAPTER_NONE || asked > n)
        return qn__fail(err, QN_INVALID, "adapter %d; the model has %d", asked, n);
    *out = asked > 0 ? asked : asked == QN_ADAPTER_DEFAULT && n == 1;
    return QN_OK;
}
