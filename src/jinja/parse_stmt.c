/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of chat templates: statements. What needs other templates (include, import, extends,
 * block) is refused by name, as transformers has no loader for them either.
 */
#include "jinja/jinja.h"

#include "base/utf8.h"

static qn__jinja_node *parse_block(qn__jinja_parser *p, const char *const *ends);

static bool end_tag(qn__jinja_parser *p)
{
    if (p->failed)
        return false;
    if (p->token.kind != QN__JINJA_TOKEN_BLOCK_END) {
        qn__jinja_parser_fail(p, "expected the end of the {%% tag");
        return false;
    }
    return qn__jinja_parser_advance(p);
}

/* The body up to one of `ends`, then that name and the end of its tag. */
static qn__jinja_node *parse_body(qn__jinja_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    if (!end_tag(p))
        return NULL;
    qn__jinja_node *body = parse_block(p, ends);
    return body && qn__jinja_parser_advance(p) ? body : NULL;
}

static qn__jinja_node *parse_if(qn__jinja_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif",
                                                                                        NULL};
    size_t capacity = 0;
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_IF, NULL, NULL, NULL);
    for (;;) {
        if (!node ||
            !qn__jinja_node_add(p, node, &capacity, qn__jinja_parse_tuple(p, false, NULL, false)) ||
            !end_tag(p) || !qn__jinja_node_add(p, node, &capacity, parse_block(p, ends)))
            return NULL;
        if (!qn__jinja_parser_skip_name(p, "elif"))
            break;
    }
    if (qn__jinja_parser_skip_name(p, "else") &&
        (!end_tag(p) || !qn__jinja_node_add(p, node, &capacity, parse_block(p, last))))
        return NULL;
    return qn__jinja_parser_advance(p) ? node : NULL;
}

/* One name, ns.name, or names in a tuple. */
static qn__jinja_node *parse_target(qn__jinja_parser *p, bool with_attribute)
{
    size_t capacity = 0;
    qn__jinja_node *first = NULL, *tuple = NULL;
    do {
        if (tuple && (qn__jinja_parser_is_name(p, "in") || qn__jinja_parser_is(p, '=')))
            break;
        qn__jinja_node *target;
        if (qn__jinja_parser_skip(p, '(')) {
            target = parse_target(p, with_attribute);
            if (!target || !qn__jinja_parser_expect(p, ')'))
                return NULL;
        } else {
            if (p->token.kind != QN__JINJA_TOKEN_NAME)
                return qn__jinja_parser_fail(p, "expected a name to assign to");
            target = qn__jinja_parse_primary(p);
            if (target && target->kind != QN__JINJA_NODE_NAME)
                return qn__jinja_parser_fail(p, "cannot assign to a constant");
            if (with_attribute && target && qn__jinja_parser_is(p, '.')) {
                if (!qn__jinja_parser_advance(p) || p->token.kind != QN__JINJA_TOKEN_NAME)
                    return qn__jinja_parser_fail(p, "expected a name behind '.'");
                target = qn__jinja_node_new(p, QN__JINJA_NODE_ATTRIBUTE, target, NULL, NULL);
                if (!target || !(target->name = qn__jinja_parser_str(p, &p->token)) ||
                    !qn__jinja_parser_advance(p))
                    return NULL;
            }
        }
        if (!first && !qn__jinja_parser_is(p, ','))
            return target;
        if (!first) {
            first = target;
            tuple = qn__jinja_node_new(p, QN__JINJA_NODE_TUPLE, NULL, NULL, NULL);
        }
        if (!tuple || !qn__jinja_node_add(p, tuple, &capacity, target))
            return NULL;
    } while (qn__jinja_parser_skip(p, ','));
    return p->failed ? NULL : tuple;
}

