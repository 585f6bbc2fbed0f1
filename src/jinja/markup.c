/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of chat templates that make HTML and URLs. Text that is marked as safe (Markup) is not
 * escaped again. Autoescaping is off, as in transformers.
 */
#include "jinja/jinja.h"

#include <stdio.h>

static qn__jinja_value marked_safe(qn__jinja_run *r, qn__jinja_value s)
{
    qn__jinja_str *copy = s.kind == QN__JINJA_STRING ? qn__jinja_run_alloc(r, sizeof *copy) : NULL;
    if (!copy)
        return qn__jinja_failed();
    *copy = *s.s;
    copy->safe = true;
    return qn__jinja_str_value(copy);
}

static qn__jinja_value escaped(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call,
                               bool again)
{
    qn__jinja_value s =
        qn__jinja_bind(r, call, NULL, 0, NULL) ? qn__jinja_to_str(r, v) : qn__jinja_failed();
    qn__jinja_builder b;
    if (s.kind != QN__JINJA_STRING || (s.s->safe && !again))
        return s;
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_escaped(&b, s.s);
    return marked_safe(r, qn__jinja_builder_end(&b));
}

static qn__jinja_value filter_safe(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    return qn__jinja_bind(r, call, NULL, 0, NULL) ? marked_safe(r, qn__jinja_to_str(r, v))
                                                  : qn__jinja_failed();
}

static qn__jinja_value filter_escape(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    return escaped(r, v, call, false);
}

static qn__jinja_value filter_forceescape(qn__jinja_run *r, qn__jinja_value v,
                                          const qn__jinja_call *call)
{
    return escaped(r, v, call, true);
}

/* Percent signs for all but letters, digits and "_.-~"; in a query also for "/", and "+" for " ".
 */
static bool build_quoted(qn__jinja_builder *b, qn__jinja_value v, bool query)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
    qn__jinja_value s = qn__jinja_to_str(b->run, v);
    for (size_t i = 0; s.kind == QN__JINJA_STRING && i < s.s->n && !b->run->failed; i++) {
        unsigned char c = (unsigned char)s.s->data[i];
        char text[4];
        if (c && (strchr(plain, c) || (c == '/' && !query)))
            snprintf(text, sizeof text, "%c", c);
        else if (c == ' ' && query)
            snprintf(text, sizeof text, "+");
        else
            snprintf(text, sizeof text, "%%%02X", c);
        qn__jinja_build(b, text, strlen(text), qn__jinja_str_from_data(s.s, i));
    }
    return !b->run->failed;
}

static qn__jinja_value filter_urlencode(qn__jinja_run *r, qn__jinja_value v,
                                        const qn__jinja_call *call)
{
    qn__jinja_seq items, pair;
    qn__jinja_builder b;
    if (!qn__jinja_bind(r, call, NULL, 0, NULL))
        return qn__jinja_failed();
    qn__jinja_builder_begin(&b, r);
    if (v.kind == QN__JINJA_STRING || !qn__jinja_is_iterable(v)) {
        build_quoted(&b, v, false);
        return qn__jinja_builder_end(&b);
    }
    if (!qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    for (size_t i = 0; i < items.n && qn__jinja_run_spend(r, 1); i++) {
        qn__jinja_value two[2] = {items.items[i]};
        if (v.kind == QN__JINJA_DICT) {
            two[1] = v.dict->entries[i].value;
            pair = (qn__jinja_seq){.items = two, .n = 2};
        } else if (!qn__jinja_items_of(r, items.items[i], &pair)) {
            return qn__jinja_failed();
        }
        if (pair.n != 2)
            return qn__jinja_run_fail(r, "urlencode takes a mapping or pairs");
        if ((i == 0 || qn__jinja_build_text(&b, "&")) && build_quoted(&b, pair.items[0], true) &&
            qn__jinja_build_text(&b, "="))
            build_quoted(&b, pair.items[1], true);
    }
    return qn__jinja_builder_end(&b);
}

static qn__jinja_value filter_xmlattr(qn__jinja_run *r, qn__jinja_value v,
                                      const qn__jinja_call *call)
{
    static const char *const names[] = {"autospace"};
    qn__jinja_value space, value;
    qn__jinja_builder b;
    if (!qn__jinja_bind(r, call, names, 1, &space) ||
        qn__jinja_refuse_undefined(r, v).kind == QN__JINJA_FAILED)
        return qn__jinja_failed();
    if (v.kind != QN__JINJA_DICT)
        return qn__jinja_run_fail(r, "'%s' object has no attribute 'items'",
                                  qn__jinja_type_name(v));
    bool gap = space.kind == QN__JINJA_ABSENT || qn__jinja_truth(space);
    qn__jinja_builder_begin(&b, r);
    for (size_t i = 0; i < v.dict->n && qn__jinja_run_spend(r, 1); i++) {
        const qn__jinja_entry *entry = &v.dict->entries[i];
        if (entry->value.kind == QN__JINJA_NONE || entry->value.kind == QN__JINJA_UNDEFINED)
            continue;
        if (entry->key.kind != QN__JINJA_STRING)
            return qn__jinja_run_fail(r, "xmlattr: the name of an attribute must be a string");
        const qn__jinja_str *key = entry->key.s;
        if (!qn__jinja_run_spend(r, key->n >> 3))
            return qn__jinja_failed();
        for (size_t k = 0; k < key->n; k++)
            if (key->data[k] && strchr(" \t\n\v\f\r/>=", key->data[k]))
                return qn__jinja_run_fail(r,
                                          "xmlattr: invalid character in the name of an attribute");
        value = qn__jinja_to_str(r, entry->value);
        if (r->failed || (gap && !qn__jinja_build_text(&b, " ")) ||
            !qn__jinja_build_escaped(&b, key) || !qn__jinja_build_text(&b, "=\"") ||
            !(value.s->safe ? qn__jinja_build_str(&b, value.s, 0, value.s->n)
                            : qn__jinja_build_escaped(&b, value.s)) ||
            !qn__jinja_build_text(&b, "\""))
            return qn__jinja_failed();
        gap = true;
    }
    return qn__jinja_builder_end(&b);
}

static const qn__jinja_named_function markup_filters[] = {
    {"e", filter_escape},  {"escape", filter_escape},       {"forceescape", filter_forceescape},
    {"safe", filter_safe}, {"urlencode", filter_urlencode}, {"xmlattr", filter_xmlattr},
};

const qn__jinja_named_function *qn__jinja_markup_filter_find(const qn__jinja_str *name)
{
    return qn__jinja_named_find(markup_filters, sizeof markup_filters / sizeof *markup_filters,
                                name);
}
