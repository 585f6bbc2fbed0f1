/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of chat templates that make HTML and URLs. Text that is marked as safe (Markup) is not
 * escaped again. Autoescaping is off, as in transformers.
 */
#include "text/template.h"

#include <stdio.h>

static qn__value marked_safe(qn__run *r, qn__value s)
{
    qn__str *copy = s.kind == QN__V_STRING ? qn__run_alloc(r, sizeof *copy) : NULL;
    if (!copy)
        return qn__failed();
    *copy = *s.s;
    copy->safe = true;
    return qn__str_value(copy);
}

static qn__value escaped(qn__run *r, qn__value v, const qn__call *call, bool again)
{
    qn__value s = qn__bind(r, call, NULL, 0, NULL) ? qn__to_str(r, v) : qn__failed();
    qn__builder b;
    if (s.kind != QN__V_STRING || (s.s->safe && !again))
        return s;
    qn__builder_begin(&b, r);
    qn__build_escaped(&b, s.s);
    return marked_safe(r, qn__builder_end(&b));
}

static qn__value filter_safe(qn__run *r, qn__value v, const qn__call *call)
{
    return qn__bind(r, call, NULL, 0, NULL) ? marked_safe(r, qn__to_str(r, v)) : qn__failed();
}

static qn__value filter_escape(qn__run *r, qn__value v, const qn__call *call)
{
    return escaped(r, v, call, false);
}

static qn__value filter_forceescape(qn__run *r, qn__value v, const qn__call *call)
{
    return escaped(r, v, call, true);
}

/* Percent signs for all but letters, digits and "_.-~"; in a query also for "/", and "+" for " ".
 */
static bool build_quoted(qn__builder *b, qn__value v, bool query)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
    qn__value s = qn__to_str(b->run, v);
    for (size_t i = 0; s.kind == QN__V_STRING && i < s.s->n && !b->run->failed; i++) {
        unsigned char c = (unsigned char)s.s->data[i];
        char text[4];
        if (c && (strchr(plain, c) || (c == '/' && !query)))
            snprintf(text, sizeof text, "%c", c);
        else if (c == ' ' && query)
            snprintf(text, sizeof text, "+");
        else
            snprintf(text, sizeof text, "%%%02X", c);
        qn__build(b, text, strlen(text), qn__str_from_data(s.s, i));
    }
    return !b->run->failed;
}

static qn__value filter_urlencode(qn__run *r, qn__value v, const qn__call *call)
{
    qn__seq items, pair;
    qn__builder b;
    if (!qn__bind(r, call, NULL, 0, NULL))
        return qn__failed();
    qn__builder_begin(&b, r);
    if (v.kind == QN__V_STRING || !qn__is_iterable(v)) {
        build_quoted(&b, v, false);
        return qn__builder_end(&b);
    }
    if (!qn__items_of(r, v, &items))
        return qn__failed();
    for (size_t i = 0; i < items.n && qn__run_spend(r, 1); i++) {
        qn__value two[2] = {items.items[i]};
        if (v.kind == QN__V_DICT) {
            two[1] = v.dict->entries[i].value;
            pair = (qn__seq){.items = two, .n = 2};
        } else if (!qn__items_of(r, items.items[i], &pair)) {
            return qn__failed();
        }
        if (pair.n != 2)
            return qn__run_fail(r, "urlencode takes a mapping or pairs");
        if ((i == 0 || qn__build_text(&b, "&")) && build_quoted(&b, pair.items[0], true) &&
            qn__build_text(&b, "="))
            build_quoted(&b, pair.items[1], true);
    }
    return qn__builder_end(&b);
}

static qn__value filter_xmlattr(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"autospace"};
    qn__value space, value;
    qn__builder b;
    if (!qn__bind(r, call, names, 1, &space) || qn__refuse_undefined(r, v).kind == QN__V_FAILED)
        return qn__failed();
    if (v.kind != QN__V_DICT)
        return qn__run_fail(r, "'%s' object has no attribute 'items'", qn__type_name(v));
    bool gap = space.kind == QN__V_ABSENT || qn__truth(space);
    qn__builder_begin(&b, r);
    for (size_t i = 0; i < v.dict->n && qn__run_spend(r, 1); i++) {
        const qn__entry *entry = &v.dict->entries[i];
        if (entry->value.kind == QN__V_NONE || entry->value.kind == QN__V_UNDEFINED)
            continue;
        if (entry->key.kind != QN__V_STRING)
            return qn__run_fail(r, "xmlattr: the name of an attribute must be a string");
        const qn__str *key = entry->key.s;
        if (!qn__run_spend(r, key->n >> 3))
            return qn__failed();
        for (size_t k = 0; k < key->n; k++)
            if (key->data[k] && strchr(" \t\n\v\f\r/>=", key->data[k]))
                return qn__run_fail(r, "xmlattr: invalid character in the name of an attribute");
        value = qn__to_str(r, entry->value);
        if (r->failed || (gap && !qn__build_text(&b, " ")) || !qn__build_escaped(&b, key) ||
            !qn__build_text(&b, "=\"") ||
            !(value.s->safe ? qn__build_str(&b, value.s, 0, value.s->n)
                            : qn__build_escaped(&b, value.s)) ||
            !qn__build_text(&b, "\""))
            return qn__failed();
        gap = true;
    }
    return qn__builder_end(&b);
}

static const qn__named_function markup_filters[] = {
    {"e", filter_escape},  {"escape", filter_escape},       {"forceescape", filter_forceescape},
    {"safe", filter_safe}, {"urlencode", filter_urlencode}, {"xmlattr", filter_xmlattr},
};

const qn__named_function *qn__markup_filter_find(const qn__str *name)
{
    return qn__named_find(markup_filters, sizeof markup_filters / sizeof *markup_filters, name);
}