static qn__jinja_node *parse_for(qn__jinja_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_FOR, NULL, NULL, NULL);
    if (!node || !(node->a = parse_target(p, false)))
        return NULL;
    if (!qn__jinja_parser_skip_name(p, "in"))
        return qn__jinja_parser_fail(p, "expected \"in\" in a for loop");
    if (!(node->b = qn__jinja_parse_tuple(p, false, "recursive", false)))
        return NULL;
    if (qn__jinja_parser_skip_name(p, "if") && !(node->c = qn__jinja_parse_expression(p, true)))
        return NULL;
    node->op = qn__jinja_parser_skip_name(p, "recursive");
    p->loops++;
    if (!end_tag(p) || !(node->d = parse_block(p, ends)))
        return NULL;
    p->loops--;
    if (qn__jinja_parser_skip_name(p, "else") && (!end_tag(p) || !(node->e = parse_block(p, last))))
        return NULL;
    return qn__jinja_parser_advance(p) ? node : NULL;
}

static qn__jinja_node *parse_set(qn__jinja_parser *p)
{
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_SET, NULL, NULL, NULL);
    if (!node || !(node->a = parse_target(p, true)))
        return NULL;
    if (qn__jinja_parser_skip(p, '='))
        return (node->b = qn__jinja_parse_tuple(p, true, NULL, false)) ? node : NULL;
    node->kind = QN__JINJA_NODE_SET_BLOCK;
    if (qn__jinja_parser_is(p, '|')) {
        qn__jinja_node *input = qn__jinja_node_new(p, QN__JINJA_NODE_INPUT, NULL, NULL, NULL);
        if (!input || !(node->c = qn__jinja_parse_filters(p, input, false)))
            return NULL;
    }
    return (node->d = parse_body(p, "endset")) ? node : NULL;
}

/* "(a, b=1)" of a macro or call block: names into items, defaults behind them. */
static bool parse_signature(qn__jinja_parser *p, qn__jinja_node *macro)
{
    size_t capacity = 0;
    qn__jinja_node *defaults = qn__jinja_node_new(p, QN__JINJA_NODE_BLOCK, NULL, NULL, NULL);
    size_t defaults_capacity = 0;
    if (!defaults || !qn__jinja_parser_expect(p, '('))
        return false;
    while (!qn__jinja_parser_is(p, ')')) {
        if (macro->n && !qn__jinja_parser_expect(p, ','))
            return false;
        if (qn__jinja_parser_is(p, ')'))
            break;
        if (p->token.kind != QN__JINJA_TOKEN_NAME)
            return qn__jinja_parser_fail(p, "expected the name of a parameter"), false;
        qn__jinja_node *name = qn__jinja_parse_primary(p);
        if (!name || name->kind != QN__JINJA_NODE_NAME)
            return qn__jinja_parser_fail(p, "expected the name of a parameter"), false;
        if (!qn__jinja_node_add(p, macro, &capacity, name))
            return false;
        if (qn__jinja_parser_skip(p, '=')) {
            if (!qn__jinja_node_add(p, defaults, &defaults_capacity,
                                    qn__jinja_parse_expression(p, true)))
                return false;
        } else if (defaults->n) {
            return qn__jinja_parser_fail(p, "a parameter without default stands behind one with"),
                   false;
        }
    }
    size_t names = macro->n;
    for (size_t i = 0; i < defaults->n; i++)
        if (!qn__jinja_node_add(p, macro, &capacity, defaults->items[i]))
            return false;
    macro->n = names;
    macro->n_defaults = defaults->n;
    return qn__jinja_parser_advance(p);
}

/* The body of a macro, in which an outer loop cannot be left. */
static bool parse_own_body(qn__jinja_parser *p, qn__jinja_node *macro, const char *end)
{
    int loops = p->loops, uses = p->uses;
    p->loops = p->uses = 0;
    macro->d = parse_body(p, end);
    macro->op = p->uses;
    p->loops = loops;
    p->uses = uses;
    return macro->d != NULL;
}

static qn__jinja_node *parse_macro(qn__jinja_parser *p)
{
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_MACRO, NULL, NULL, NULL);
    if (!node)
        return NULL;
    if (p->token.kind != QN__JINJA_TOKEN_NAME)
        return qn__jinja_parser_fail(p, "expected the name of a macro");
    if (!(node->name = qn__jinja_parser_str(p, &p->token)) || !qn__jinja_parser_advance(p) ||
        !parse_signature(p, node))
        return NULL;
    return parse_own_body(p, node, "endmacro") ? node : NULL;
}

