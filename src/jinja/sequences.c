/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of chat templates over sequences and mappings, by Jinja's rules. map, select and their
 * relatives make generators: they can be iterated once, and have no length and no items.
 */
#include "jinja/jinja.h"

#include "base/utf8.h"

#include <stdio.h>

static qn__jinja_value filter_length(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    if (!qn__jinja_bind(r, call, NULL, 0, NULL))
        return qn__jinja_failed();
    if (v.kind == QN__JINJA_STRING)
        return qn__jinja_run_spend(r, v.s->n >> 6)
                   ? qn__jinja_int((int64_t)qn__jinja_length_of(v.s))
                   : qn__jinja_failed();
    if (v.kind == QN__JINJA_DICT)
        return qn__jinja_int((int64_t)v.dict->n);
    if (v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_int(0);
    if (v.kind == QN__JINJA_LOOP)
        return qn__jinja_int((int64_t)v.loop->items.n);
    if (!qn__jinja_is_seq(v) || v.kind == QN__JINJA_GENERATOR)
        return qn__jinja_run_fail(r, "object of type '%s' has no len()", qn__jinja_type_name(v));
    return qn__jinja_int((int64_t)v.seq->n);
}

static qn__jinja_value filter_list(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    qn__jinja_seq items;
    if (!qn__jinja_bind(r, call, NULL, 0, NULL) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    return qn__jinja_seq_new(r, QN__JINJA_LIST, items.items, items.n);
}

static qn__jinja_value end_item(qn__jinja_run *r, qn__jinja_value v, bool last)
{
    qn__jinja_seq items;
    if (!qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    if (items.n == 0)
        return qn__jinja_undefined_message(
            r, "there is no first or last item: the sequence was empty");
    return items.items[last ? items.n - 1 : 0];
}

static qn__jinja_value filter_first(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    return end_item(r, v, false);
}

static qn__jinja_value filter_last(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    if (v.kind == QN__JINJA_GENERATOR)
        return qn__jinja_run_fail(r, "'generator' object is not reversible");
    return end_item(r, v, true);
}

static qn__jinja_value filter_reverse(qn__jinja_run *r, qn__jinja_value v,
                                      const qn__jinja_call *call)
{
    qn__jinja_seq items;
    qn__jinja_pile pile = {0};
    (void)call;
    if (!qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    for (size_t i = items.n; i > 0; i--)
        if (!qn__jinja_pile_push(r, &pile, items.items[i - 1]))
            return qn__jinja_failed();
    if (v.kind != QN__JINJA_STRING)
        return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, pile.items, pile.n);
    qn__jinja_value list = qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n);
    return r->failed ? qn__jinja_failed()
                     : qn__jinja_join(r, list, &(qn__jinja_str){.data = ""}, true);
}

static qn__jinja_value filter_items(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    qn__jinja_pile pile = {0};
    (void)call;
    if (v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, NULL, 0);
    if (v.kind != QN__JINJA_DICT)
        return qn__jinja_run_fail(r, "Can only get item pairs from a mapping.");
    for (size_t i = 0; i < v.dict->n; i++)
        if (!qn__jinja_pile_push(
                r, &pile, qn__jinja_pair(r, v.dict->entries[i].key, v.dict->entries[i].value)))
            return qn__jinja_failed();
    return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, pile.items, pile.n);
}

/* ---- attributes ----------------------------------------------------------------------------- */

/* "a.b.0" or an index, as map(attribute=) and sort(attribute=) take it; what is undefined on the
 * way becomes `otherwise`, where that is given. */
static qn__jinja_value get_path_or(qn__jinja_run *r, qn__jinja_value v, qn__jinja_value path,
                                   qn__jinja_value otherwise)
{
    bool replace = otherwise.kind > QN__JINJA_NONE;
    if (path.kind != QN__JINJA_STRING) {
        v = qn__jinja_item(r, v, path);
        return replace && v.kind == QN__JINJA_UNDEFINED ? otherwise : v;
    }
    for (size_t at = 0; at <= path.s->n && qn__jinja_run_spend(r, 1);) {
        const char *dot = path.s->n > at ? memchr(path.s->data + at, '.', path.s->n - at) : NULL;
        size_t end = dot ? (size_t)(dot - path.s->data) : path.s->n, i = at;
        int64_t index = 0;
        for (; i < end && path.s->data[i] >= '0' && path.s->data[i] <= '9' && i - at < 10; i++)
            index = index * 10 + (path.s->data[i] - '0');
        v = qn__jinja_item(r, v,
                           i == end && end > at ? qn__jinja_int(index)
                                                : qn__jinja_substring(r, path.s, at, end));
        if (replace && v.kind == QN__JINJA_UNDEFINED)
            v = otherwise;
        at = end + 1;
    }
    return v;
}

static qn__jinja_value get_path(qn__jinja_run *r, qn__jinja_value v, qn__jinja_value path)
{
    return get_path_or(r, v, path, qn__jinja_none());
}

static qn__jinja_value filter_join(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"d", "attribute"};
    qn__jinja_value a[2], separator;
    qn__jinja_seq items;
    if (!qn__jinja_bind(r, call, names, 2, a))
        return qn__jinja_failed();
    separator = a[0].kind == QN__JINJA_ABSENT ? qn__jinja_text(r, "") : qn__jinja_to_str(r, a[0]);
    if (a[1].kind > QN__JINJA_NONE) {
        qn__jinja_pile pile = {0};
        if (!qn__jinja_items_of(r, v, &items))
            return qn__jinja_failed();
        for (size_t i = 0; i < items.n; i++)
            if (!qn__jinja_pile_push(r, &pile, get_path(r, items.items[i], a[1])))
                return qn__jinja_failed();
        v = qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n);
    }
    return r->failed ? qn__jinja_failed() : qn__jinja_join(r, v, separator.s, false);
}

