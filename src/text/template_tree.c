/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parser of chat templates stands on: the current token and the one behind it, failures,
 * and the nodes of the tree, whose depth is bounded.
 */
#include "text/template.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>

void *qn__parser_fail(qn__parser *p, const char *format, ...)
{
    char message[300];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (!p->failed)
        qn__template_fail(p->lexer.err, QN_FORMAT, p->lexer.name, p->token.line, "%s", message);
    p->failed = true;
    return NULL;
}

void *qn__parser_alloc(qn__parser *p, size_t size)
{
    void *memory = qn__arena_zalloc(p->lexer.arena, size);
    if (!memory && !p->failed) {
        qn__fail_memory(p->lexer.err, "a template");
        p->failed = true;
    }
    return memory;
}

const qn__str *qn__parser_str(qn__parser *p, const qn__token *token)
{
    qn__str *s = qn__parser_alloc(p, sizeof *s);
    if (s)
        *s = token->text;
    return s;
}

bool qn__parser_advance(qn__parser *p)
{
    p->token = p->next;
    if (p->token.kind == QN__T_END || qn__lexer_next(&p->lexer, &p->next))
        return true;
    p->failed = true;
    return false;
}

bool qn__parser_is(const qn__parser *p, int op)
{
    return p->token.kind == QN__T_OPERATOR && p->token.op == op;
}

bool qn__parser_is_name(const qn__parser *p, const char *name)
{
    return p->token.kind == QN__T_NAME && qn__str_is(&p->token.text, name);
}

bool qn__parser_skip(qn__parser *p, int op)
{
    return qn__parser_is(p, op) && qn__parser_advance(p);
}

bool qn__parser_skip_name(qn__parser *p, const char *name)
{
    return qn__parser_is_name(p, name) && qn__parser_advance(p);
}

/* The current token, for "unexpected ...". */
static const char *describe_token(const qn__parser *p, char *out, size_t size)
{
    char quoted[48];
    const qn__token *t = &p->token;
    if (t->kind == QN__T_END || t->kind == QN__T_TEXT)
        snprintf(out, size, "the end of the template");
    else if (t->kind == QN__T_BLOCK_END || t->kind == QN__T_VARIABLE_END)
        snprintf(out, size, "the end of the tag");
    else if (t->kind == QN__T_NAME || t->kind == QN__T_STRING)
        snprintf(out, size, "\"%s\"",
                 qn__utf8_quote(quoted, sizeof quoted, t->text.data, t->text.n));
    else if (t->kind == QN__T_OPERATOR)
        snprintf(out, size, "'%c%s'", t->op & 0xff,
                 t->op >> 8 ? (const char[]){(char)(t->op >> 8), 0} : "");
    else
        snprintf(out, size, "a number or a tag");
    return out;
}

void *qn__parser_unexpected(qn__parser *p)
{
    char token[80];
    return qn__parser_fail(p, "expected an expression, got %s",
                           describe_token(p, token, sizeof token));
}

bool qn__parser_expect(qn__parser *p, int op)
{
    char token[80];
    if (qn__parser_skip(p, op))
        return true;
    qn__parser_fail(p, "expected '%c', got %s", op, describe_token(p, token, sizeof token));
    return false;
}

bool qn__node_deepen(qn__parser *p, qn__node *node, const qn__node *child)
{
    if (child && child->depth >= node->depth)
        node->depth = child->depth + 1;
    if (node->depth <= QN__TEMPLATE_DEPTH)
        return true;
    qn__parser_fail(p, "nested or chained deeper than %d", QN__TEMPLATE_DEPTH);
    return false;
}

qn__node *qn__node_new(qn__parser *p, qn__node_kind kind, qn__node *a, qn__node *b, qn__node *c)
{
    qn__node *node = p->failed ? NULL : qn__parser_alloc(p, sizeof *node);
    if (!node)
        return NULL;
    *node = (qn__node){.kind = kind, .line = p->token.line, .a = a, .b = b, .c = c};
    return qn__node_deepen(p, node, a) && qn__node_deepen(p, node, b) && qn__node_deepen(p, node, c)
               ? node
               : NULL;
}

bool qn__node_add(qn__parser *p, qn__node *node, size_t *capacity, qn__node *item)
{
    if (!item || p->failed || !qn__node_deepen(p, node, item))
        return false;
    if (node->n == *capacity) {
        size_t wanted = *capacity ? *capacity * 2 : 4;
        qn__node **grown = qn__parser_alloc(p, wanted * sizeof *grown);
        if (!grown)
            return false;
        if (node->n)
            memcpy(grown, node->items, node->n * sizeof *grown);
        node->items = grown;
        *capacity = wanted;
    }
    node->items[node->n++] = item;
    return true;
}

bool qn__parser_descend(qn__parser *p)
{
    if (++p->depth <= QN__TEMPLATE_DEPTH)
        return true;
    qn__parser_fail(p, "nested deeper than %d", QN__TEMPLATE_DEPTH);
    return false;
}