static qn__jinja_node *parse_call_block(qn__jinja_parser *p)
{
    static const qn__jinja_str caller = {.data = "caller", .n = 6};
    qn__jinja_node *macro = qn__jinja_node_new(p, QN__JINJA_NODE_MACRO, NULL, NULL, NULL), *node;
    if (!macro || (qn__jinja_parser_is(p, '(') && !parse_signature(p, macro)))
        return NULL;
    macro->name = &caller;
    qn__jinja_node *call = qn__jinja_parse_expression(p, true);
    if (call && call->kind != QN__JINJA_NODE_CALL)
        return qn__jinja_parser_fail(p, "a call block needs a call");
    if (!call || !(node = qn__jinja_node_new(p, QN__JINJA_NODE_CALL_BLOCK, call, NULL, NULL)))
        return NULL;
    node->b = macro;
    return parse_own_body(p, macro, "endcall") ? node : NULL;
}

static qn__jinja_node *parse_filter_block(qn__jinja_parser *p)
{
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_FILTER_BLOCK, NULL, NULL, NULL);
    qn__jinja_node *input = qn__jinja_node_new(p, QN__JINJA_NODE_INPUT, NULL, NULL, NULL);
    if (!node || !input || !(node->c = qn__jinja_parse_filters(p, input, true)))
        return NULL;
    return (node->d = parse_body(p, "endfilter")) ? node : NULL;
}

static qn__jinja_node *parse_with(qn__jinja_parser *p)
{
    size_t capacity = 0;
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_WITH, NULL, NULL, NULL);
    while (node && p->token.kind != QN__JINJA_TOKEN_BLOCK_END) {
        if (node->n && !qn__jinja_parser_expect(p, ','))
            return NULL;
        if (!qn__jinja_node_add(p, node, &capacity, parse_target(p, false)) ||
            !qn__jinja_parser_expect(p, '=') ||
            !qn__jinja_node_add(p, node, &capacity, qn__jinja_parse_expression(p, true)))
            return NULL;
    }
    return node && (node->d = parse_body(p, "endwith")) ? node : NULL;
}

static qn__jinja_node *parse_generation(qn__jinja_parser *p)
{
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_GENERATION, NULL, NULL, NULL);
    return node && parse_own_body(p, node, "endgeneration") ? node : NULL;
}

static qn__jinja_node *parse_print(qn__jinja_parser *p)
{
    size_t capacity = 0;
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_BLOCK, NULL, NULL, NULL);
    while (node && p->token.kind != QN__JINJA_TOKEN_BLOCK_END) {
        if (node->n && !qn__jinja_parser_expect(p, ','))
            return NULL;
        qn__jinja_node *value = qn__jinja_parse_expression(p, true);
        if (!value ||
            !qn__jinja_node_add(p, node, &capacity,
                                qn__jinja_node_new(p, QN__JINJA_NODE_OUTPUT, value, NULL, NULL)))
            return NULL;
    }
    return node;
}

static qn__jinja_node *parse_jump(qn__jinja_parser *p, qn__jinja_node_kind kind)
{
    if (p->loops == 0)
        return qn__jinja_parser_fail(p, "break and continue stand only in a loop");
    return qn__jinja_node_new(p, kind, NULL, NULL, NULL);
}

static qn__jinja_node *parse_break(qn__jinja_parser *p)
{
    return parse_jump(p, QN__JINJA_NODE_BREAK);
}

static qn__jinja_node *parse_continue(qn__jinja_parser *p)
{
    return parse_jump(p, QN__JINJA_NODE_CONTINUE);
}

static const struct statement_row {
    const char *name;
    qn__jinja_node *(*parse)(qn__jinja_parser *); /* NULL: refused */
} statement_rows[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"print", parse_print},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
    {"include", NULL},
    {"import", NULL},
    {"from", NULL},
    {"extends", NULL},
    {"block", NULL},
    {"autoescape", NULL},
};