/* ---- order ---------------------------------------------------------------------------------- */

typedef struct order_key {
    qn__jinja_value key, value;
} order_key;

static qn__jinja_value fold_case(qn__jinja_run *r, qn__jinja_value v, bool case_sensitive)
{
    if (v.kind != QN__JINJA_STRING || case_sensitive)
        return v;
    return qn__jinja_change_case(r, v.s, QN__TO_LOWER, QN__TO_LOWER, false);
}

/* Keys in lists order as lists do: equal ones need no order, so that [none, none] has one. */
static bool comes_first(qn__jinja_run *r, const order_key *a, const order_key *b, bool reverse)
{
    return (reverse ? qn__jinja_order(r, a->key, b->key, "<")
                    : qn__jinja_order(r, b->key, a->key, "<")) != -1;
}

/* The values of "a,b.c" as a list, strings folded. */
static qn__jinja_value multiple_key(qn__jinja_run *r, qn__jinja_value v, qn__jinja_value attribute,
                                    bool case_sensitive)
{
    qn__jinja_pile pile = {0};
    const qn__jinja_str *s = attribute.s;
    for (size_t at = 0, end; at <= s->n && !r->failed; at = end + 1) {
        const char *comma = s->n > at ? memchr(s->data + at, ',', s->n - at) : NULL;
        end = comma ? (size_t)(comma - s->data) : s->n;
        qn__jinja_value key = get_path(r, v, qn__jinja_substring(r, s, at, end));
        qn__jinja_pile_push(r, &pile, r->failed ? key : fold_case(r, key, case_sensitive));
    }
    return qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n);
}

static qn__jinja_value list_of_one(qn__jinja_run *r, qn__jinja_value v)
{
    qn__jinja_value *one = qn__jinja_run_alloc(r, sizeof *one);
    if (!one)
        return qn__jinja_failed();
    *one = v;
    return qn__jinja_seq_new(r, QN__JINJA_LIST, one, 1);
}

