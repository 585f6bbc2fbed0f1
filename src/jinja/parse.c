/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of chat templates: expressions. Jinja's grammar, one function a level. Depth is
 * bounded twice: by recursion here, and by the depth of the tree, since a long chain such as
 * a + b + c ... leans to one side without recursion.
 */
#include "jinja/jinja.h"

/* ---- primaries ------------------------------------------------------------------------------ */

static qn__jinja_node *constant(qn__jinja_parser *p, qn__jinja_value value)
{
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_CONST, NULL, NULL, NULL);
    if (node)
        node->value = value;
    return node;
}

static qn__jinja_node *parse_string(qn__jinja_parser *p)
{
    qn__jinja_str *s = qn__jinja_parser_alloc(p, sizeof *s);
    if (!s)
        return NULL;
    *s = p->token.text;
    qn__jinja_node *node = constant(p, (qn__jinja_value){.kind = QN__JINJA_STRING, .s = s});
    char *joined = NULL;
    size_t room = 0;
    while (node && qn__jinja_parser_advance(p) && p->token.kind == QN__JINJA_TOKEN_STRING) {
        const qn__jinja_str *more = &p->token.text;
        if (s->n + more->n > room) {
            room = 2 * (s->n + more->n);
            if (!(joined = qn__jinja_parser_alloc(p, room)))
                return NULL;
            memcpy(joined, s->data, s->n);
        }
        if (more->n > 0)
            memcpy(joined + s->n, more->data, more->n);
        *s = (qn__jinja_str){.data = joined ? joined : s->data, .n = s->n + more->n};
    }
    return p->failed ? NULL : node;
}

