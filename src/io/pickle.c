/* SPDX-License-Identifier: Apache-2.0
 *
 * The pickle machine; see pickle.h. https://docs.python.org/3/library/pickletools.html
 *
 * Every value is 16 bytes and comes from an instruction, whose number is limited; that bounds
 * memory. Values may contain each other any number of times, and themselves: nothing walks them but
 * the search for tensors, which counts its steps. What is built points into the pickle or lives in
 * one arena.
 */
#include "io/pickle.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "io/tensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_VALUES = 1 << 21, DEEPEST = 16, LONGEST_NAME = 1000 };

typedef enum value_kind {
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_TUPLE,
    V_LIST,
    V_DICT,
    V_GLOBAL,
    V_STORAGE,
    V_TENSOR,
    V_MARK
} value_kind;

static const char *const kind_names[] = {"None",       "a bool",    "a number", "a float",
                                         "a string",   "a tuple",   "a list",   "a dictionary",
                                         "a function", "a storage", "a tensor", "a mark"};

typedef struct value {
    uint32_t kind, size; /* of a string or tuple */
    union {
        int64_t i;
        const char *text;
        const struct value *tuple;
        struct items *items; /* dictionaries: keys and values in turn */
        const struct global *global;
        qn__pickled_tensor *tensor; /* of a storage: without a shape */
    };
} value;

typedef struct items {
    value *v;
    size_t n, capacity;
} items;

typedef struct machine {
    const char *where, *at, *end;
    qn__arena arena;
    value *stack;
    size_t n, capacity;
    value *memo;
    size_t n_memo; /* also the next index of MEMOIZE */
    size_t n_values, memo_capacity;
    bool stopped;
    qn_error *err;
} machine;

/* ---- what a pickle may name -------------------------------------------------------------------
 */

typedef enum global_kind { G_STORAGE, G_DICTIONARY, G_TENSOR, G_PARAMETER } global_kind;

typedef struct global {
    const char *module, *name;
    global_kind kind;
    qn_dtype dtype; /* of a storage */
} global;

static const global globals[] = {
    {"torch._utils", "_rebuild_tensor_v2", G_TENSOR, QN_F32},
    {"torch._utils", "_rebuild_parameter", G_PARAMETER, QN_F32},
    {"collections", "OrderedDict", G_DICTIONARY, QN_F32},
    {"torch", "FloatStorage", G_STORAGE, QN_F32},
    {"torch", "DoubleStorage", G_STORAGE, QN_F64},
    {"torch", "HalfStorage", G_STORAGE, QN_F16},
    {"torch", "BFloat16Storage", G_STORAGE, QN_BF16},
    {"torch", "LongStorage", G_STORAGE, QN_I64},
    {"torch", "IntStorage", G_STORAGE, QN_I32},
    {"torch", "ShortStorage", G_STORAGE, QN_I16},
    {"torch", "CharStorage", G_STORAGE, QN_I8},
    {"torch", "ByteStorage", G_STORAGE, QN_U8},
    {"torch", "BoolStorage", G_STORAGE, QN_BOOL},
};

static void report(machine *m, qn_status code, const char *format, ...) QN_PRINTF(3, 4);

static void report(machine *m, qn_status code, const char *format, ...)
{
    char what[300];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    qn__fail(m->err, code, "%s: %s", m->where, what);
}

/* Always false; a macro so that compilers see that what follows a failed pop is not reached. */
#define pickle_fail(...) (report(__VA_ARGS__), false)

/* ---- stack ------------------------------------------------------------------------------------
 */

static bool push(machine *m, value v)
{
    if (++m->n_values > MOST_VALUES)
        return pickle_fail(m, QN_LIMIT, "more than %d values", MOST_VALUES);
    if (!qn__grow_table((void **)&m->stack, m->n, &m->capacity, sizeof *m->stack)) {
        qn__fail_memory(m->err, "a pickle's stack");
        return false;
    }
    m->stack[m->n++] = v;
    return true;
}