/* Merge sort: stable, and it may stop in the middle. The result is in *keys. */
static bool sort_keys(qn__jinja_run *r, order_key **keys, size_t n, bool reverse)
{
    order_key *a = *keys, *b = qn__jinja_run_alloc(r, (n + 1) * sizeof *b);
    for (size_t width = 1; b && width < n; width *= 2) {
        for (size_t low = 0; low < n && qn__jinja_run_spend(r, 2 * width); low += 2 * width) {
            size_t middle = low + width < n ? low + width : n;
            size_t high = low + 2 * width < n ? low + 2 * width : n, i = low, j = middle;
            for (size_t k = low; k < high && !r->failed; k++) {
                bool left = i < middle && (j == high || comes_first(r, &a[i], &a[j], reverse));
                b[k] = left ? a[i++] : a[j++];
            }
        }
        order_key *swap = a;
        a = b;
        b = swap;
    }
    *keys = a;
    return !r->failed;
}

/* in_lists: the keys are compared as lists of them. */
static qn__jinja_value sorted_list(qn__jinja_run *r, qn__jinja_seq items, qn__jinja_value attribute,
                                   bool case_sensitive, bool reverse, bool in_lists)
{
    order_key *keys = qn__jinja_run_alloc(r, (items.n + 1) * sizeof *keys);
    qn__jinja_value *out = qn__jinja_run_alloc(r, (items.n + 1) * sizeof *out);
    for (size_t i = 0; out && i < items.n && !r->failed; i++) {
        qn__jinja_value key = items.items[i];
        if (attribute.kind == QN__JINJA_STRING)
            key = multiple_key(r, key, attribute, case_sensitive);
        else if (attribute.kind > QN__JINJA_NONE)
            key = get_path(r, key, attribute);
        keys[i] = (order_key){fold_case(r, key, case_sensitive), items.items[i]};
        if (in_lists && attribute.kind != QN__JINJA_STRING)
            keys[i].key = list_of_one(r, keys[i].key);
    }
    if (!out || r->failed || !sort_keys(r, &keys, items.n, reverse))
        return qn__jinja_failed();
    for (size_t i = 0; i < items.n; i++)
        out[i] = keys[i].value;
    return qn__jinja_seq_new(r, QN__JINJA_LIST, out, items.n);
}

static qn__jinja_value filter_sort(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute"};
    qn__jinja_value a[3];
    qn__jinja_seq items;
    if (!qn__jinja_bind(r, call, names, 3, a) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    return sorted_list(r, items, a[2], qn__jinja_truth(a[1]), qn__jinja_truth(a[0]), true);
}

static qn__jinja_value filter_dictsort(qn__jinja_run *r, qn__jinja_value v,
                                       const qn__jinja_call *call)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse"};
    qn__jinja_value a[3];
    qn__jinja_pile pile = {0};
    if (!qn__jinja_bind(r, call, names, 3, a) ||
        qn__jinja_refuse_undefined(r, v).kind == QN__JINJA_FAILED)
        return qn__jinja_failed();
    if (v.kind != QN__JINJA_DICT)
        return qn__jinja_run_fail(r, "'%s' object has no attribute 'items'",
                                  qn__jinja_type_name(v));
    bool by_value = a[1].kind == QN__JINJA_STRING && qn__jinja_str_is(a[1].s, "value");
    if (!by_value && a[1].kind != QN__JINJA_ABSENT &&
        !(a[1].kind == QN__JINJA_STRING && qn__jinja_str_is(a[1].s, "key")))
        return qn__jinja_run_fail(r, "You can only sort by either \"key\" or \"value\"");
    for (size_t i = 0; i < v.dict->n; i++)
        if (!qn__jinja_pile_push(
                r, &pile, qn__jinja_pair(r, v.dict->entries[i].key, v.dict->entries[i].value)))
            return qn__jinja_failed();
    return sorted_list(r, (qn__jinja_seq){.items = pile.items, .n = pile.n},
                       qn__jinja_int(by_value), qn__jinja_truth(a[0]), qn__jinja_truth(a[2]),
                       false);
}