static qn__jinja_node *parse_name(qn__jinja_parser *p)
{
    static const struct {
        const char *name;
        qn__jinja_value value;
    } constants[] = {
        {"true", {.kind = QN__JINJA_BOOL, .truth = true}},
        {"True", {.kind = QN__JINJA_BOOL, .truth = true}},
        {"false", {.kind = QN__JINJA_BOOL}},
        {"False", {.kind = QN__JINJA_BOOL}},
        {"none", {.kind = QN__JINJA_NONE}},
        {"None", {.kind = QN__JINJA_NONE}},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (qn__jinja_parser_is_name(p, constants[i].name)) {
            qn__jinja_node *node = constant(p, constants[i].value);
            return qn__jinja_parser_advance(p) ? node : NULL;
        }
    qn__jinja_node *node = qn__jinja_node_new(p, QN__JINJA_NODE_NAME, NULL, NULL, NULL);
    if (!node || !(node->name = qn__jinja_parser_str(p, &p->token)))
        return NULL;
    p->uses |= qn__jinja_parser_is_name(p, "varargs")  ? QN__JINJA_USES_VARARGS
               : qn__jinja_parser_is_name(p, "kwargs") ? QN__JINJA_USES_KWARGS
               : qn__jinja_parser_is_name(p, "caller") ? QN__JINJA_USES_CALLER
                                                       : 0;
    return qn__jinja_parser_advance(p) ? node : NULL;
}

/* Items up to `close`; of a dict, pairs. */
static qn__jinja_node *parse_items(qn__jinja_parser *p, qn__jinja_node_kind kind, int close)
{
    size_t capacity = 0;
    qn__jinja_node *node = qn__jinja_node_new(p, kind, NULL, NULL, NULL);
    if (!node || !qn__jinja_parser_advance(p))
        return NULL;
    while (!qn__jinja_parser_is(p, close)) {
        if (node->n && !qn__jinja_parser_expect(p, ','))
            return NULL;
        if (qn__jinja_parser_is(p, close))
            break;
        if (!qn__jinja_node_add(p, node, &capacity, qn__jinja_parse_expression(p, true)))
            return NULL;
        if (kind == QN__JINJA_NODE_DICT &&
            (!qn__jinja_parser_expect(p, ':') ||
             !qn__jinja_node_add(p, node, &capacity, qn__jinja_parse_expression(p, true))))
            return NULL;
    }
    return qn__jinja_parser_advance(p) ? node : NULL;
}

qn__jinja_node *qn__jinja_parse_primary(qn__jinja_parser *p)
{
    qn__jinja_node *node = NULL;
    if (p->failed)
        return NULL;
    switch (p->token.kind) {
    case QN__JINJA_TOKEN_NAME: return parse_name(p);
    case QN__JINJA_TOKEN_STRING: return parse_string(p);
    case QN__JINJA_TOKEN_INT:
        node = constant(p, (qn__jinja_value){.kind = QN__JINJA_INT, .i = p->token.i});
        return qn__jinja_parser_advance(p) ? node : NULL;
    case QN__JINJA_TOKEN_FLOAT:
        node = constant(p, (qn__jinja_value){.kind = QN__JINJA_FLOAT, .f = p->token.f});
        return qn__jinja_parser_advance(p) ? node : NULL;
    default: break;
    }
    if (qn__jinja_parser_is(p, '['))
        return parse_items(p, QN__JINJA_NODE_LIST, ']');
    if (qn__jinja_parser_is(p, '{'))
        return parse_items(p, QN__JINJA_NODE_DICT, '}');
    if (!qn__jinja_parser_skip(p, '('))
        return qn__jinja_parser_unexpected(p);
    node = qn__jinja_parse_tuple(p, true, NULL, true);
    return node && qn__jinja_parser_expect(p, ')') ? node : NULL;
}

static bool at_tuple_end(const qn__jinja_parser *p, const char *end_name)
{
    return p->token.kind == QN__JINJA_TOKEN_BLOCK_END ||
           p->token.kind == QN__JINJA_TOKEN_VARIABLE_END || qn__jinja_parser_is(p, ')') ||
           (end_name && qn__jinja_parser_is_name(p, end_name));
}

qn__jinja_node *qn__jinja_parse_tuple(qn__jinja_parser *p, bool with_condition,
                                      const char *end_name, bool closed)
{
    size_t capacity = 0;
    qn__jinja_node *tuple = NULL, *first = NULL;
    if (!at_tuple_end(p, end_name)) {
        first = qn__jinja_parse_expression(p, with_condition);
        if (!first || !qn__jinja_parser_is(p, ','))
            return first;
    } else if (!closed) {
        return qn__jinja_parser_unexpected(p);
    }
    tuple = qn__jinja_node_new(p, QN__JINJA_NODE_TUPLE, NULL, NULL, NULL);
    if (!tuple || (first && !qn__jinja_node_add(p, tuple, &capacity, first)))
        return NULL;
    while (first && qn__jinja_parser_skip(p, ',') && !at_tuple_end(p, end_name))
        if (!qn__jinja_node_add(p, tuple, &capacity, qn__jinja_parse_expression(p, with_condition)))
            return NULL;
    return p->failed ? NULL : tuple;
}

/* ---- behind a primary: attributes, items, calls, filters, tests ------------------------------ */

static bool add_argument(qn__jinja_parser *p, qn__jinja_arguments *call, size_t *room,
                         const qn__jinja_str *name, qn__jinja_node *value)
{
    if (!value)
        return false;
    size_t n = name ? call->n_named : call->n;
    if (n == room[name != NULL]) {
        size_t wanted = n ? n * 2 : 4;
        qn__jinja_node **values = qn__jinja_parser_alloc(p, wanted * sizeof *values);
        const qn__jinja_str **names =
            name ? qn__jinja_parser_alloc(p, wanted * sizeof *names) : NULL;
        if (!values || (name && !names))
            return false;
        if (n)
            memcpy(values, name ? call->named : call->args, n * sizeof *values);
        if (n && name)
            memcpy(names, call->names, n * sizeof *names);
        *(name ? &call->named : &call->args) = values;
        if (name)
            call->names = names;
        room[name != NULL] = wanted;
    }
    if (name) {
        call->names[call->n_named] = name;
        call->named[call->n_named++] = value;
    } else {
        call->args[call->n++] = value;
    }
    return true;
}

static bool parse_argument(qn__jinja_parser *p, qn__jinja_arguments *call, size_t *room)
{
    if (qn__jinja_parser_is(p, '*') || qn__jinja_parser_is(p, QN__JINJA_OP2('*', '*'))) {
        qn__jinja_node **place = p->token.op == '*' ? &call->star : &call->star_star;
        if (*place)
            return qn__jinja_parser_fail(p, "a call has * or ** twice"), false;
        return qn__jinja_parser_advance(p) &&
               (*place = qn__jinja_parse_expression(p, true)) != NULL;
    }
    const qn__jinja_str *name = NULL;
    if (p->token.kind == QN__JINJA_TOKEN_NAME && p->next.kind == QN__JINJA_TOKEN_OPERATOR &&
        p->next.op == '=') {
        name = qn__jinja_parser_str(p, &p->token);
        if (!name || !qn__jinja_parser_advance(p) || !qn__jinja_parser_advance(p))
            return false;
    } else if (call->n_named || call->star_star) {
        return qn__jinja_parser_fail(p, "a positional argument stands behind a named one"), false;
    }
    return add_argument(p, call, room, name, qn__jinja_parse_expression(p, true));
}

/* "(...)", the current token being "(". */
static qn__jinja_arguments *parse_arguments(qn__jinja_parser *p)
{
    qn__jinja_arguments *call = qn__jinja_parser_alloc(p, sizeof *call);
    size_t room[2] = {0, 0}, n = 0;
    if (!call || !qn__jinja_parser_expect(p, '('))
        return NULL;
    for (; !qn__jinja_parser_is(p, ')'); n++) {
        if (n && !qn__jinja_parser_expect(p, ','))
            return NULL;
        if (qn__jinja_parser_is(p, ')'))
            break;
        if (!parse_argument(p, call, room))
            return NULL;
    }
    return qn__jinja_parser_advance(p) ? call : NULL;
}

/* The arguments count in the depth of the node. */
static qn__jinja_node *deepen_by_arguments(qn__jinja_parser *p, qn__jinja_node *node)
{
    const qn__jinja_arguments *call = node ? node->call : NULL;
    bool ok = node != NULL;
    for (size_t i = 0; ok && call && i < call->n; i++)
        ok = qn__jinja_node_deepen(p, node, call->args[i]);
    for (size_t i = 0; ok && call && i < call->n_named; i++)
        ok = qn__jinja_node_deepen(p, node, call->named[i]);
    ok = ok && (!call || (qn__jinja_node_deepen(p, node, call->star) &&
                          qn__jinja_node_deepen(p, node, call->star_star)));
    return ok ? node : NULL;
}

static qn__jinja_node *parse_slice_or_item(qn__jinja_parser *p)
{
    qn__jinja_node *part[3] = {NULL, NULL, NULL};
    int n = 0;
    if (!qn__jinja_parser_is(p, ':')) {
        part[0] = qn__jinja_parse_expression(p, true);
        if (!part[0] || !qn__jinja_parser_is(p, ':'))
            return part[0];
    }
    while (n < 2 && qn__jinja_parser_skip(p, ':')) {
        n++;
        if (!qn__jinja_parser_is(p, ':') && !qn__jinja_parser_is(p, ']') &&
            !qn__jinja_parser_is(p, ',') && !(part[n] = qn__jinja_parse_expression(p, true)))
            return NULL;
    }
    return qn__jinja_node_new(p, QN__JINJA_NODE_SLICE, part[0], part[1], part[2]);
}

static qn__jinja_node *parse_subscript(qn__jinja_parser *p, qn__jinja_node *node)
{
    if (!qn__jinja_parser_advance(p))
        return NULL;
    qn__jinja_node *item = parse_slice_or_item(p);
    if (item && qn__jinja_parser_is(p, ',')) {
        size_t capacity = 0;
        qn__jinja_node *tuple = qn__jinja_node_new(p, QN__JINJA_NODE_TUPLE, NULL, NULL, NULL);
        if (!tuple || !qn__jinja_node_add(p, tuple, &capacity, item))
            return NULL;
        while (qn__jinja_parser_skip(p, ','))
            if (!qn__jinja_node_add(p, tuple, &capacity, qn__jinja_parse_expression(p, true)))
                return NULL;
        item = tuple;
    }
    if (!item || !qn__jinja_parser_expect(p, ']'))
        return NULL;
    return qn__jinja_node_new(p, QN__JINJA_NODE_ITEM, node, item, NULL);
}

static qn__jinja_node *parse_dot(qn__jinja_parser *p, qn__jinja_node *node)
{
    if (!qn__jinja_parser_advance(p))
        return NULL;
    if (p->token.kind == QN__JINJA_TOKEN_INT) {
        qn__jinja_node *index = qn__jinja_parse_primary(p);
        return index ? qn__jinja_node_new(p, QN__JINJA_NODE_ITEM, node, index, NULL) : NULL;
    }
    if (p->token.kind != QN__JINJA_TOKEN_NAME)
        return qn__jinja_parser_fail(p, "expected a name behind '.'");
    qn__jinja_node *attribute = qn__jinja_node_new(p, QN__JINJA_NODE_ATTRIBUTE, node, NULL, NULL);
    if (!attribute || !(attribute->name = qn__jinja_parser_str(p, &p->token)))
        return NULL;
    return qn__jinja_parser_advance(p) ? attribute : NULL;
}

static qn__jinja_node *parse_call(qn__jinja_parser *p, qn__jinja_node *node)
{
    qn__jinja_node *call = qn__jinja_node_new(p, QN__JINJA_NODE_CALL, node, NULL, NULL);
    if (!call || !(call->call = parse_arguments(p)))
        return NULL;
    return deepen_by_arguments(p, call);
}

qn__jinja_node *qn__jinja_parse_postfix(qn__jinja_parser *p, qn__jinja_node *node)
{
    while (node && !p->failed) {
        if (qn__jinja_parser_is(p, '.'))
            node = parse_dot(p, node);
        else if (qn__jinja_parser_is(p, '['))
            node = parse_subscript(p, node);
        else if (qn__jinja_parser_is(p, '('))
            node = parse_call(p, node);
        else
            return node;
    }
    return NULL;
}

/* A filter or test by its name, which may have dots. */
static qn__jinja_node *parse_named(qn__jinja_parser *p, qn__jinja_node_kind kind,
                                   qn__jinja_node *node)
{
    if (p->token.kind != QN__JINJA_TOKEN_NAME)
        return qn__jinja_parser_fail(p, "expected the name of a %s",
                                     kind == QN__JINJA_NODE_TEST ? "test" : "filter");
    qn__jinja_node *named = qn__jinja_node_new(p, kind, node, NULL, NULL);
    if (!named || !(named->name = qn__jinja_parser_str(p, &p->token)))
        return NULL;
    named->function = kind == QN__JINJA_NODE_TEST ? qn__jinja_test_find(named->name)
                                                  : qn__jinja_filter_find(named->name);
    return qn__jinja_parser_advance(p) ? named : NULL;
}

/* Whether a test's argument without brackets begins here. */
static bool bare_argument(const qn__jinja_parser *p)
{
    switch (p->token.kind) {
    case QN__JINJA_TOKEN_STRING:
    case QN__JINJA_TOKEN_INT:
    case QN__JINJA_TOKEN_FLOAT: return true;
    case QN__JINJA_TOKEN_NAME:
        return !qn__jinja_parser_is_name(p, "else") && !qn__jinja_parser_is_name(p, "or") &&
               !qn__jinja_parser_is_name(p, "and") && !qn__jinja_parser_is_name(p, "if");
    default: return qn__jinja_parser_is(p, '[') || qn__jinja_parser_is(p, '{');
    }
}

static qn__jinja_node *parse_test(qn__jinja_parser *p, qn__jinja_node *node)
{
    bool negated = qn__jinja_parser_skip_name(p, "not");
    qn__jinja_node *test = parse_named(p, QN__JINJA_NODE_TEST, node);
    if (!test)
        return NULL;
    if (qn__jinja_parser_is(p, '(')) {
        if (!(test->call = parse_arguments(p)))
            return NULL;
    } else if (bare_argument(p)) {
        if (qn__jinja_parser_is_name(p, "is"))
            return qn__jinja_parser_fail(p, "tests cannot be chained with \"is\"");
        size_t room[2] = {0, 0};
        test->call = qn__jinja_parser_alloc(p, sizeof *test->call);
        if (!test->call || !add_argument(p, test->call, room, NULL,
                                         qn__jinja_parse_postfix(p, qn__jinja_parse_primary(p))))
            return NULL;
    }
    test = deepen_by_arguments(p, test);
    return test && negated ? qn__jinja_node_new(p, QN__JINJA_NODE_NOT, test, NULL, NULL) : test;
}

qn__jinja_node *qn__jinja_parse_filters(qn__jinja_parser *p, qn__jinja_node *node, bool begin_here)
{
    while (node && !p->failed) {
        if (begin_here || qn__jinja_parser_skip(p, '|')) {
            begin_here = false;
            node = parse_named(p, QN__JINJA_NODE_FILTER, node);
            if (node && qn__jinja_parser_is(p, '(')) {
                node->call = parse_arguments(p);
                node = node->call ? deepen_by_arguments(p, node) : NULL;
            }
        } else if (qn__jinja_parser_skip_name(p, "is")) {
            node = parse_test(p, node);
        } else if (qn__jinja_parser_is(p, '(')) {
            node = parse_call(p, node);
        } else {
            return p->failed ? NULL : node;
        }
    }
    return NULL;
}

/* ---- operators ------------------------------------------------------------------------------ */

static qn__jinja_node *parse_unary(qn__jinja_parser *p, bool with_filters)
{
    if (p->failed || !qn__jinja_parser_descend(p))
        return NULL;
    qn__jinja_node *node;
    if (qn__jinja_parser_is(p, '-') || qn__jinja_parser_is(p, '+')) {
        qn__jinja_node_kind kind = p->token.op == '-' ? QN__JINJA_NODE_NEGATE : QN__JINJA_NODE_PLUS;
        node = qn__jinja_parser_advance(p) ? parse_unary(p, false) : NULL;
        node = node ? qn__jinja_node_new(p, kind, node, NULL, NULL) : NULL;
    } else {
        node = qn__jinja_parse_primary(p);
    }
    node = qn__jinja_parse_postfix(p, node);
    if (with_filters && node)
        node = qn__jinja_parse_filters(p, node, false);
    p->depth--;
    return node;
}

typedef struct operator_row {
    int token, op;
} operator_row;

/* Left-associative: `count` operators between what `lower` parses. */
static qn__jinja_node *parse_binary(qn__jinja_parser *p, const operator_row *rows, size_t count,
                                    qn__jinja_node *(*lower)(qn__jinja_parser *))
{
    qn__jinja_node *left = lower(p);
    while (left && !p->failed) {
        size_t i = 0;
        while (i < count && !qn__jinja_parser_is(p, rows[i].token))
            i++;
        if (i == count)
            return left;
        qn__jinja_node *right = qn__jinja_parser_advance(p) ? lower(p) : NULL;
        left = right ? qn__jinja_node_new(p, QN__JINJA_NODE_BINARY, left, right, NULL) : NULL;
        if (left)
            left->op = rows[i].op;
    }
    return NULL;
}

static qn__jinja_node *parse_signed(qn__jinja_parser *p)
{
    return parse_unary(p, true);
}

static qn__jinja_node *parse_power(qn__jinja_parser *p)
{
    static const operator_row rows[] = {{QN__JINJA_OP2('*', '*'), QN__JINJA_OP_POWER}};
    return parse_binary(p, rows, 1, parse_signed);
}

static qn__jinja_node *parse_product(qn__jinja_parser *p)
{
    static const operator_row rows[] = {{'*', QN__JINJA_OP_MULTIPLY},
                                        {'/', QN__JINJA_OP_DIVIDE},
                                        {QN__JINJA_OP2('/', '/'), QN__JINJA_OP_FLOOR_DIVIDE},
                                        {'%', QN__JINJA_OP_MODULO}};
    return parse_binary(p, rows, 4, parse_power);
}

static qn__jinja_node *parse_concat(qn__jinja_parser *p)
{
    qn__jinja_node *node = parse_product(p), *all;
    size_t capacity = 0;
    if (!node || !qn__jinja_parser_is(p, '~'))
        return node;
    all = qn__jinja_node_new(p, QN__JINJA_NODE_CONCAT, NULL, NULL, NULL);
    if (!all || !qn__jinja_node_add(p, all, &capacity, node))
        return NULL;
    while (qn__jinja_parser_skip(p, '~'))
        if (!qn__jinja_node_add(p, all, &capacity, parse_product(p)))
            return NULL;
    return p->failed ? NULL : all;
}

static qn__jinja_node *parse_sum(qn__jinja_parser *p)
{
    static const operator_row rows[] = {{'+', QN__JINJA_OP_ADD}, {'-', QN__JINJA_OP_SUBTRACT}};
    return parse_binary(p, rows, 2, parse_concat);
}

/* The comparison that stands here, which is passed over; -1: none. */
static int comparison(qn__jinja_parser *p)
{
    static const operator_row rows[] = {{QN__JINJA_OP2('=', '='), QN__JINJA_OP_EQ},
                                        {QN__JINJA_OP2('!', '='), QN__JINJA_OP_NE},
                                        {'<', QN__JINJA_OP_LT},
                                        {QN__JINJA_OP2('<', '='), QN__JINJA_OP_LE},
                                        {'>', QN__JINJA_OP_GT},
                                        {QN__JINJA_OP2('>', '='), QN__JINJA_OP_GE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (qn__jinja_parser_skip(p, rows[i].token))
            return rows[i].op;
    if (qn__jinja_parser_skip_name(p, "in"))
        return QN__JINJA_OP_IN;
    if (qn__jinja_parser_is_name(p, "not") && p->next.kind == QN__JINJA_TOKEN_NAME &&
        qn__jinja_str_is(&p->next.text, "in")) {
        qn__jinja_parser_advance(p);
        qn__jinja_parser_advance(p);
        return QN__JINJA_OP_NOT_IN;
    }
    return -1;
}

static qn__jinja_node *parse_comparison(qn__jinja_parser *p)
{
    qn__jinja_node *left = parse_sum(p), *node = NULL;
    size_t capacity = 0;
    int op;
    while (left && (op = comparison(p)) >= 0) {
        if (!node) {
            node = qn__jinja_node_new(p, QN__JINJA_NODE_COMPARE, NULL, NULL, NULL);
            if (!node || !(node->ops = qn__jinja_parser_alloc(p, QN__JINJA_SOURCE_DEPTH)) ||
                !qn__jinja_node_add(p, node, &capacity, left))
                return NULL;
        }
        if (node->n == QN__JINJA_SOURCE_DEPTH)
            return qn__jinja_parser_fail(p, "more than %d comparisons in a row",
                                         QN__JINJA_SOURCE_DEPTH);
        node->ops[node->n - 1] = (unsigned char)op;
        if (!qn__jinja_node_add(p, node, &capacity, parse_sum(p)))
            return NULL;
    }
    return p->failed ? NULL : node ? node : left;
}

static qn__jinja_node *parse_not(qn__jinja_parser *p)
{
    if (!qn__jinja_parser_is_name(p, "not"))
        return parse_comparison(p);
    if (!qn__jinja_parser_descend(p) || !qn__jinja_parser_advance(p))
        return NULL;
    qn__jinja_node *node = parse_not(p);
    p->depth--;
    return node ? qn__jinja_node_new(p, QN__JINJA_NODE_NOT, node, NULL, NULL) : NULL;
}

static qn__jinja_node *parse_logic(qn__jinja_parser *p, const char *name, qn__jinja_node_kind kind,
                                   qn__jinja_node *(*lower)(qn__jinja_parser *))
{
    qn__jinja_node *left = lower(p);
    while (left && qn__jinja_parser_skip_name(p, name)) {
        qn__jinja_node *right = lower(p);
        left = right ? qn__jinja_node_new(p, kind, left, right, NULL) : NULL;
    }
    return p->failed ? NULL : left;
}

static qn__jinja_node *parse_and(qn__jinja_parser *p)
{
    return parse_logic(p, "and", QN__JINJA_NODE_AND, parse_not);
}

static qn__jinja_node *parse_or(qn__jinja_parser *p)
{
    return parse_logic(p, "or", QN__JINJA_NODE_OR, parse_and);
}

static qn__jinja_node *parse_if_else(qn__jinja_parser *p)
{
    qn__jinja_node *node = parse_or(p);
    while (node && qn__jinja_parser_skip_name(p, "if")) {
        qn__jinja_node *test = parse_or(p), *other = NULL;
        if (!test || (qn__jinja_parser_skip_name(p, "else") &&
                      !(other = qn__jinja_parse_expression(p, true))))
            return NULL;
        node = qn__jinja_node_new(p, QN__JINJA_NODE_IF_ELSE, test, node, other);
    }
    return p->failed ? NULL : node;
}

qn__jinja_node *qn__jinja_parse_expression(qn__jinja_parser *p, bool with_condition)
{
    if (p->failed || !qn__jinja_parser_descend(p))
        return NULL;
    qn__jinja_node *node = with_condition ? parse_if_else(p) : parse_or(p);
    p->depth--;
    return node;
}