static bool pop(machine *m, value *out)
{
    if (m->n == 0 || m->stack[m->n - 1].kind == V_MARK)
        return pickle_fail(m, QN_FORMAT, "an instruction lacks its operand");
    *out = m->stack[--m->n];
    return true;
}

/* The values above the newest mark, which goes; they stay valid until the next push. */
static bool pop_mark(machine *m, value **from, size_t *n)
{
    size_t i = m->n;
    while (i > 0 && m->stack[i - 1].kind != V_MARK)
        i--;
    if (i == 0)
        return pickle_fail(m, QN_FORMAT, "an instruction lacks its mark");
    *from = m->stack + i;
    *n = m->n - i;
    m->n = i - 1;
    return true;
}

static bool push_tuple(machine *m, const value *from, size_t n)
{
    value *copy = qn__arena_alloc(&m->arena, n * sizeof *copy + 1);
    if (!copy) {
        qn__fail_memory(m->err, "a tuple");
        return false;
    }
    if (n)
        memcpy(copy, from, n * sizeof *copy);
    return push(m, (value){.kind = V_TUPLE, .size = (uint32_t)n, .tuple = copy});
}

/* A tuple of the n values on top. */
static bool make_tuple(machine *m, size_t n)
{
    value from[3];
    for (size_t i = n; i-- > 0;)
        if (!pop(m, &from[i]))
            return false;
    return push_tuple(m, from, n);
}

static bool push_items(machine *m, value_kind kind)
{
    items *list = qn__arena_zalloc(&m->arena, sizeof *list);
    if (!list) {
        qn__fail_memory(m->err, "a list");
        return false;
    }
    return push(m, (value){.kind = kind, .items = list});
}

/* Adds n values to the list or dictionary on top. */
static bool extend(machine *m, value_kind kind, const value *from, size_t n)
{
    if (m->n == 0 || m->stack[m->n - 1].kind != kind || (kind == V_DICT && n % 2))
        return pickle_fail(m, QN_FORMAT, "items are added to what is not %s", kind_names[kind]);
    items *list = m->stack[m->n - 1].items;
    if (list->n + n > list->capacity) {
        size_t capacity = list->capacity * 2 > list->n + n ? list->capacity * 2 : list->n + n;
        value *grown = qn__arena_alloc(&m->arena, capacity * sizeof *grown);
        if (!grown) {
            qn__fail_memory(m->err, "a list");
            return false;
        }
        if (list->n)
            memcpy(grown, list->v, list->n * sizeof *grown);
        list->v = grown;
        list->capacity = capacity;
    }
    if (n)
        memcpy(list->v + list->n, from, n * sizeof *from);
    list->n += n;
    return true;
}

static bool add_items(machine *m, value_kind kind)
{
    value *from;
    size_t n;
    return pop_mark(m, &from, &n) && extend(m, kind, from, n);
}

static bool add_item(machine *m, value_kind kind)
{
    value from[2];
    if (kind == V_LIST)
        return pop(m, &from[0]) && extend(m, kind, from, 1);
    return pop(m, &from[1]) && pop(m, &from[0]) && extend(m, kind, from, 2);
}

/* ---- memo --------------------------------------------------------------------------------------
 */

static bool put(machine *m, size_t i)
{
    if (m->n == 0 || m->stack[m->n - 1].kind == V_MARK)
        return pickle_fail(m, QN_FORMAT, "the memo takes what is not there");
    if (i >= MOST_VALUES)
        return pickle_fail(m, QN_LIMIT, "memo index %zu, the limit is %d", i, MOST_VALUES);
    while (i >= m->memo_capacity) {
        size_t old = m->memo_capacity;
        if (!qn__grow_table((void **)&m->memo, old, &m->memo_capacity, sizeof *m->memo)) {
            qn__fail_memory(m->err, "a pickle's memo");
            return false;
        }
        for (size_t k = old; k < m->memo_capacity; k++)
            m->memo[k] = (value){.kind = V_MARK};
    }
    m->memo[i] = m->stack[m->n - 1];
    m->n_memo++;
    return true;
}

