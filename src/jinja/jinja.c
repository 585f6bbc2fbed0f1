/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates: opening one from its source, and rendering it; see jinja.h.
 */
#include "jinja/jinja.h"

#include "base/hash.h"
#include "base/sized.h"
#include "base/utf8.h"
#include "base/buffers.h"

#include <stdlib.h>
#include <time.h>

enum { DEFAULT_STEPS = 20000000, DEFAULT_OUTPUT = 64 << 20, DEFAULT_MEMORY = 512 << 20 };

/* The caller's error may hold an older failure, and it may be NULL: what counts here is `own`. */
static qn_status pass_on(const qn_error *own, qn_error *err)
{
    return own->code == QN_OK ? QN_OK : qn__fail(err, own->code, "%s", own->message);
}

static qn_status open_template(qn_template **out, const char *name, const char *source, size_t n,
                               qn_error *err)
{
    if (n > QN__JINJA_LARGEST_SOURCE)
        return qn__fail(err, QN_LIMIT, "%s: the template has %zu bytes, more than the limit of %d",
                        name, n, QN__JINJA_LARGEST_SOURCE);
    size_t valid = qn__utf8_check(source, n);
    if (valid != n)
        return qn__fail(err, QN_FORMAT, "%s: the template is not valid UTF-8 at byte %zu", name,
                        valid);
    qn_template *t = calloc(1, sizeof *t);
    qn__jinja_parser *p = t ? calloc(1, sizeof *p) : NULL;
    if (p && (t->name = qn__arena_strndup(&t->arena, name, strlen(name)))) {
        if (qn__jinja_lexer_begin(&p->lexer, t->name, source, n, &t->arena, err))
            t->root = qn__jinja_parse(p);
    }
    if (!t || !t->root)
        qn__fail_memory(err, "a template"); /* keeps an earlier failure */
    free(p);
    if (err->code != QN_OK) {
        qn_template_free(t);
        return err->code;
    }
    *out = t;
    return QN_OK;
}

qn_status qn_template_new(qn_template **out, const char *name, const char *source, size_t n,
                          qn_error *err)
{
    qn_error own = {0};
    *out = NULL;
    open_template(out, name, source, n, &own);
    return pass_on(&own, err);
}

void qn_template_free(qn_template *t)
{
    if (!t)
        return;
    qn__arena_free(&t->arena);
    free(t);
}

static int64_t local_seconds(const qn_template_options *o)
{
    if (o && o->now)
        return o->now;
    time_t now = time(NULL);
    struct tm tm;
    return localtime_r(&now, &tm) ? (int64_t)now + tm.tm_gmtoff : (int64_t)now;
}

/* The context and, over it, what is trusted. */
static bool read_context(qn__jinja_run *r, const char *json, size_t n, const qn_template_options *o)
{
    qn__jinja_value v = qn__jinja_json_value(r, "the chat", json, n, true);
    if (v.kind != QN__JINJA_DICT) {
        if (!r->failed)
            qn__fail(r->err, QN_FORMAT, "the chat: expected a JSON object");
        return false;
    }
    r->context = v.dict;
    if (!o || !o->trusted)
        return true;
    v = qn__jinja_json_value(r, "the template's variables", o->trusted, strlen(o->trusted), false);
    for (size_t i = 0; v.kind == QN__JINJA_DICT && i < v.dict->n; i++)
        qn__jinja_dict_set(r, r->context, v.dict->entries[i].key, v.dict->entries[i].value);
    return !r->failed;
}

static bool give_out(qn__jinja_run *r, const qn__jinja_builder *b, qn_text *out, qn_spans *data)
{
    size_t before = out->n;
    if (!qn__text_append(out, b->data ? b->data : "", b->n)) {
        qn__fail_memory(r->err, "a chat");
        return false;
    }
    if (!data || b->n_spans == 0)
        return true;
    qn_span *grown = realloc(data->spans, (data->n + b->n_spans) * sizeof *grown);
    if (!grown) {
        out->n = before;
        qn__fail_memory(r->err, "a chat");
        return false;
    }
    data->spans = grown;
    for (size_t i = 0; i < b->n_spans; i++)
        grown[data->n++] = (qn_span){b->spans[i].begin + before, b->spans[i].end + before};
    return true;
}

qn_status qn_template_render(const qn_template *t, const char *json, size_t n,
                             const qn_template_options *options, qn_text *out, qn_spans *data,
                             qn_error *err)
{
    qn_error own = {0};
    qn_template_options given, *o = &given;
    if (qn__sized_in(&given, sizeof given, options, "qn_template_options", &own) != QN_OK)
        return pass_on(&own, err);
    qn__jinja_run r = {
        .source = t,
        .err = &own,
        .line = 1,
        .steps = o && o->steps ? o->steps : DEFAULT_STEPS,
        .memory = o && o->memory ? o->memory : DEFAULT_MEMORY,
        .output = o && o->output ? o->output : DEFAULT_OUTPUT,
        .drop_nulls = o && o->drop_nulls,
        .now = local_seconds(o),
        .seed = qn__hash_seed(),
        .input = {.kind = QN__JINJA_NONE},
    };
    qn__jinja_builder text;
    qn__jinja_scope scope = {0};
    qn__jinja_builder_begin(&text, &r);
    r.out = &text;
    r.scope = &scope;
    if (read_context(&r, json, n, o) && qn__jinja_exec(&r, t->root))
        give_out(&r, &text, out, data);
    else
        qn__fail_memory(&own, "a chat"); /* keeps an earlier failure */
    qn__arena_free(&r.arena);
    return pass_on(&own, err);
}

void qn_spans_free(qn_spans *spans)
{
    free(spans->spans);
    *spans = (qn_spans){0};
}
