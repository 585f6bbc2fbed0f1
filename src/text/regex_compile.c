/* SPDX-License-Identifier: Apache-2.0
 *
 * From a pattern's tree to its program; see regex.h. Letters without case become sets; where two or
 * three of them in a row also match one character ("ss" and the sharp s), the row becomes a small
 * net of choices.
 */
#include "text/regex.h"

#include "base/utf8.h"

#include <string.h>

enum { MOST_STEPS = 1 << 18 };

typedef struct compiler {
    qn__regex *regex;
    const char *problem;
} compiler;

/* ---- steps ---------------------------------------------------------------------------------- */

/* The new step's place, or -1. */
static int32_t emit_step(compiler *c, qn__regex_step step)
{
    qn__regex *r = c->regex;
    if (r->n == MOST_STEPS) {
        c->problem = "a pattern so large";
        return -1;
    }
    if (r->n == r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 32;
        qn__regex_step *grown = qn__arena_alloc(&r->arena, capacity * sizeof *grown);
        if (!grown)
            return -1;
        if (r->n)
            memcpy(grown, r->steps, r->n * sizeof *grown);
        r->steps = grown;
        r->capacity = capacity;
    }
    r->steps[r->n] = step;
    return (int32_t)r->n++;
}

static bool add_op(compiler *c, qn__regex_op op, int32_t a, int32_t b)
{
    return emit_step(c, (qn__regex_step){.op = (uint8_t)op, .a = a, .b = b}) >= 0;
}

static int32_t here(const compiler *c)
{
    return (int32_t)c->regex->n;
}

static int32_t new_registers(compiler *c, int count)
{
    int32_t first = (int32_t)c->regex->n_registers;
    c->regex->n_registers += (size_t)count;
    return first;
}

/* ---- letters -------------------------------------------------------------------------------- */