static qn__jinja_value extreme(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call,
                               int wanted)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    qn__jinja_value a[2], best, best_key = {.kind = QN__JINJA_ABSENT};
    qn__jinja_seq items;
    if (!qn__jinja_bind(r, call, names, 2, a) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    if (items.n == 0)
        return qn__jinja_undefined_message(r, "no aggregated item, the sequence was empty");
    best = items.items[0];
    for (size_t i = 0; i < items.n && qn__jinja_run_spend(r, 1); i++) {
        qn__jinja_value key =
            a[1].kind > QN__JINJA_NONE ? get_path(r, items.items[i], a[1]) : items.items[i];
        key = fold_case(r, key, qn__jinja_truth(a[0]));
        if (r->failed)
            break;
        if (best_key.kind == QN__JINJA_ABSENT ||
            qn__jinja_order(r, key, best_key, wanted < 0 ? "<" : ">") == wanted) {
            best = items.items[i];
            best_key = key;
        }
    }
    return r->failed ? qn__jinja_failed() : best;
}

static qn__jinja_value filter_min(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    return extreme(r, v, call, -1);
}

static qn__jinja_value filter_max(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    return extreme(r, v, call, 1);
}

static qn__jinja_value filter_sum(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"attribute", "start"};
    qn__jinja_value a[2];
    qn__jinja_seq items;
    if (!qn__jinja_bind(r, call, names, 2, a) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    qn__jinja_value sum = a[1].kind == QN__JINJA_ABSENT ? qn__jinja_int(0) : a[1];
    for (size_t i = 0; i < items.n && qn__jinja_run_spend(r, 1); i++)
        sum = qn__jinja_binary(r, QN__JINJA_OP_ADD, sum,
                               a[0].kind > QN__JINJA_NONE ? get_path(r, items.items[i], a[0])
                                                          : items.items[i]);
    return r->failed ? qn__jinja_failed() : sum;
}

static qn__jinja_value filter_unique(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    qn__jinja_value a[2];
    qn__jinja_seq items;
    qn__jinja_pile pile = {0};
    if (!qn__jinja_bind(r, call, names, 2, a) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    qn__jinja_dict *seen = qn__jinja_dict_new(r, 0);
    for (size_t i = 0; seen && i < items.n && !r->failed; i++) {
        qn__jinja_value key =
            a[1].kind > QN__JINJA_NONE ? get_path(r, items.items[i], a[1]) : items.items[i];
        key = fold_case(r, key, qn__jinja_truth(a[0]));
        if (r->failed || qn__jinja_dict_find(r, seen, key))
            continue;
        if (qn__jinja_dict_set(r, seen, key, qn__jinja_none()))
            qn__jinja_pile_push(r, &pile, items.items[i]);
    }
    return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, pile.items, pile.n);
}

/* ---- map, select, reject -------------------------------------------------------------------- */

static qn__jinja_value named_argument(const qn__jinja_call *call, const char *name)
{
    for (size_t i = 0; i < call->n_named; i++)
        if (qn__jinja_str_is(call->names[i], name))
            return call->named[i];
    return (qn__jinja_value){.kind = QN__JINJA_ABSENT};
}

/* The filter or test that args[at] names; false: there is none. */
static const qn__jinja_named_function *named_function(qn__jinja_run *r, const qn__jinja_call *call,
                                                      size_t at, bool test, char name[64])
{
    if (call->args[at].kind != QN__JINJA_STRING) {
        qn__jinja_run_fail(r, "%s: the name of a %s must be a string", call->name,
                           test ? "test" : "filter");
        return NULL;
    }
    const qn__jinja_str *s = call->args[at].s;
    const qn__jinja_named_function *found =
        test ? qn__jinja_test_find(s) : qn__jinja_filter_find(s);
    qn__utf8_quote(name, 64, s->data, s->n);
    if (!found)
        qn__jinja_run_fail(r, "No %s named '%s' found.", test ? "test" : "filter", name);
    return found;
}

/* Here what is false is empty, none as well. */
static bool some_items(qn__jinja_run *r, qn__jinja_value v, qn__jinja_seq *items)
{
    *items = (qn__jinja_seq){0};
    return !qn__jinja_truth(v) ? !r->failed : qn__jinja_items_of(r, v, items);
}