static bool get(machine *m, size_t i)
{
    if (i >= m->memo_capacity || m->memo[i].kind == V_MARK)
        return pickle_fail(m, QN_FORMAT, "nothing is in the memo at %zu", i);
    return push(m, m->memo[i]);
}

/* ---- calls -------------------------------------------------------------------------------------
 */

static bool same_text(const char *word, const char *text, size_t n)
{
    return strlen(word) == n && memcmp(word, text, n) == 0;
}

static bool push_global(machine *m, const char *module, size_t n_module, const char *name,
                        size_t n_name)
{
    char a[80], b[80];
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (same_text(globals[i].module, module, n_module) &&
            same_text(globals[i].name, name, n_name))
            return push(m, (value){.kind = V_GLOBAL, .global = &globals[i]});
    return pickle_fail(m, QN_UNSUPPORTED,
                       "the pickle names %s.%s; only dictionaries of plain tensors "
                       "are read, and no code is run",
                       qn__utf8_quote(a, sizeof a, module, n_module),
                       qn__utf8_quote(b, sizeof b, name, n_name));
}

static bool stack_global(machine *m)
{
    value name, module;
    if (!pop(m, &name) || !pop(m, &module))
        return false;
    if (name.kind != V_STRING || module.kind != V_STRING)
        return pickle_fail(m, QN_FORMAT, "a global's name is %s", kind_names[name.kind]);
    return push_global(m, module.text, module.size, name.text, name.size);
}

/* ('storage', torch.FloatStorage, key, device, number of elements) */
static bool load_storage(machine *m)
{
    value id;
    if (!pop(m, &id))
        return false;
    const value *v = id.tuple;
    bool good = id.kind == V_TUPLE && id.size == 5 && v[0].kind == V_STRING &&
                same_text("storage", v[0].text, v[0].size) && v[1].kind == V_GLOBAL &&
                v[1].global->kind == G_STORAGE && v[2].kind == V_STRING && v[4].kind == V_INT &&
                v[4].i >= 0;
    if (!good)
        return pickle_fail(m, QN_FORMAT, "a persistent id is no storage");
    qn__pickled_tensor *t = qn__arena_zalloc(&m->arena, sizeof *t);
    if (!t) {
        qn__fail_memory(m->err, "a storage");
        return false;
    }
    t->dtype = v[1].global->dtype;
    t->key = v[2].text;
    t->key_size = v[2].size;
    t->n_stored = v[4].i;
    return push(m, (value){.kind = V_STORAGE, .tensor = t});
}

/* Non-negative integers; the number of them, or -1. */
static int read_sizes(const value *v, int64_t *sizes)
{
    if (v->kind != V_TUPLE || v->size > QN_MAX_NDIM)
        return -1;
    for (uint32_t i = 0; i < v->size; i++) {
        if (v->tuple[i].kind != V_INT || v->tuple[i].i < 0)
            return -1;
        sizes[i] = v->tuple[i].i;
    }
    return (int)v->size;
}

/* Every element lies in the storage, and there are no more of them than it has. */
static bool fits_storage(const qn__pickled_tensor *t)
{
    int64_t n = 1, last = t->offset;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return t->offset <= t->n_stored;
    for (int i = 0; i < t->ndim; i++) {
        int64_t reach;
        if (!qn__mul_i64(n, t->shape[i], &n) ||
            !qn__mul_i64(t->shape[i] - 1, t->stride[i], &reach) || !qn__add_i64(last, reach, &last))
            return false;
    }
    return n <= t->n_stored && last < t->n_stored;
}

