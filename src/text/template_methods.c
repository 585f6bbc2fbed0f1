/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of dictionaries and lists in chat templates, and which method a name is. What would
 * change an object is refused when it is used, as in Jinja's immutable sandbox.
 */
#include "text/template.h"

static qn__value dict_get(qn__run *r, qn__value self, const qn__call *call)
{
    if (call->n < 1 || call->n > 2 || call->n_named)
        return qn__run_fail(r, "get expected 1 or 2 arguments, got %zu", call->n);
    const qn__entry *entry = qn__dict_find(r, self.dict, call->args[0]);
    if (r->failed)
        return qn__failed();
    return entry ? entry->value : call->n == 2 ? call->args[1] : qn__none();
}

static qn__value dict_items(qn__run *r, qn__value self, const qn__call *call)
{
    qn__pile pile = {0};
    (void)call;
    for (size_t i = 0; i < self.dict->n; i++)
        if (!qn__pile_push(r, &pile,
                           qn__pair(r, self.dict->entries[i].key, self.dict->entries[i].value)))
            return qn__failed();
    return qn__seq_new(r, QN__V_ITEMS, pile.items, pile.n);
}

static qn__value dict_keys(qn__run *r, qn__value self, const qn__call *call)
{
    qn__seq items;
    (void)call;
    return qn__items_of(r, self, &items) ? qn__seq_new(r, QN__V_KEYS, items.items, items.n)
                                         : qn__failed();
}

static qn__value dict_values(qn__run *r, qn__value self, const qn__call *call)
{
    qn__pile pile = {0};
    (void)call;
    for (size_t i = 0; i < self.dict->n; i++)
        if (!qn__pile_push(r, &pile, self.dict->entries[i].value))
            return qn__failed();
    return qn__seq_new(r, QN__V_VALUES, pile.items, pile.n);
}

static qn__value copy_of(qn__run *r, qn__value self, const qn__call *call)
{
    (void)r, (void)call;
    return self; /* nothing can change either */
}

static qn__value list_index(qn__run *r, qn__value self, const qn__call *call)
{
    for (size_t i = 0; call->n == 1 && i < self.seq->n && qn__run_spend(r, 1); i++)
        if (qn__equal(r, self.seq->items[i], call->args[0]))
            return qn__int((int64_t)i);
    return qn__run_fail(r, "the value is not in the list");
}

static qn__value list_count(qn__run *r, qn__value self, const qn__call *call)
{
    int64_t count = 0;
    for (size_t i = 0; call->n == 1 && i < self.seq->n && qn__run_spend(r, 1); i++)
        count += qn__equal(r, self.seq->items[i], call->args[0]);
    return qn__int(count);
}

static const qn__named_function dict_methods[] = {{"copy", copy_of},
                                                  {"get", dict_get},
                                                  {"items", dict_items},
                                                  {"keys", dict_keys},
                                                  {"values", dict_values}};

static const qn__named_function list_methods[] = {
    {"copy", copy_of}, {"count", list_count}, {"index", list_index}};

/* What the sandbox forbids. */
static bool is_unsafe(qn__value_kind kind, const qn__str *name)
{
    static const char *const of_lists[] = {"append", "clear",  "extend",  "insert",
                                           "pop",    "remove", "reverse", "sort"};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const char *const *names = kind == QN__V_LIST ? of_lists : of_dicts;
    size_t n = kind == QN__V_LIST ? 8 : kind == QN__V_DICT ? 5 : 0;
    for (size_t i = 0; i < n; i++)
        if (qn__str_is(name, names[i]))
            return true;
    return false;
}

qn__value qn__method_find(qn__run *r, qn__value self, const qn__str *name)
{
    const qn__named_function *found = NULL;
    if (self.kind == QN__V_STRING)
        found = qn__str_method_find(name);
    else if (self.kind == QN__V_DICT)
        found = qn__named_find(dict_methods, sizeof dict_methods / sizeof *dict_methods, name);
    else if (self.kind >= QN__V_LIST && self.kind <= QN__V_RANGE)
        found = qn__named_find(list_methods + (self.kind != QN__V_LIST),
                               3u - (self.kind != QN__V_LIST), name);
    if (is_unsafe(self.kind, name)) {
        char copy[16] = "";
        memcpy(copy, name->data, name->n < 15 ? name->n : 15);
        return qn__unsafe(r, self, copy);
    }
    return found ? qn__method_of(r, found, self) : (qn__value){.kind = QN__V_ABSENT};
}
