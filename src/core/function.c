/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of arrays that are recorded once and called again.
 *
 * The first call with arguments of some shapes is an ordinary evaluation in a scope of its own,
 * which is kept with the binding that it found. The next one puts its arguments' buffers where the
 * first one's were and submits the binding: nothing is recorded, described or looked up.
 */
#include "base/error.h"
#include "core/device.h"
#include "core/scope.h"

#include <stdlib.h>

enum { MOST_RECORDINGS = 16 };

/* What a recording depends on of an argument. */
typedef struct form {
    int64_t shape[QN_MAX_NDIM], stride[QN_MAX_NDIM], offset;
    uint8_t dtype, ndim, layout, may_overwrite;
} form;

typedef struct recording {
    qn_scope *scope;
    qn__binding *binding; /* NULL: the results are arguments, or what was there before */
    form *forms;          /* [n_in] */
    qn_array **in, **out; /* nodes */
    struct recording *older;
} recording;

struct qn_function {
    qn_device *device;
    qn_recorder *record;
    void *user;
    int n_in, n_out;
    bool *donated;     /* [n_in] */
    form *forms;       /* [n_in] of the call under way */
    recording *newest; /* the most recently called first */
};

/* ---- making and closing --------------------------------------------------------------------- */

static void free_recording(recording *r)
{
    qn__binding_release(r->binding);
    qn_scope_end(r->scope);
    free(r);
}

void qn_function_close(qn_function *f)
{
    if (!f)
        return;
    for (recording *r = f->newest, *older; r; r = older) {
        older = r->older;
        free_recording(r);
    }
    qn_device_close(f->device);
    free(f);
}