static qn__jinja_value filter_map(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    qn__jinja_value attribute = named_argument(call, "attribute"),
                    otherwise = named_argument(call, "default");
    const qn__jinja_named_function *function = NULL;
    char name[64] = "";
    qn__jinja_seq items;
    qn__jinja_pile pile = {0};
    bool by_attribute = call->n == 0 && attribute.kind != QN__JINJA_ABSENT;
    if (!by_attribute && call->n == 0)
        return qn__jinja_run_fail(r, "map requires a filter argument");
    if (by_attribute && call->n_named > 1u + (otherwise.kind != QN__JINJA_ABSENT))
        return qn__jinja_run_fail(r, "map takes attribute and default alone");
    if (!by_attribute && !(function = named_function(r, call, 0, false, name)))
        return qn__jinja_failed();
    if (!some_items(r, v, &items))
        return qn__jinja_failed();
    qn__jinja_call inner = {name,        call->args + 1, call->n - 1,
                            call->names, call->named,    call->n_named};
    for (size_t i = 0; i < items.n && !r->failed; i++) {
        qn__jinja_value one = by_attribute ? get_path_or(r, items.items[i], attribute, otherwise)
                                           : function->call(r, items.items[i], &inner);
        qn__jinja_pile_push(r, &pile, one);
    }
    return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, pile.items, pile.n);
}

static qn__jinja_value choose(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call,
                              bool by_attribute, bool keep)
{
    const qn__jinja_named_function *test = NULL;
    char name[64] = "";
    qn__jinja_seq items;
    qn__jinja_pile pile = {0};
    size_t at = by_attribute;
    if (by_attribute && call->n == 0)
        return qn__jinja_run_fail(r, "Missing parameter for attribute name");
    if (call->n > at && !(test = named_function(r, call, at, true, name)))
        return qn__jinja_failed();
    if (!some_items(r, v, &items))
        return qn__jinja_failed();
    size_t used = call->n > at ? at + 1 : at;
    qn__jinja_call inner = {name,        call->args + used, call->n - used,
                            call->names, call->named,       call->n_named};
    for (size_t i = 0; i < items.n && !r->failed; i++) {
        qn__jinja_value one =
            by_attribute ? get_path(r, items.items[i], call->args[0]) : items.items[i];
        if (r->failed)
            break;
        qn__jinja_value holds =
            test ? test->call(r, one, &inner) : qn__jinja_bool(qn__jinja_truth(one));
        if (!r->failed && qn__jinja_truth(holds) == keep)
            qn__jinja_pile_push(r, &pile, items.items[i]);
    }
    return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, pile.items, pile.n);
}

static qn__jinja_value filter_select(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    return choose(r, v, call, false, true);
}

static qn__jinja_value filter_reject(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    return choose(r, v, call, false, false);
}

static qn__jinja_value filter_selectattr(qn__jinja_run *r, qn__jinja_value v,
                                         const qn__jinja_call *call)
{
    return choose(r, v, call, true, true);
}

static qn__jinja_value filter_rejectattr(qn__jinja_run *r, qn__jinja_value v,
                                         const qn__jinja_call *call)
{
    return choose(r, v, call, true, false);
}

static qn__jinja_value filter_batch(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"linecount", "fill_with"};
    qn__jinja_value a[2];
    int64_t count = 0;
    qn__jinja_seq items;
    qn__jinja_pile pile = {0};
    if (!qn__jinja_bind(r, call, names, 2, a) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    if (!qn__jinja_as_int(a[0], &count) || count < 1)
        return qn__jinja_run_fail(r, "batch takes a count of at least 1");
    for (size_t i = 0; i < items.n; i += (size_t)count) {
        qn__jinja_pile row = {0};
        for (size_t k = i; k < i + (size_t)count && !r->failed; k++)
            if (k < items.n || a[1].kind > QN__JINJA_NONE)
                qn__jinja_pile_push(r, &row, k < items.n ? items.items[k] : a[1]);
            else
                break;
        if (!qn__jinja_pile_push(r, &pile, qn__jinja_seq_new(r, QN__JINJA_LIST, row.items, row.n)))
            return qn__jinja_failed();
    }
    return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, pile.items, pile.n);
}

