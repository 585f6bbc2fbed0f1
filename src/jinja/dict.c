/* SPDX-License-Identifier: Apache-2.0
 *
 * Dictionaries of chat templates: in order of insertion, with a hash table once there are many
 * entries. Numbers that are equal are one key, as in Python: 1, 1.0 and True.
 */
#include "jinja/jinja.h"

#include "base/hash.h"

static bool hash_key(qn__jinja_run *r, qn__jinja_value key, uint64_t *hash)
{
    double f = 0;
    switch (key.kind) {
    case QN__JINJA_STRING:
        *hash = qn__hash_bytes(key.s->data, key.s->n, r->seed);
        return qn__jinja_run_spend(r, key.s->n >> 6);
    case QN__JINJA_BOOL:
    case QN__JINJA_INT:
    case QN__JINJA_FLOAT:
        qn__jinja_as_double(key, &f);
        f = f == 0 ? 0 : f;
        *hash = qn__hash_bytes(&f, sizeof f, r->seed);
        return true;
    case QN__JINJA_NONE: *hash = r->seed; return true;
    case QN__JINJA_TUPLE: {
        int depth = r->depth;
        bool ok = qn__jinja_run_enter(r);
        *hash = r->seed ^ key.seq->n;
        ok = ok && qn__jinja_run_spend(r, key.seq->n);
        for (size_t i = 0; ok && i < key.seq->n; i++) {
            uint64_t one;
            ok = hash_key(r, key.seq->items[i], &one);
            *hash = ok ? qn__hash_mix(*hash ^ 0x9e3779b97f4a7c15u, one) : 0;
        }
        r->depth = depth;
        return ok;
    }
    case QN__JINJA_LIST:
    case QN__JINJA_DICT:
        qn__jinja_run_fail(r, "unhashable type: '%s'", qn__jinja_type_name(key));
        return false;
    default:
        qn__jinja_refuse_undefined(r, key);
        *hash = (uint64_t)(uintptr_t)key.seq;
        return !r->failed;
    }
}

qn__jinja_dict *qn__jinja_dict_new(qn__jinja_run *r, size_t capacity)
{
    qn__jinja_dict *dict = qn__jinja_run_alloc(r, sizeof *dict);
    if (!dict)
        return NULL;
    *dict = (qn__jinja_dict){.capacity = capacity};
    if (capacity && !(dict->entries = qn__jinja_run_alloc(r, capacity * sizeof *dict->entries)))
        return NULL;
    return dict;
}

qn__jinja_value qn__jinja_dict_value(qn__jinja_dict *dict)
{
    return dict ? (qn__jinja_value){.kind = QN__JINJA_DICT, .dict = dict} : qn__jinja_failed();
}

enum { UNHASHED = 8 };

/* The entry with `key`, else NULL and in *slot where it would go (when there is a table). */
static qn__jinja_entry *dict_probe(qn__jinja_run *r, const qn__jinja_dict *dict,
                                   qn__jinja_value key, size_t *slot)
{
    uint64_t hash;
    if (!hash_key(r, key, &hash))
        return NULL;
    if (!dict->slots) {
        for (size_t i = 0; i < dict->n; i++)
            if (qn__jinja_equal(r, dict->entries[i].key, key))
                return &dict->entries[i];
        return NULL;
    }
    size_t i = hash & (dict->n_slots - 1);
    for (; dict->slots[i]; i = (i + 1) & (dict->n_slots - 1))
        if (qn__jinja_equal(r, dict->entries[dict->slots[i] - 1].key, key))
            return &dict->entries[dict->slots[i] - 1];
    *slot = i;
    return NULL;
}

qn__jinja_entry *qn__jinja_dict_find(qn__jinja_run *r, const qn__jinja_dict *dict,
                                     qn__jinja_value key)
{
    size_t slot;
    return dict_probe(r, dict, key, &slot);
}

qn__jinja_entry *qn__jinja_dict_find_str(qn__jinja_run *r, const qn__jinja_dict *dict,
                                         const qn__jinja_str *key)
{
    return qn__jinja_dict_find(r, dict, qn__jinja_str_value(key));
}

uint64_t qn__jinja_dict_hash(const qn__jinja_run *r, const qn__jinja_str *key)
{
    return qn__hash_bytes(key->data, key->n, r->seed);
}

qn__jinja_entry *qn__jinja_dict_find_hashed(const qn__jinja_dict *dict, const qn__jinja_str *key,
                                            uint64_t hash)
{
    if (!dict->slots) {
        for (size_t i = 0; i < dict->n; i++)
            if (qn__jinja_str_same(dict->entries[i].key.s, key))
                return &dict->entries[i];
        return NULL;
    }
    for (size_t i = hash & (dict->n_slots - 1); dict->slots[i]; i = (i + 1) & (dict->n_slots - 1))
        if (qn__jinja_str_same(dict->entries[dict->slots[i] - 1].key.s, key))
            return &dict->entries[dict->slots[i] - 1];
    return NULL;
}

void qn__jinja_dict_empty(qn__jinja_dict *dict)
{
    if (dict->slots)
        memset(dict->slots, 0, dict->n_slots * sizeof *dict->slots);
    dict->n = 0;
}

static bool dict_grow(qn__jinja_run *r, qn__jinja_dict *dict)
{
    size_t wanted = dict->capacity ? dict->capacity * 2 : UNHASHED;
    qn__jinja_entry *entries = qn__jinja_run_alloc(r, wanted * sizeof *entries);
    if (!entries || wanted > UINT32_MAX / 4)
        return false;
    if (dict->n)
        memcpy(entries, dict->entries, dict->n * sizeof *entries);
    dict->entries = entries;
    dict->capacity = wanted;
    return true;
}

/* Makes the hash table anew, for twice the entries there are. */
static bool dict_rehash(qn__jinja_run *r, qn__jinja_dict *dict)
{
    size_t n = 32;
    while (n < dict->n * 4)
        n *= 2;
    dict->slots = qn__jinja_run_alloc(r, n * sizeof *dict->slots);
    dict->n_slots = n;
    if (!dict->slots)
        return false;
    memset(dict->slots, 0, n * sizeof *dict->slots);
    for (size_t i = 0; i < dict->n; i++) {
        uint64_t hash;
        if (!hash_key(r, dict->entries[i].key, &hash))
            return false;
        size_t at = hash & (n - 1);
        while (dict->slots[at])
            at = (at + 1) & (n - 1);
        dict->slots[at] = (uint32_t)i + 1;
    }
    return true;
}

bool qn__jinja_dict_set(qn__jinja_run *r, qn__jinja_dict *dict, qn__jinja_value key,
                        qn__jinja_value value)
{
    size_t slot = 0;
    if (r->failed || value.kind == QN__JINJA_FAILED || !qn__jinja_run_spend(r, 1))
        return false;
    qn__jinja_entry *old = dict_probe(r, dict, key, &slot);
    if (old)
        old->value = value;
    if (old || r->failed)
        return !r->failed;
    if (dict->n == dict->capacity && !dict_grow(r, dict))
        return false;
    dict->entries[dict->n++] = (qn__jinja_entry){key, value};
    if (dict->slots)
        dict->slots[slot] = (uint32_t)dict->n;
    if (dict->slots ? dict->n * 2 > dict->n_slots : dict->n > UNHASHED)
        return dict_rehash(r, dict);
    return true;
}