static uint32_t least_fold(uint32_t c)
{
    size_t low = 0, high = qn__regex_n_folds;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (qn__regex_folds[middle].c < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < qn__regex_n_folds && qn__regex_folds[low].c == c ? qn__regex_folds[low].least : c;
}

static bool add_letter(compiler *c, uint32_t letter, bool fold)
{
    if (!fold)
        return add_op(c, QN__RX_OP_CHAR, (int32_t)letter, 0);
    qn__charset *set = qn__arena_zalloc(&c->regex->arena, sizeof *set);
    if (!set || !qn__charset_add(&c->regex->arena, set, letter, letter) ||
        !qn__charset_fold(&c->regex->arena, set))
        return false;
    if (set->n == 1 && set->ranges[0].first == set->ranges[0].last)
        return add_op(c, QN__RX_OP_CHAR, (int32_t)letter, 0);
    return emit_step(c, (qn__regex_step){.op = QN__RX_OP_SET, .set = set}) >= 0;
}

/* How many letters of a row the character `many` stands for; 0: it does not begin there. */
static size_t stands_for(const qn__regex_many *many, const uint32_t *row, size_t n)
{
    size_t k = 0;
    while (k < 3 && many->to[k]) {
        if (k == n || least_fold(row[k]) != least_fold(many->to[k]))
            return 0;
        k++;
    }
    return k;
}

static bool is_many(uint32_t c)
{
    for (size_t i = 0; i < qn__regex_n_manys; i++)
        if (qn__regex_manys[i].c == c)
            return true;
    return false;
}

/* A row of letters without case: at each place either its letter, or one character for several. */
static bool add_folded(compiler *c, const uint32_t *row, size_t n)
{
    int32_t *from = qn__arena_alloc(&c->regex->arena, (n + 1) * sizeof *from), *jumps;
    size_t n_jumps = 0, room = n * 8;
    jumps = qn__arena_alloc(&c->regex->arena, 2 * room * sizeof *jumps);
    if (!from || !jumps)
        return false;
    for (size_t i = 0; i < n; i++) {
        from[i] = here(c);
        for (size_t m = 0; m < qn__regex_n_manys; m++) {
            size_t k = stands_for(&qn__regex_manys[m], row + i, n - i);
            if (k == 0 || n_jumps == room)
                continue;
            int32_t split = emit_step(c, (qn__regex_step){.op = QN__RX_OP_SPLIT});
            if (split < 0 || !add_letter(c, qn__regex_manys[m].c, false) ||
                !add_op(c, QN__RX_OP_JUMP, 0, 0))
                return false;
            c->regex->steps[split].a = split + 1;
            c->regex->steps[split].b = here(c);
            jumps[2 * n_jumps] = here(c) - 1;
            jumps[2 * n_jumps++ + 1] = (int32_t)(i + k);
        }
        if (!add_letter(c, row[i], true))
            return false;
    }
    from[n] = here(c);
    for (size_t i = 0; i < n_jumps; i++)
        c->regex->steps[jumps[2 * i]].a = from[jumps[2 * i + 1]];
    return true;
}

/* The row of letters without case that items[0..n) begin with: how many, into *taken. */
static bool add_row(compiler *c, qn__regex_node *const *items, size_t n, size_t *taken)
{
    enum { LONGEST_ROW = 256 };
    uint32_t row[LONGEST_ROW];
    size_t k = 0;
    for (; k < n && k < LONGEST_ROW && items[k]->kind == QN__RX_CHAR && items[k]->fold; k++) {
        row[k] = items[k]->c;
        if (is_many(row[k])) {
            c->problem = "a letter without case that matches several";
            return false;
        }
    }
    *taken = k;
    return add_folded(c, row, k);
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static bool add_node(compiler *c, qn__regex_node *node);

static bool add_alternatives(compiler *c, const qn__regex_node *node)
{
    int32_t last = -1; /* jumps to the end, each to the one before it */
    for (size_t i = 0; i + 1 < node->n; i++) {
        int32_t split = emit_step(c, (qn__regex_step){.op = QN__RX_OP_SPLIT});
        if (split < 0 || !add_node(c, node->items[i]) || !add_op(c, QN__RX_OP_JUMP, last, 0))
            return false;
        last = here(c) - 1;
        c->regex->steps[split].a = split + 1;
        c->regex->steps[split].b = here(c);
    }
    if (!add_node(c, node->items[node->n - 1]))
        return false;
    while (last >= 0) {
        int32_t before = c->regex->steps[last].a;
        c->regex->steps[last].a = here(c);
        last = before;
    }
    return true;
}

/* The set that a node is, where it matches one character always. */
static const qn__charset *as_set(compiler *c, const qn__regex_node *node)
{
    if (node->kind == QN__RX_CAT && node->n == 1)
        return as_set(c, node->items[0]);
    if (node->kind == QN__RX_SET)
        return node->set;
    if (node->kind != QN__RX_CHAR || (node->fold && is_many(node->c)))
        return NULL;
    qn__charset *set = qn__arena_zalloc(&c->regex->arena, sizeof *set);
    if (!set || !qn__charset_add(&c->regex->arena, set, node->c, node->c))
        return NULL;
    if (node->fold && !qn__charset_fold(&c->regex->arena, set))
        return NULL;
    qn__charset_finish(set);
    return set;
}

static bool add_loop(compiler *c, const qn__regex_node *node, qn__regex_mode mode)
{
    int32_t r = new_registers(c, 2);
    int max = node->max < 0 ? QN__RX_UNBOUNDED : node->max;
    if (!add_op(c, QN__RX_OP_BEGIN, r, 0))
        return false;
    int32_t loop = emit_step(
        c, (qn__regex_step){
               .op = QN__RX_OP_LOOP, .a = r, .min = node->min, .max = max, .mode = (uint8_t)mode});
    if (loop < 0 || !add_op(c, QN__RX_OP_TURN, r, 0) || !add_node(c, node->items[0]) ||
        !add_op(c, QN__RX_OP_JUMP, loop, 0))
        return false;
    c->regex->steps[loop].out = here(c);
    return true;
}

static bool add_repeat(compiler *c, const qn__regex_node *node)
{
    const qn__charset *set = as_set(c, node->items[0]);
    int max = node->max < 0 ? QN__RX_UNBOUNDED : node->max;
    if (set)
        return emit_step(c, (qn__regex_step){.op = QN__RX_OP_STAR,
                                             .set = set,
                                             .min = node->min,
                                             .max = max,
                                             .mode = (uint8_t)node->mode}) >= 0;
    if (node->mode != QN__RX_POSSESSIVE)
        return add_loop(c, node, node->mode);
    int32_t mark = new_registers(c, 1);
    return add_op(c, QN__RX_OP_MARK, mark, 0) && add_loop(c, node, QN__RX_GREEDY) &&
           add_op(c, QN__RX_OP_COMMIT, mark, 0);
}

static int limited(int64_t n)
{
    return n > QN__RX_UNBOUNDED ? QN__RX_UNBOUNDED : (int)n;
}

/* The least and most characters that a node matches. */
static void width_of(const qn__regex_node *node, int *least, int *most)
{
    int a, b;
    *least = *most = 0;
    switch (node->kind) {
    case QN__RX_CHAR:
    case QN__RX_SET: *least = *most = 1; break;
    case QN__RX_CAT:
        for (size_t i = 0; i < node->n; i++) {
            width_of(node->items[i], &a, &b);
            *least = limited((int64_t)*least + a);
            *most = limited((int64_t)*most + b);
        }
        break;
    case QN__RX_ALT:
        for (size_t i = 0; i < node->n; i++) {
            width_of(node->items[i], &a, &b);
            *least = i == 0 || a < *least ? a : *least;
            *most = b > *most ? b : *most;
        }
        break;
    case QN__RX_REPEAT:
        width_of(node->items[0], &a, &b);
        *least = limited((int64_t)a * node->min);
        *most = b == 0 ? 0 : node->max < 0 ? QN__RX_UNBOUNDED : limited((int64_t)b * node->max);
        break;
    case QN__RX_CAPTURE:
    case QN__RX_ATOMIC: width_of(node->items[0], least, most); break;
    case QN__RX_BACKREF: *most = QN__RX_UNBOUNDED; break;
    default: break;
    }
}

/* Whether letters without case are in a node: their width may be another. */
static bool has_folded(const qn__regex_node *node)
{
    bool has = node->kind == QN__RX_CHAR && node->fold;
    for (size_t i = 0; !has && i < node->n; i++)
        has = has_folded(node->items[i]);
    return has;
}

static bool add_look(compiler *c, const qn__regex_node *node)
{
    int32_t mark = new_registers(c, 2); /* and where the text ended before */
    int least, most;
    int32_t begin =
        emit_step(c, (qn__regex_step){.op = QN__RX_OP_MARK, .a = mark, .b = 1 + node->negated});
    if (begin < 0)
        return false;
    if (node->behind) {
        width_of(node->items[0], &least, &most);
        if (has_folded(node->items[0]))
            least = least / 3, most = limited((int64_t)most * 3);
        if (emit_step(
                c, (qn__regex_step){.op = QN__RX_OP_BACK, .a = least, .b = most, .min = mark}) < 0)
            return false;
    }
    if (!add_node(c, node->items[0]) || (node->behind && !add_op(c, QN__RX_OP_ARRIVED, mark, 0)) ||
        !add_op(c, node->negated ? QN__RX_OP_REFUTE : QN__RX_OP_COMMIT, mark, 1))
        return false;
    c->regex->steps[begin].out = here(c);
    return true;
}

static bool add_node(compiler *c, qn__regex_node *node)
{
    int32_t r;
    size_t taken;
    switch (node->kind) {
    case QN__RX_EMPTY: return true;
    case QN__RX_CHAR:
        if (node->fold)
            return add_row(c, (qn__regex_node *[]){node}, 1, &taken);
        return add_letter(c, node->c, false);
    case QN__RX_SET:
        return emit_step(c, (qn__regex_step){.op = QN__RX_OP_SET, .set = node->set}) >= 0;
    case QN__RX_CAT:
        for (size_t i = 0, k = 1; i < node->n; i += k, k = 1) {
            bool row = node->items[i]->kind == QN__RX_CHAR && node->items[i]->fold;
            if (!(row ? add_row(c, node->items + i, node->n - i, &k) : add_node(c, node->items[i])))
                return false;
        }
        return true;
    case QN__RX_ALT: return add_alternatives(c, node);
    case QN__RX_REPEAT: return add_repeat(c, node);
    case QN__RX_CAPTURE:
        r = 2 * node->number;
        return add_op(c, QN__RX_OP_SAVE, r, 0) && add_node(c, node->items[0]) &&
               add_op(c, QN__RX_OP_SAVE, r + 1, 0);
    case QN__RX_ATOMIC:
        r = new_registers(c, 1);
        return add_op(c, QN__RX_OP_MARK, r, 0) && add_node(c, node->items[0]) &&
               add_op(c, QN__RX_OP_COMMIT, r, 0);
    case QN__RX_LOOK: return add_look(c, node);
    case QN__RX_ANCHOR: return add_op(c, QN__RX_OP_ANCHOR, (int32_t)node->anchor, 0);
    case QN__RX_BACKREF: return add_op(c, QN__RX_OP_BACKREF, 2 * node->number, 0);
    case QN__RX_KEEP: return add_op(c, QN__RX_OP_SAVE, 0, 0);
    }
    return false;
}

/* ---- what a match can begin with ------------------------------------------------------------ */

static void add_first_bytes(qn__regex *regex, uint32_t first, uint32_t last)
{
    char bytes[4];
    for (uint32_t c = first; c <= last && c < 0x80; c++)
        regex->first[c] = true;
    if (last < 0x80)
        return;
    qn__utf8_encode(first < 0x80 ? 0x80 : first, bytes);
    unsigned low = (unsigned char)bytes[0];
    qn__utf8_encode(last, bytes);
    for (unsigned b = low; b <= (unsigned char)bytes[0]; b++)
        regex->first[b] = true;
}

static void add_first_set(qn__regex *regex, const qn__charset *set)
{
    for (size_t i = 0; i < set->n; i++)
        add_first_bytes(regex, set->ranges[i].first, set->ranges[i].last);
}

/* Walks the steps that take no text; what a look at the text or a reference wants is left out. */
static bool find_first(qn__regex *regex)
{
    bool *seen = qn__arena_zalloc(&regex->arena, regex->n);
    int32_t *stack = qn__arena_alloc(&regex->arena, 2 * regex->n * sizeof *stack + 16);
    size_t n = 0;
    if (!seen || !stack)
        return false;
    stack[n++] = 0;
    while (n > 0) {
        int32_t at = stack[--n];
        const qn__regex_step *s = &regex->steps[at];
        if (seen[at])
            continue;
        seen[at] = true;
        switch ((qn__regex_op)s->op) {
        case QN__RX_OP_CHAR: add_first_bytes(regex, (uint32_t)s->a, (uint32_t)s->a); break;
        case QN__RX_OP_SET: add_first_set(regex, s->set); break;
        case QN__RX_OP_STAR:
            add_first_set(regex, s->set);
            if (s->min == 0)
                stack[n++] = at + 1;
            break;
        case QN__RX_OP_SPLIT:
            stack[n++] = s->b;
            stack[n++] = s->a;
            break;
        case QN__RX_OP_JUMP: stack[n++] = s->a; break;
        case QN__RX_OP_LOOP:
            stack[n++] = s->out; /* a turn may be empty */
            stack[n++] = at + 1;
            break;
        case QN__RX_OP_MARK: stack[n++] = s->b ? s->out : at + 1; break;
        case QN__RX_OP_BACKREF:
        case QN__RX_OP_MATCH: regex->may_be_empty = true; break;
        default: stack[n++] = at + 1; break;
        }
    }
    return true;
}

bool qn__regex_compile(qn__regex *regex, const qn__regex_tree *tree, const char **problem)
{
    compiler c = {.regex = regex};
    regex->n_registers = 2 + 2 * (size_t)tree->n_captures;
    regex->word = tree->word;
    bool ok = add_node(&c, tree->root) && add_op(&c, QN__RX_OP_MATCH, 0, 0) && find_first(regex);
    *problem = c.problem;
    return ok;
}
