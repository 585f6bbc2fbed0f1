/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of dictionaries and lists in chat templates, and which method a name is. What would
 * change an object is refused when it is used, as in Jinja's immutable sandbox.
 */
#include "jinja/jinja.h"

static qn__jinja_value dict_get(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    if (call->n < 1 || call->n > 2 || call->n_named)
        return qn__jinja_run_fail(r, "get expected 1 or 2 arguments, got %zu", call->n);
    const qn__jinja_entry *entry = qn__jinja_dict_find(r, self.dict, call->args[0]);
    if (r->failed)
        return qn__jinja_failed();
    return entry ? entry->value : call->n == 2 ? call->args[1] : qn__jinja_none();
}

static qn__jinja_value dict_items(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    qn__jinja_pile pile = {0};
    (void)call;
    for (size_t i = 0; i < self.dict->n; i++)
        if (!qn__jinja_pile_push(
                r, &pile,
                qn__jinja_pair(r, self.dict->entries[i].key, self.dict->entries[i].value)))
            return qn__jinja_failed();
    return qn__jinja_seq_new(r, QN__JINJA_ITEMS, pile.items, pile.n);
}

static qn__jinja_value dict_keys(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    qn__jinja_seq items;
    (void)call;
    return qn__jinja_items_of(r, self, &items)
               ? qn__jinja_seq_new(r, QN__JINJA_KEYS, items.items, items.n)
               : qn__jinja_failed();
}

static qn__jinja_value dict_values(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    qn__jinja_pile pile = {0};
    (void)call;
    for (size_t i = 0; i < self.dict->n; i++)
        if (!qn__jinja_pile_push(r, &pile, self.dict->entries[i].value))
            return qn__jinja_failed();
    return qn__jinja_seq_new(r, QN__JINJA_VALUES, pile.items, pile.n);
}

static qn__jinja_value copy_of(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    (void)r, (void)call;
    return self; /* nothing can change either */
}

static qn__jinja_value list_index(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    for (size_t i = 0; call->n == 1 && i < self.seq->n && qn__jinja_run_spend(r, 1); i++)
        if (qn__jinja_equal(r, self.seq->items[i], call->args[0]))
            return qn__jinja_int((int64_t)i);
    return qn__jinja_run_fail(r, "the value is not in the list");
}

static qn__jinja_value list_count(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    int64_t count = 0;
    for (size_t i = 0; call->n == 1 && i < self.seq->n && qn__jinja_run_spend(r, 1); i++)
        count += qn__jinja_equal(r, self.seq->items[i], call->args[0]);
    return qn__jinja_int(count);
}

static const qn__jinja_named_function dict_methods[] = {{"copy", copy_of},
                                                        {"get", dict_get},
                                                        {"items", dict_items},
                                                        {"keys", dict_keys},
                                                        {"values", dict_values}};

static const qn__jinja_named_function list_methods[] = {
    {"copy", copy_of}, {"count", list_count}, {"index", list_index}};

/* What the sandbox forbids. */
static bool is_unsafe(qn__jinja_value_kind kind, const qn__jinja_str *name)
{
    static const char *const of_lists[] = {"append", "clear",  "extend",  "insert",
                                           "pop",    "remove", "reverse", "sort"};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const char *const *names = kind == QN__JINJA_LIST ? of_lists : of_dicts;
    size_t n = kind == QN__JINJA_LIST ? 8 : kind == QN__JINJA_DICT ? 5 : 0;
    for (size_t i = 0; i < n; i++)
        if (qn__jinja_str_is(name, names[i]))
            return true;
    return false;
}

qn__jinja_value qn__jinja_method_find(qn__jinja_run *r, qn__jinja_value self,
                                      const qn__jinja_str *name)
{
    const qn__jinja_named_function *found = NULL;
    if (self.kind == QN__JINJA_STRING)
        found = qn__jinja_str_method_find(name);
    else if (self.kind == QN__JINJA_DICT)
        found =
            qn__jinja_named_find(dict_methods, sizeof dict_methods / sizeof *dict_methods, name);
    else if (self.kind >= QN__JINJA_LIST && self.kind <= QN__JINJA_RANGE)
        found = qn__jinja_named_find(list_methods + (self.kind != QN__JINJA_LIST),
                                     3u - (self.kind != QN__JINJA_LIST), name);
    if (is_unsafe(self.kind, name)) {
        char copy[16] = "";
        memcpy(copy, name->data, name->n < 15 ? name->n : 15);
        return qn__jinja_unsafe(r, self, copy);
    }
    return found ? qn__jinja_method_of(r, found, self)
                 : (qn__jinja_value){.kind = QN__JINJA_ABSENT};
}
