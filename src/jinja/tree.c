/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parser of chat templates stands on: the current token and the one behind it, failures,
 * and the nodes of the tree, whose depth is bounded.
 */
#include "jinja/jinja.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>

void *qn__jinja_parser_fail(qn__jinja_parser *p, const char *format, ...)
{
    char message[300];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (!p->failed)
        qn__jinja_fail(p->lexer.err, QN_FORMAT, p->lexer.name, p->token.line, "%s", message);
    p->failed = true;
    return NULL;
}

void *qn__jinja_parser_alloc(qn__jinja_parser *p, size_t size)
{
    void *memory = qn__arena_zalloc(p->lexer.arena, size);
    if (!memory && !p->failed) {
        qn__fail_memory(p->lexer.err, "a template");
        p->failed = true;
    }
    return memory;
}

const qn__jinja_str *qn__jinja_parser_str(qn__jinja_parser *p, const qn__jinja_token *token)
{
    qn__jinja_str *s = qn__jinja_parser_alloc(p, sizeof *s);
    if (s)
        *s = token->text;
    return s;
}

bool qn__jinja_parser_advance(qn__jinja_parser *p)
{
    p->token = p->next;
    if (p->token.kind == QN__JINJA_TOKEN_END || qn__jinja_lexer_next(&p->lexer, &p->next))
        return true;
    p->failed = true;
    return false;
}

bool qn__jinja_parser_is(const qn__jinja_parser *p, int op)
{
    return p->token.kind == QN__JINJA_TOKEN_OPERATOR && p->token.op == op;
}

bool qn__jinja_parser_is_name(const qn__jinja_parser *p, const char *name)
{
    return p->token.kind == QN__JINJA_TOKEN_NAME && qn__jinja_str_is(&p->token.text, name);
}

bool qn__jinja_parser_skip(qn__jinja_parser *p, int op)
{
    return qn__jinja_parser_is(p, op) && qn__jinja_parser_advance(p);
}

bool qn__jinja_parser_skip_name(qn__jinja_parser *p, const char *name)
{
    return qn__jinja_parser_is_name(p, name) && qn__jinja_parser_advance(p);
}

/* The current token, for "unexpected ...". */
static const char *describe_token(const qn__jinja_parser *p, char *out, size_t size)
{
    char quoted[48];
    const qn__jinja_token *t = &p->token;
    if (t->kind == QN__JINJA_TOKEN_END || t->kind == QN__JINJA_TOKEN_TEXT)
        snprintf(out, size, "the end of the template");
    else if (t->kind == QN__JINJA_TOKEN_BLOCK_END || t->kind == QN__JINJA_TOKEN_VARIABLE_END)
        snprintf(out, size, "the end of the tag");
    else if (t->kind == QN__JINJA_TOKEN_NAME || t->kind == QN__JINJA_TOKEN_STRING)
        snprintf(out, size, "\"%s\"",
                 qn__utf8_quote(quoted, sizeof quoted, t->text.data, t->text.n));
    else if (t->kind == QN__JINJA_TOKEN_OPERATOR)
        snprintf(out, size, "'%c%s'", t->op & 0xff,
                 t->op >> 8 ? (const char[]){(char)(t->op >> 8), 0} : "");
    else
        snprintf(out, size, "a number or a tag");
    return out;
}

void *qn__jinja_parser_unexpected(qn__jinja_parser *p)
{
    char token[80];
    return qn__jinja_parser_fail(p, "expected an expression, got %s",
                                 describe_token(p, token, sizeof token));
}

bool qn__jinja_parser_expect(qn__jinja_parser *p, int op)
{
    char token[80];
    if (qn__jinja_parser_skip(p, op))
        return true;
    qn__jinja_parser_fail(p, "expected '%c', got %s", op, describe_token(p, token, sizeof token));
    return false;
}

bool qn__jinja_node_deepen(qn__jinja_parser *p, qn__jinja_node *node, const qn__jinja_node *child)
{
    if (child && child->depth >= node->depth)
        node->depth = child->depth + 1;
    if (node->depth <= QN__JINJA_SOURCE_DEPTH)
        return true;
    qn__jinja_parser_fail(p, "nested or chained deeper than %d", QN__JINJA_SOURCE_DEPTH);
    return false;
}

qn__jinja_node *qn__jinja_node_new(qn__jinja_parser *p, qn__jinja_node_kind kind, qn__jinja_node *a,
                                   qn__jinja_node *b, qn__jinja_node *c)
{
    qn__jinja_node *node = p->failed ? NULL : qn__jinja_parser_alloc(p, sizeof *node);
    if (!node)
        return NULL;
    *node = (qn__jinja_node){.kind = kind, .line = p->token.line, .a = a, .b = b, .c = c};
    return qn__jinja_node_deepen(p, node, a) && qn__jinja_node_deepen(p, node, b) &&
                   qn__jinja_node_deepen(p, node, c)
               ? node
               : NULL;
}

bool qn__jinja_node_add(qn__jinja_parser *p, qn__jinja_node *node, size_t *capacity,
                        qn__jinja_node *item)
{
    if (!item || p->failed || !qn__jinja_node_deepen(p, node, item))
        return false;
    if (node->n == *capacity) {
        size_t wanted = *capacity ? *capacity * 2 : 4;
        qn__jinja_node **grown = qn__jinja_parser_alloc(p, wanted * sizeof *grown);
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

bool qn__jinja_parser_descend(qn__jinja_parser *p)
{
    if (++p->depth <= QN__JINJA_SOURCE_DEPTH)
        return true;
    qn__jinja_parser_fail(p, "nested deeper than %d", QN__JINJA_SOURCE_DEPTH);
    return false;
}