qn_status qn_compile(qn_function **out, qn_device *device, qn_recorder *record, void *user,
                     int n_in, const bool *donated, int n_out, qn_error *err)
{
    *out = NULL;
    if (n_in < 0 || n_out < 1 || !device || !record)
        return qn__fail(err, QN_INVALID, "compile: a function of %d arrays that gives %d", n_in,
                        n_out);
    size_t n = (size_t)n_in;
    qn_function *f = calloc(1, sizeof *f + n * (sizeof *f->forms + sizeof *f->donated));
    if (!f)
        return qn__fail_memory(err, "a function");
    atomic_fetch_add(&device->refs, 1);
    *f = (qn_function){.device = device,
                       .record = record,
                       .user = user,
                       .n_in = n_in,
                       .n_out = n_out,
                       .forms = (form *)(f + 1)};
    f->donated = (bool *)(f->forms + n);
    for (size_t i = 0; i < n; i++)
        f->donated[i] = donated && donated[i];
    *out = f;
    return QN_OK;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Whether nobody but the caller refers to the array, so that the graph may overwrite it. */
static bool is_sole(qn_array *a)
{
    int refs = atomic_load_explicit(&a->buffer->refs, memory_order_acquire);
    int in_flight = atomic_load_explicit(&a->buffer->in_flight, memory_order_acquire);
    return refs == 1 + in_flight && atomic_load_explicit(&a->refs, memory_order_acquire) == 1;
}

static qn_status fill_forms(qn_function *f, qn_array *const *in, qn_error *err)
{
    memset(f->forms, 0, (size_t)f->n_in * sizeof *f->forms);
    for (int i = 0; i < f->n_in; i++) {
        qn_array *a = in[i];
        if (!a || a->scope || !a->buffer || a->buffer->device != f->device)
            return qn__fail(err, QN_INVALID, "call: argument %d is %s", i,
                            !a                       ? "NULL"
                            : a->scope || !a->buffer ? "not retained: qn_eval and qn_retain it"
                                                     : "on another device");
        form *of = &f->forms[i];
        memcpy(of->shape, a->shape, a->ndim * sizeof *a->shape);
        memcpy(of->stride, a->stride, a->ndim * sizeof *a->stride);
        of->offset = a->offset;
        of->dtype = a->dtype;
        of->ndim = a->ndim;
        of->layout = a->layout;
        of->may_overwrite = f->donated[i] && is_sole(a);
        for (int k = 0; k < i; k++)
            if (in[k] == a && (f->donated[k] || f->donated[i]))
                return qn__fail(err, QN_INVALID, "call: arguments %d and %d are one array, donated",
                                k, i);
    }
    return QN_OK;
}

/* The recording for such arguments, taken to the front; NULL: there is none yet. */
static recording *find_recording(qn_function *f)
{
    for (recording **p = &f->newest; *p; p = &(*p)->older) {
        recording *r = *p;
        if (memcmp(r->forms, f->forms, (size_t)f->n_in * sizeof *f->forms))
            continue;
        *p = r->older;
        r->older = f->newest;
        return f->newest = r;
    }
    return NULL;
}

/* ---- recording ------------------------------------------------------------------------------- */

static recording *new_recording(const qn_function *f)
{
    size_t n_in = (size_t)f->n_in, n_out = (size_t)f->n_out;
    recording *r = calloc(1, sizeof *r + n_in * sizeof *r->forms + (n_in + n_out) * sizeof *r->in);
    if (!r)
        return NULL;
    r->forms = (form *)(r + 1);
    r->in = (qn_array **)(r->forms + n_in);
    r->out = r->in + n_in;
    memcpy(r->forms, f->forms, n_in * sizeof *f->forms);
    r->scope = qn_scope_begin(f->device);
    if (!r->scope) {
        free(r);
        return NULL;
    }
    return r;
}

/* A leaf that the function donates would be overwritten again by every call. */
static void check_donations(const qn_function *f, const recording *r)
{
    for (qn_array *a = r->scope->last; a; a = a->previous) {
        bool argument = false;
        for (int i = 0; i < f->n_in && a->flags & QN__DONATED; i++)
            argument |= f->donated[i] && r->in[i] == a;
        if (a->flags & QN__DONATED && !argument)
            qn__scope_fail(r->scope, QN_INVALID,
                           "compile: the function donates an array; have it as an argument that is "
                           "donated");
    }
}

/* Brings the arguments in and records; false with the scope's error. */
static bool record(const qn_function *f, recording *r, qn_array *const *in)
{
    qn_scope *s = r->scope;
    for (int i = 0; i < f->n_in; i++) {
        r->in[i] = qn__argument(s, in[i], f->donated[i]);
        /* Another thread may let go of it meanwhile: what the recording does is what its form says.
         */
        if (r->in[i] && f->donated[i] && !r->forms[i].may_overwrite)
            r->in[i]->flags |= QN__KEPT;
    }
    s->is_compiled = true;
    if (s->error.code == QN_OK)
        f->record(f->user, s, r->in, r->out);
    s->is_compiled = false;
    for (int i = 0; i < f->n_out; i++)
        r->out[i] = qn__input(s, r->out[i], "compile");
    check_donations(f, r);
    return s->error.code == QN_OK;
}

/* ---- calling --------------------------------------------------------------------------------- */

/* Puts the arguments where those of the first call were. */
static void place_arguments(const qn_function *f, const recording *r, qn_array *const *in)
{
    for (int i = 0; i < f->n_in; i++)
        if (!r->in[i]->buffer)
            r->in[i]->buffer = qn__buffer_retain(in[i]->buffer);
}

static void drop_buffer(qn_array *node)
{
    if (node->buffer)
        qn__buffer_release(node->buffer);
    qn_release(node->origin);
    node->buffer = NULL;
    node->origin = NULL;
    node->flags &= (uint8_t)~QN__SPENT;
}

/* Takes arguments and results out, so that the recording keeps neither alive. */
static void drop_buffers(const qn_function *f, const recording *r)
{
    for (int i = 0; i < f->n_out; i++)
        if (r->out[i]->base->op != QN__LEAF_OP)
            drop_buffer(r->out[i]->base);
    for (int i = 0; i < f->n_in; i++)
        drop_buffer(r->in[i]);
}

static qn_status retain_results(const qn_function *f, const recording *r, qn_array **out)
{
    for (int i = 0; i < f->n_out; i++)
        out[i] = qn_retain(r->out[i]);
    if (r->scope->error.code == QN_OK)
        return QN_OK;
    for (int i = 0; i < f->n_out; i++) {
        qn_release(out[i]);
        out[i] = NULL;
    }
    return r->scope->error.code;
}

/* A recording is of no use once something in its scope has failed. */
static qn_status fail_recording(recording *r, qn_error *err)
{
    qn__fail(err, r->scope->error.code, "%s", r->scope->error.message);
    free_recording(r);
    return err->code;
}

static qn_status call_first(qn_function *f, qn_array *const *in, qn_array **out, qn_error *err)
{
    recording *r = new_recording(f);
    if (!r)
        return qn__fail_memory(err, "a recording");
    bool ran = record(f, r, in) &&
               qn__eval_first(r->scope, r->out, f->n_out, &r->binding) == QN_OK &&
               retain_results(f, r, out) == QN_OK;
    for (int i = 0; !ran && i < f->n_in; i++) /* they stay the caller's */
        if (f->donated[i] && r->in[i])
            qn_retain(r->in[i]->origin);
    if (!ran)
        return fail_recording(r, err);
    drop_buffers(f, r);
    r->older = f->newest;
    f->newest = r;
    recording **last = &f->newest;
    for (int i = 0; *last && i < MOST_RECORDINGS; i++)
        last = &(*last)->older;
    if (*last) {
        free_recording(*last);
        *last = NULL;
    }
    return QN_OK;
}

static qn_status call_again(qn_function *f, recording *r, qn_array *const *in, qn_array **out,
                            qn_error *err)
{
    place_arguments(f, r, in);
    if ((r->binding && qn__eval_again(r->scope, r->binding) != QN_OK) ||
        retain_results(f, r, out) != QN_OK) {
        f->newest = r->older;
        return fail_recording(r, err);
    }
    drop_buffers(f, r);
    for (int i = 0; i < f->n_in; i++)
        if (f->donated[i])
            qn_release(in[i]);
    return QN_OK;
}

qn_status qn_call(qn_function *f, qn_array *const *in, qn_array **out, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    for (int i = 0; i < f->n_out; i++)
        out[i] = NULL;
    if (fill_forms(f, in, err) != QN_OK)
        return err->code;
    recording *r = find_recording(f);
    return r ? call_again(f, r, in, out, err) : call_first(f, in, out, err);
}