/* (storage, offset, shape, strides, requires_grad, hooks[, metadata]) */
static bool rebuild_tensor(machine *m, const value *args)
{
    const value *v = args->tuple;
    if (args->size < 4 || args->size > 7 || v[0].kind != V_STORAGE || v[1].kind != V_INT ||
        v[1].i < 0)
        return pickle_fail(m, QN_FORMAT,
                           "a tensor is not made of a storage, an offset and a shape");
    qn__pickled_tensor *t = qn__arena_alloc(&m->arena, sizeof *t);
    if (!t) {
        qn__fail_memory(m->err, "a tensor");
        return false;
    }
    *t = *v[0].tensor;
    t->offset = v[1].i;
    t->ndim = read_sizes(&v[2], t->shape);
    if (t->ndim < 0 || read_sizes(&v[3], t->stride) != t->ndim)
        return pickle_fail(m, QN_FORMAT, "a tensor's shape or strides are not up to %d sizes each",
                           QN_MAX_NDIM);
    if (!fits_storage(t)) {
        char key[40];
        return pickle_fail(
            m, QN_FORMAT, "a tensor lies outside storage %s, which has %lld elements",
            qn__utf8_quote(key, sizeof key, t->key, t->key_size), (long long)t->n_stored);
    }
    return push(m, (value){.kind = V_TENSOR, .tensor = t});
}

static bool reduce(machine *m)
{
    value args, f;
    if (!pop(m, &args) || !pop(m, &f))
        return false;
    if (f.kind != V_GLOBAL || args.kind != V_TUPLE)
        return pickle_fail(m, QN_FORMAT, "%s is called", kind_names[f.kind]);
    switch (f.global->kind) {
    case G_TENSOR: return rebuild_tensor(m, &args);
    case G_DICTIONARY:
        if (args.size == 0)
            return push_items(m, V_DICT);
        break;
    case G_PARAMETER:
        if (args.size >= 1 && args.tuple[0].kind == V_TENSOR)
            return push(m, args.tuple[0]);
        break;
    case G_STORAGE: break;
    }
    return pickle_fail(m, QN_FORMAT, "%s.%s is called with unknown arguments", f.global->module,
                       f.global->name);
}

/* An ordered dictionary's attributes: PyTorch keeps versions of modules there. */
static bool build(machine *m)
{
    value state;
    if (!pop(m, &state))
        return false;
    if (m->n == 0 || m->stack[m->n - 1].kind != V_DICT || state.kind != V_DICT)
        return pickle_fail(m, QN_UNSUPPORTED,
                           "an object is given a state; only dictionaries of plain "
                           "tensors are read");
    return true;
}

/* ---- instructions ------------------------------------------------------------------------------
 */

static const char *take_bytes(machine *m, size_t n)
{
    if ((size_t)(m->end - m->at) < n) {
        report(m, QN_FORMAT, "the pickle ends inside an instruction");
        return NULL;
    }
    m->at += n;
    return m->at - n;
}

/* A little-endian number of n bytes. */
static bool take_number(machine *m, size_t n, uint64_t *out)
{
    const unsigned char *p = (const unsigned char *)take_bytes(m, n);
    if (!p)
        return false;
    *out = 0;
    for (size_t i = n; i-- > 0;)
        *out = *out << 8 | p[i];
    return true;
}

/* A string behind its length, which has `width` bytes. */
static bool take_string(machine *m, size_t width)
{
    uint64_t n;
    if (!take_number(m, width, &n))
        return false;
    if (n > (uint64_t)(m->end - m->at))
        return pickle_fail(m, QN_FORMAT, "a string of %llu bytes, %zu are left",
                           (unsigned long long)n, (size_t)(m->end - m->at));
    const char *text = take_bytes(m, (size_t)n);
    return push(m, (value){.kind = V_STRING, .size = (uint32_t)n, .text = text});
}