/* A statement behind "{%", up to and including "%}". */
static qn__jinja_node *parse_statement(qn__jinja_parser *p)
{
    static const char *const ends[] = {"endif",   "elif",         "else",    "endfor",
                                       "endset",  "endmacro",     "endcall", "endfilter",
                                       "endwith", "endgeneration"};
    char name[48];
    if (p->token.kind != QN__JINJA_TOKEN_NAME)
        return qn__jinja_parser_fail(p, "a {%% tag does not begin with a name");
    qn__utf8_quote(name, sizeof name, p->token.text.data, p->token.text.n);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (qn__jinja_parser_is_name(p, ends[i]))
            return qn__jinja_parser_fail(p, "unexpected \"%s\"", name);
    for (size_t i = 0; i < sizeof statement_rows / sizeof *statement_rows; i++)
        if (qn__jinja_parser_is_name(p, statement_rows[i].name)) {
            if (!statement_rows[i].parse)
                break;
            int line = p->token.line;
            if (!qn__jinja_parser_advance(p))
                return NULL;
            qn__jinja_node *node = statement_rows[i].parse(p);
            if (node)
                node->line = line;
            return node && end_tag(p) ? node : NULL;
        }
    return qn__jinja_parser_fail(
        p,
        "the tag \"%s\" is not supported (supported: if, for, set, macro, call, "
        "filter, with, print, generation, raw, break, continue)",
        name);
}

static bool at_end_name(const qn__jinja_parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (qn__jinja_parser_is_name(p, *ends))
            return true;
    return false;
}

static qn__jinja_node *parse_output(qn__jinja_parser *p)
{
    int line = p->token.line;
    if (!qn__jinja_parser_advance(p))
        return NULL;
    qn__jinja_node *value = qn__jinja_parse_tuple(p, true, NULL, false);
    qn__jinja_node *node =
        value ? qn__jinja_node_new(p, QN__JINJA_NODE_OUTPUT, value, NULL, NULL) : NULL;
    if (!node)
        return NULL;
    node->line = line;
    if (p->token.kind != QN__JINJA_TOKEN_VARIABLE_END)
        return qn__jinja_parser_fail(p, "expected the end of the {{ tag");
    return qn__jinja_parser_advance(p) ? node : NULL;
}

/* Text and tags up to a tag that begins with one of `ends` (the current token then), or to the end
 * of the template where `ends` is NULL. */
static qn__jinja_node *parse_block(qn__jinja_parser *p, const char *const *ends)
{
    size_t capacity = 0;
    qn__jinja_node *block = qn__jinja_node_new(p, QN__JINJA_NODE_BLOCK, NULL, NULL, NULL);
    int line = p->token.line;
    if (++p->depth > QN__JINJA_SOURCE_DEPTH)
        return qn__jinja_parser_fail(p, "nested deeper than %d", QN__JINJA_SOURCE_DEPTH);
    while (block && !p->failed) {
        qn__jinja_node *item = NULL;
        if (p->token.kind == QN__JINJA_TOKEN_END) {
            if (ends)
                return qn__jinja_parser_fail(p, "the block that begins in line %d lacks its \"%s\"",
                                             line, ends[0]);
            p->depth--;
            return block;
        } else if (p->token.kind == QN__JINJA_TOKEN_TEXT) {
            if (p->token.text.n > 0) {
                item = qn__jinja_node_new(p, QN__JINJA_NODE_TEXT, NULL, NULL, NULL);
                if (!item || !(item->name = qn__jinja_parser_str(p, &p->token)))
                    return NULL;
            }
            if (!qn__jinja_parser_advance(p))
                return NULL;
            if (!item)
                continue;
        } else if (p->token.kind == QN__JINJA_TOKEN_VARIABLE_BEGIN) {
            item = parse_output(p);
        } else {
            if (!qn__jinja_parser_advance(p))
                return NULL;
            if (at_end_name(p, ends)) {
                p->depth--;
                return block;
            }
            item = parse_statement(p);
        }
        if (!qn__jinja_node_add(p, block, &capacity, item))
            return NULL;
    }
    return NULL;
}

qn__jinja_node *qn__jinja_parse(qn__jinja_parser *p)
{
    if (!qn__jinja_lexer_next(&p->lexer, &p->next) || !qn__jinja_parser_advance(p)) {
        p->failed = true;
        return NULL;
    }
    return parse_block(p, NULL);
}