static qn__jinja_value filter_slice(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"slices", "fill_with"};
    qn__jinja_value a[2];
    int64_t count = 0;
    qn__jinja_seq items;
    qn__jinja_pile pile = {0};
    if (!qn__jinja_bind(r, call, names, 2, a) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    if (!qn__jinja_as_int(a[0], &count) || count < 1)
        return qn__jinja_run_fail(r, "slice takes a count of at least 1");
    size_t at = 0, each = items.n / (size_t)count, longer = items.n % (size_t)count;
    for (size_t i = 0; i < (size_t)count; i++) {
        qn__jinja_pile row = {0};
        for (size_t k = 0; k < each + (i < longer) && !r->failed; k++)
            qn__jinja_pile_push(r, &row, items.items[at++]);
        if (a[1].kind > QN__JINJA_NONE && i >= longer)
            qn__jinja_pile_push(r, &row, a[1]);
        if (!qn__jinja_pile_push(r, &pile, qn__jinja_seq_new(r, QN__JINJA_LIST, row.items, row.n)))
            return qn__jinja_failed();
    }
    return qn__jinja_seq_new(r, QN__JINJA_GENERATOR, pile.items, pile.n);
}

/* A pair of a group's key and its items, which also have names. */
static qn__jinja_value make_group(qn__jinja_run *r, qn__jinja_value key, const order_key *members,
                                  size_t n)
{
    qn__jinja_pile pile = {0};
    for (size_t i = 0; i < n; i++)
        qn__jinja_pile_push(r, &pile, members[i].value);
    qn__jinja_value group =
        qn__jinja_pair(r, key, qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n));
    if (r->failed)
        return qn__jinja_failed();
    group.seq->is_group = true;
    return group;
}

static qn__jinja_value filter_groupby(qn__jinja_run *r, qn__jinja_value v,
                                      const qn__jinja_call *call)
{
    static const char *const names[] = {"attribute", "default", "case_sensitive"};
    qn__jinja_value a[3];
    qn__jinja_seq items;
    qn__jinja_pile pile = {0};
    if (!qn__jinja_bind(r, call, names, 3, a) || !qn__jinja_items_of(r, v, &items))
        return qn__jinja_failed();
    if (a[0].kind == QN__JINJA_ABSENT)
        return qn__jinja_run_fail(r, "groupby takes an attribute");
    order_key *keys = qn__jinja_run_alloc(r, (items.n + 1) * sizeof *keys);
    for (size_t i = 0; keys && i < items.n && !r->failed; i++) {
        qn__jinja_value key = get_path_or(r, items.items[i], a[0], a[1]);
        keys[i] = (order_key){fold_case(r, key, qn__jinja_truth(a[2])), items.items[i]};
    }
    if (!keys || r->failed || !sort_keys(r, &keys, items.n, false))
        return qn__jinja_failed();
    for (size_t i = 0, end; i < items.n; i = end) {
        for (end = i + 1; end < items.n && qn__jinja_equal(r, keys[i].key, keys[end].key);)
            end++;
        qn__jinja_value key = get_path_or(r, keys[i].value, a[0], a[1]);
        if (r->failed || !qn__jinja_pile_push(r, &pile, make_group(r, key, &keys[i], end - i)))
            return qn__jinja_failed();
    }
    return qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n);
}

static const qn__jinja_named_function sequence_filters[] = {
    {"batch", filter_batch},     {"count", filter_length},    {"dictsort", filter_dictsort},
    {"first", filter_first},     {"groupby", filter_groupby}, {"items", filter_items},
    {"join", filter_join},       {"last", filter_last},       {"length", filter_length},
    {"list", filter_list},       {"map", filter_map},         {"max", filter_max},
    {"min", filter_min},         {"reject", filter_reject},   {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse}, {"select", filter_select},   {"selectattr", filter_selectattr},
    {"slice", filter_slice},     {"sort", filter_sort},       {"sum", filter_sum},
    {"unique", filter_unique},
};

const qn__jinja_named_function *qn__jinja_sequence_filter_find(const qn__jinja_str *name)
{
    return qn__jinja_named_find(sequence_filters,
                                sizeof sequence_filters / sizeof *sequence_filters, name);
}