/* A line without its end; NULL: there is none. */
static const char *take_line(machine *m, size_t *n)
{
    const char *line = m->at, *end = memchr(line, '\n', (size_t)(m->end - line));
    if (!end) {
        report(m, QN_FORMAT, "the pickle ends inside a name");
        return NULL;
    }
    *n = (size_t)(end - line);
    m->at = end + 1;
    return line;
}

static bool take_global(machine *m)
{
    size_t n_module = 0, n_name = 0;
    const char *module = take_line(m, &n_module), *name = module ? take_line(m, &n_name) : NULL;
    return name && push_global(m, module, n_module, name, n_name);
}

/* A signed number of `n` bytes. */
static bool take_int(machine *m, size_t n)
{
    uint64_t v = 0;
    if (n > 8)
        return pickle_fail(m, QN_LIMIT, "a number of %zu bytes; at most 8 are read", n);
    if (!take_number(m, n, &v))
        return false;
    if (n > 0 && n < 8 && v >> (8 * n - 1))
        v |= UINT64_MAX << 8 * n;
    return push(m, (value){.kind = V_INT, .i = (int64_t)v});
}

static bool take_protocol(machine *m)
{
    uint64_t v;
    if (!take_number(m, 1, &v))
        return false;
    return (v >= 2 && v <= 5) ||
           pickle_fail(m, QN_UNSUPPORTED, "pickle protocol %d; 2 to 5 are supported", (int)v);
}

static bool step(machine *m)
{
    uint64_t n;
    value *from;
    size_t count;
    uint64_t op;
    if (!take_number(m, 1, &op))
        return false;
    switch (op) {
    case 0x80: return take_protocol(m);
    case 0x95: return take_bytes(m, 8) != NULL; /* FRAME: for buffering only */
    case '.': return m->stopped = true;
    case '(': return push(m, (value){.kind = V_MARK});
    case 'N': return push(m, (value){.kind = V_NONE});
    case 0x88:
    case 0x89: return push(m, (value){.kind = V_BOOL, .i = op == 0x88});
    case 'J': return take_int(m, 4);
    case 'K': return take_number(m, 1, &n) && push(m, (value){.kind = V_INT, .i = (int64_t)n});
    case 'M': return take_number(m, 2, &n) && push(m, (value){.kind = V_INT, .i = (int64_t)n});
    case 0x8a: return take_number(m, 1, &n) && take_int(m, (size_t)n);
    case 'G': return take_bytes(m, 8) && push(m, (value){.kind = V_FLOAT});
    case 'X': return take_string(m, 4);
    case 0x8c:
    case 'U': return take_string(m, 1);
    case 'T': return take_string(m, 4);
    case 0x8d: return take_string(m, 8);
    case ')': return push_tuple(m, NULL, 0);
    case 0x85: return make_tuple(m, 1);
    case 0x86: return make_tuple(m, 2);
    case 0x87: return make_tuple(m, 3);
    case 't': return pop_mark(m, &from, &count) && push_tuple(m, from, count);
    case ']': return push_items(m, V_LIST);
    case '}': return push_items(m, V_DICT);
    case 'a': return add_item(m, V_LIST);
    case 'e': return add_items(m, V_LIST);
    case 's': return add_item(m, V_DICT);
    case 'u': return add_items(m, V_DICT);
    case 'q': return take_number(m, 1, &n) && put(m, (size_t)n);
    case 'r': return take_number(m, 4, &n) && put(m, (size_t)n);
    case 0x94: return put(m, m->n_memo);
    case 'h': return take_number(m, 1, &n) && get(m, (size_t)n);
    case 'j': return take_number(m, 4, &n) && get(m, (size_t)n);
    case 'c': return take_global(m);
    case 0x93: return stack_global(m);
    case 'Q': return load_storage(m);
    case 'R': return reduce(m);
    case 'b': return build(m);
    default:
        return pickle_fail(m, QN_UNSUPPORTED,
                           "pickle instruction 0x%02x; only what dictionaries of "
                           "plain tensors need is read",
                           (unsigned)op);
    }
}

/* ---- the tensors in it
 * --------------------------------------------------------------------------- */

typedef struct search {
    machine *m;
    qn__pickle_visit *visit;
    void *user;
    size_t steps;
    char name[LONGEST_NAME + 1];
} search;

/* What checkpoints of training scripts wrap the weights in. */
static const value *unwrap(const value *v)
{
    static const char *const names[] = {"state_dict", "model_state_dict", "model", "module"};
    for (size_t w = 0; w < sizeof names / sizeof *names; w++)
        for (size_t i = 0; i < v->items->n; i += 2) {
            const value *key = &v->items->v[i];
            if (key->kind == V_STRING && same_text(names[w], key->text, key->size) &&
                key[1].kind == V_DICT)
                return &key[1];
        }
    return v;
}

static bool find_tensors(search *s, const items *dict, size_t n_name, int depth)
{
    for (size_t i = 0; i < dict->n; i += 2) {
        const value *key = &dict->v[i], *v = key + 1;
        char number[24];
        if (++s->steps > MOST_VALUES || depth > DEEPEST)
            return pickle_fail(s->m, QN_LIMIT,
                               "dictionaries inside each other beyond %d levels or %d "
                               "entries",
                               DEEPEST, MOST_VALUES);
        if (v->kind != V_TENSOR && v->kind != V_DICT)
            continue; /* numbers and texts of a training script */
        if (key->kind != V_STRING && key->kind != V_INT)
            return pickle_fail(s->m, QN_FORMAT, "the key of a tensor is %s", kind_names[key->kind]);
        const char *text = key->kind == V_STRING ? key->text : number;
        size_t n = key->kind == V_STRING
                       ? key->size
                       : (size_t)snprintf(number, sizeof number, "%lld", (long long)key->i);
        if (n_name + n + 1 > LONGEST_NAME || qn__utf8_check(text, n) != n || memchr(text, 0, n))
            return pickle_fail(s->m, QN_FORMAT,
                               "a tensor's name is longer than %d bytes or not UTF-8",
                               LONGEST_NAME);
        memcpy(s->name + n_name, text, n);
        s->name[n_name + n] = v->kind == V_DICT ? '.' : '\0';
        bool ok = v->kind == V_DICT ? find_tensors(s, v->items, n_name + n + 1, depth + 1)
                                    : s->visit(s->user, s->name, v->tensor, s->m->err) == QN_OK;
        if (!ok)
            return false;
    }
    return true;
}

static bool run(machine *m, qn__pickle_visit *visit, void *user)
{
    value top;
    while (!m->stopped)
        if (!step(m))
            return false;
    if (m->at != m->end)
        return pickle_fail(m, QN_FORMAT, "%zu bytes behind the pickle's end",
                           (size_t)(m->end - m->at));
    if (!pop(m, &top))
        return false;
    if (top.kind != V_DICT)
        return pickle_fail(m, QN_UNSUPPORTED,
                           "the checkpoint holds %s; a dictionary of tensors is "
                           "read",
                           kind_names[top.kind]);
    const value *v = &top, *inner;
    for (int i = 0; i < 4 && (inner = unwrap(v)) != v; i++)
        v = inner;
    search *s = malloc(sizeof *s);
    if (!s) {
        qn__fail_memory(m->err, "a search for tensors");
        return false;
    }
    *s = (search){.m = m, .visit = visit, .user = user};
    bool ok = find_tensors(s, v->items, 0, 0);
    free(s);
    return ok;
}

qn_status qn__pickle_read(const char *where, const char *data, size_t n, qn__pickle_visit *visit,
                          void *user, qn_error *err)
{
    qn_error own = {0};
    machine m = {.where = where, .at = data, .end = data + n, .err = err ? err : &own};
    bool ok = run(&m, visit, user);
    qn__arena_free(&m.arena);
    free(m.stack);
    free(m.memo);
    return ok ? QN_OK : m.err->code;
}
