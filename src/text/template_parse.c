/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of chat templates: expressions. Jinja's grammar, one function a level. Depth is
 * bounded twice: by recursion here, and by the depth of the tree, since a long chain such as
 * a + b + c ... leans to one side without recursion.
 */
#include "text/template.h"

/* ---- primaries ------------------------------------------------------------------------------ */

static qn__node *constant(qn__parser *p, qn__value value)
{
    qn__node *node = qn__node_new(p, QN__N_CONST, NULL, NULL, NULL);
    if (node)
        node->value = value;
    return node;
}

static qn__node *parse_string(qn__parser *p)
{
    qn__str *s = qn__parser_alloc(p, sizeof *s);
    if (!s)
        return NULL;
    *s = p->token.text;
    qn__node *node = constant(p, (qn__value){.kind = QN__V_STRING, .s = s});
    char *joined = NULL;
    size_t room = 0;
    while (node && qn__parser_advance(p) && p->token.kind == QN__T_STRING) {
        const qn__str *more = &p->token.text;
        if (s->n + more->n > room) {
            room = 2 * (s->n + more->n);
            if (!(joined = qn__parser_alloc(p, room)))
                return NULL;
            memcpy(joined, s->data, s->n);
        }
        if (more->n > 0)
            memcpy(joined + s->n, more->data, more->n);
        *s = (qn__str){.data = joined ? joined : s->data, .n = s->n + more->n};
    }
    return p->failed ? NULL : node;
}

static qn__node *parse_name(qn__parser *p)
{
    static const struct {
        const char *name;
        qn__value value;
    } constants[] = {
        {"true", {.kind = QN__V_BOOL, .truth = true}},
        {"True", {.kind = QN__V_BOOL, .truth = true}},
        {"false", {.kind = QN__V_BOOL}},
        {"False", {.kind = QN__V_BOOL}},
        {"none", {.kind = QN__V_NONE}},
        {"None", {.kind = QN__V_NONE}},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (qn__parser_is_name(p, constants[i].name)) {
            qn__node *node = constant(p, constants[i].value);
            return qn__parser_advance(p) ? node : NULL;
        }
    qn__node *node = qn__node_new(p, QN__N_NAME, NULL, NULL, NULL);
    if (!node || !(node->name = qn__parser_str(p, &p->token)))
        return NULL;
    p->uses |= qn__parser_is_name(p, "varargs")  ? QN__USES_VARARGS
               : qn__parser_is_name(p, "kwargs") ? QN__USES_KWARGS
               : qn__parser_is_name(p, "caller") ? QN__USES_CALLER
                                                 : 0;
    return qn__parser_advance(p) ? node : NULL;
}

/* Items up to `close`; of a dict, pairs. */
static qn__node *parse_items(qn__parser *p, qn__node_kind kind, int close)
{
    size_t capacity = 0;
    qn__node *node = qn__node_new(p, kind, NULL, NULL, NULL);
    if (!node || !qn__parser_advance(p))
        return NULL;
    while (!qn__parser_is(p, close)) {
        if (node->n && !qn__parser_expect(p, ','))
            return NULL;
        if (qn__parser_is(p, close))
            break;
        if (!qn__node_add(p, node, &capacity, qn__parse_expression(p, true)))
            return NULL;
        if (kind == QN__N_DICT &&
            (!qn__parser_expect(p, ':') ||
             !qn__node_add(p, node, &capacity, qn__parse_expression(p, true))))
            return NULL;
    }
    return qn__parser_advance(p) ? node : NULL;
}

qn__node *qn__parse_primary(qn__parser *p)
{
    qn__node *node = NULL;
    if (p->failed)
        return NULL;
    switch (p->token.kind) {
    case QN__T_NAME: return parse_name(p);
    case QN__T_STRING: return parse_string(p);
    case QN__T_INT:
        node = constant(p, (qn__value){.kind = QN__V_INT, .i = p->token.i});
        return qn__parser_advance(p) ? node : NULL;
    case QN__T_FLOAT:
        node = constant(p, (qn__value){.kind = QN__V_FLOAT, .f = p->token.f});
        return qn__parser_advance(p) ? node : NULL;
    default: break;
    }
    if (qn__parser_is(p, '['))
        return parse_items(p, QN__N_LIST, ']');
    if (qn__parser_is(p, '{'))
        return parse_items(p, QN__N_DICT, '}');
    if (!qn__parser_skip(p, '('))
        return qn__parser_unexpected(p);
    node = qn__parse_tuple(p, true, NULL, true);
    return node && qn__parser_expect(p, ')') ? node : NULL;
}

static bool at_tuple_end(const qn__parser *p, const char *end_name)
{
    return p->token.kind == QN__T_BLOCK_END || p->token.kind == QN__T_VARIABLE_END ||
           qn__parser_is(p, ')') || (end_name && qn__parser_is_name(p, end_name));
}

qn__node *qn__parse_tuple(qn__parser *p, bool with_condition, const char *end_name, bool closed)
{
    size_t capacity = 0;
    qn__node *tuple = NULL, *first = NULL;
    if (!at_tuple_end(p, end_name)) {
        first = qn__parse_expression(p, with_condition);
        if (!first || !qn__parser_is(p, ','))
            return first;
    } else if (!closed) {
        return qn__parser_unexpected(p);
    }
    tuple = qn__node_new(p, QN__N_TUPLE, NULL, NULL, NULL);
    if (!tuple || (first && !qn__node_add(p, tuple, &capacity, first)))
        return NULL;
    while (first && qn__parser_skip(p, ',') && !at_tuple_end(p, end_name))
        if (!qn__node_add(p, tuple, &capacity, qn__parse_expression(p, with_condition)))
            return NULL;
    return p->failed ? NULL : tuple;
}

/* ---- behind a primary: attributes, items, calls, filters, tests ------------------------------ */

static bool add_argument(qn__parser *p, qn__arguments *call, size_t *room, const qn__str *name,
                         qn__node *value)
{
    if (!value)
        return false;
    size_t n = name ? call->n_named : call->n;
    if (n == room[name != NULL]) {
        size_t wanted = n ? n * 2 : 4;
        qn__node **values = qn__parser_alloc(p, wanted * sizeof *values);
        const qn__str **names = name ? qn__parser_alloc(p, wanted * sizeof *names) : NULL;
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

static bool parse_argument(qn__parser *p, qn__arguments *call, size_t *room)
{
    if (qn__parser_is(p, '*') || qn__parser_is(p, QN__OP2('*', '*'))) {
        qn__node **place = p->token.op == '*' ? &call->star : &call->star_star;
        if (*place)
            return qn__parser_fail(p, "a call has * or ** twice"), false;
        return qn__parser_advance(p) && (*place = qn__parse_expression(p, true)) != NULL;
    }
    const qn__str *name = NULL;
    if (p->token.kind == QN__T_NAME && p->next.kind == QN__T_OPERATOR && p->next.op == '=') {
        name = qn__parser_str(p, &p->token);
        if (!name || !qn__parser_advance(p) || !qn__parser_advance(p))
            return false;
    } else if (call->n_named || call->star_star) {
        return qn__parser_fail(p, "a positional argument stands behind a named one"), false;
    }
    return add_argument(p, call, room, name, qn__parse_expression(p, true));
}

/* "(...)", the current token being "(". */
static qn__arguments *parse_arguments(qn__parser *p)
{
    qn__arguments *call = qn__parser_alloc(p, sizeof *call);
    size_t room[2] = {0, 0}, n = 0;
    if (!call || !qn__parser_expect(p, '('))
        return NULL;
    for (; !qn__parser_is(p, ')'); n++) {
        if (n && !qn__parser_expect(p, ','))
            return NULL;
        if (qn__parser_is(p, ')'))
            break;
        if (!parse_argument(p, call, room))
            return NULL;
    }
    return qn__parser_advance(p) ? call : NULL;
}

/* The arguments count in the depth of the node. */
static qn__node *deepen_by_arguments(qn__parser *p, qn__node *node)
{
    const qn__arguments *call = node ? node->call : NULL;
    bool ok = node != NULL;
    for (size_t i = 0; ok && call && i < call->n; i++)
        ok = qn__node_deepen(p, node, call->args[i]);
    for (size_t i = 0; ok && call && i < call->n_named; i++)
        ok = qn__node_deepen(p, node, call->named[i]);
    ok = ok && (!call || (qn__node_deepen(p, node, call->star) &&
                          qn__node_deepen(p, node, call->star_star)));
    return ok ? node : NULL;
}

static qn__node *parse_slice_or_item(qn__parser *p)
{
    qn__node *part[3] = {NULL, NULL, NULL};
    int n = 0;
    if (!qn__parser_is(p, ':')) {
        part[0] = qn__parse_expression(p, true);
        if (!part[0] || !qn__parser_is(p, ':'))
            return part[0];
    }
    while (n < 2 && qn__parser_skip(p, ':')) {
        n++;
        if (!qn__parser_is(p, ':') && !qn__parser_is(p, ']') && !qn__parser_is(p, ',') &&
            !(part[n] = qn__parse_expression(p, true)))
            return NULL;
    }
    return qn__node_new(p, QN__N_SLICE, part[0], part[1], part[2]);
}

static qn__node *parse_subscript(qn__parser *p, qn__node *node)
{
    if (!qn__parser_advance(p))
        return NULL;
    qn__node *item = parse_slice_or_item(p);
    if (item && qn__parser_is(p, ',')) {
        size_t capacity = 0;
        qn__node *tuple = qn__node_new(p, QN__N_TUPLE, NULL, NULL, NULL);
        if (!tuple || !qn__node_add(p, tuple, &capacity, item))
            return NULL;
        while (qn__parser_skip(p, ','))
            if (!qn__node_add(p, tuple, &capacity, qn__parse_expression(p, true)))
                return NULL;
        item = tuple;
    }
    if (!item || !qn__parser_expect(p, ']'))
        return NULL;
    return qn__node_new(p, QN__N_ITEM, node, item, NULL);
}

static qn__node *parse_dot(qn__parser *p, qn__node *node)
{
    if (!qn__parser_advance(p))
        return NULL;
    if (p->token.kind == QN__T_INT) {
        qn__node *index = qn__parse_primary(p);
        return index ? qn__node_new(p, QN__N_ITEM, node, index, NULL) : NULL;
    }
    if (p->token.kind != QN__T_NAME)
        return qn__parser_fail(p, "expected a name behind '.'");
    qn__node *attribute = qn__node_new(p, QN__N_ATTRIBUTE, node, NULL, NULL);
    if (!attribute || !(attribute->name = qn__parser_str(p, &p->token)))
        return NULL;
    return qn__parser_advance(p) ? attribute : NULL;
}

static qn__node *parse_call(qn__parser *p, qn__node *node)
{
    qn__node *call = qn__node_new(p, QN__N_CALL, node, NULL, NULL);
    if (!call || !(call->call = parse_arguments(p)))
        return NULL;
    return deepen_by_arguments(p, call);
}

qn__node *qn__parse_postfix(qn__parser *p, qn__node *node)
{
    while (node && !p->failed) {
        if (qn__parser_is(p, '.'))
            node = parse_dot(p, node);
        else if (qn__parser_is(p, '['))
            node = parse_subscript(p, node);
        else if (qn__parser_is(p, '('))
            node = parse_call(p, node);
        else
            return node;
    }
    return NULL;
}

/* A filter or test by its name, which may have dots. */
static qn__node *parse_named(qn__parser *p, qn__node_kind kind, qn__node *node)
{
    if (p->token.kind != QN__T_NAME)
        return qn__parser_fail(p, "expected the name of a %s",
                               kind == QN__N_TEST ? "test" : "filter");
    qn__node *named = qn__node_new(p, kind, node, NULL, NULL);
    if (!named || !(named->name = qn__parser_str(p, &p->token)))
        return NULL;
    named->function =
        kind == QN__N_TEST ? qn__test_find(named->name) : qn__filter_find(named->name);
    return qn__parser_advance(p) ? named : NULL;
}

/* Whether a test's argument without brackets begins here. */
static bool bare_argument(const qn__parser *p)
{
    switch (p->token.kind) {
    case QN__T_STRING:
    case QN__T_INT:
    case QN__T_FLOAT: return true;
    case QN__T_NAME:
        return !qn__parser_is_name(p, "else") && !qn__parser_is_name(p, "or") &&
               !qn__parser_is_name(p, "and") && !qn__parser_is_name(p, "if");
    default: return qn__parser_is(p, '[') || qn__parser_is(p, '{');
    }
}

static qn__node *parse_test(qn__parser *p, qn__node *node)
{
    bool negated = qn__parser_skip_name(p, "not");
    qn__node *test = parse_named(p, QN__N_TEST, node);
    if (!test)
        return NULL;
    if (qn__parser_is(p, '(')) {
        if (!(test->call = parse_arguments(p)))
            return NULL;
    } else if (bare_argument(p)) {
        if (qn__parser_is_name(p, "is"))
            return qn__parser_fail(p, "tests cannot be chained with \"is\"");
        size_t room[2] = {0, 0};
        test->call = qn__parser_alloc(p, sizeof *test->call);
        if (!test->call ||
            !add_argument(p, test->call, room, NULL, qn__parse_postfix(p, qn__parse_primary(p))))
            return NULL;
    }
    test = deepen_by_arguments(p, test);
    return test && negated ? qn__node_new(p, QN__N_NOT, test, NULL, NULL) : test;
}

qn__node *qn__parse_filters(qn__parser *p, qn__node *node, bool begin_here)
{
    while (node && !p->failed) {
        if (begin_here || qn__parser_skip(p, '|')) {
            begin_here = false;
            node = parse_named(p, QN__N_FILTER, node);
            if (node && qn__parser_is(p, '(')) {
                node->call = parse_arguments(p);
                node = node->call ? deepen_by_arguments(p, node) : NULL;
            }
        } else if (qn__parser_skip_name(p, "is")) {
            node = parse_test(p, node);
        } else if (qn__parser_is(p, '(')) {
            node = parse_call(p, node);
        } else {
            return p->failed ? NULL : node;
        }
    }
    return NULL;
}

/* ---- operators ------------------------------------------------------------------------------ */

static qn__node *parse_unary(qn__parser *p, bool with_filters)
{
    if (p->failed || !qn__parser_descend(p))
        return NULL;
    qn__node *node;
    if (qn__parser_is(p, '-') || qn__parser_is(p, '+')) {
        qn__node_kind kind = p->token.op == '-' ? QN__N_NEGATE : QN__N_PLUS;
        node = qn__parser_advance(p) ? parse_unary(p, false) : NULL;
        node = node ? qn__node_new(p, kind, node, NULL, NULL) : NULL;
    } else {
        node = qn__parse_primary(p);
    }
    node = qn__parse_postfix(p, node);
    if (with_filters && node)
        node = qn__parse_filters(p, node, false);
    p->depth--;
    return node;
}

typedef struct operator_row {
    int token, op;
} operator_row;

/* Left-associative: `count` operators between what `lower` parses. */
static qn__node *parse_binary(qn__parser *p, const operator_row *rows, size_t count,
                              qn__node *(*lower)(qn__parser *))
{
    qn__node *left = lower(p);
    while (left && !p->failed) {
        size_t i = 0;
        while (i < count && !qn__parser_is(p, rows[i].token))
            i++;
        if (i == count)
            return left;
        qn__node *right = qn__parser_advance(p) ? lower(p) : NULL;
        left = right ? qn__node_new(p, QN__N_BINARY, left, right, NULL) : NULL;
        if (left)
            left->op = rows[i].op;
    }
    return NULL;
}

static qn__node *parse_signed(qn__parser *p)
{
    return parse_unary(p, true);
}

static qn__node *parse_power(qn__parser *p)
{
    static const operator_row rows[] = {{QN__OP2('*', '*'), QN__OP_POWER}};
    return parse_binary(p, rows, 1, parse_signed);
}

static qn__node *parse_product(qn__parser *p)
{
    static const operator_row rows[] = {{'*', QN__OP_MULTIPLY},
                                        {'/', QN__OP_DIVIDE},
                                        {QN__OP2('/', '/'), QN__OP_FLOOR_DIVIDE},
                                        {'%', QN__OP_MODULO}};
    return parse_binary(p, rows, 4, parse_power);
}

static qn__node *parse_concat(qn__parser *p)
{
    qn__node *node = parse_product(p), *all;
    size_t capacity = 0;
    if (!node || !qn__parser_is(p, '~'))
        return node;
    all = qn__node_new(p, QN__N_CONCAT, NULL, NULL, NULL);
    if (!all || !qn__node_add(p, all, &capacity, node))
        return NULL;
    while (qn__parser_skip(p, '~'))
        if (!qn__node_add(p, all, &capacity, parse_product(p)))
            return NULL;
    return p->failed ? NULL : all;
}

static qn__node *parse_sum(qn__parser *p)
{
    static const operator_row rows[] = {{'+', QN__OP_ADD}, {'-', QN__OP_SUBTRACT}};
    return parse_binary(p, rows, 2, parse_concat);
}

/* The comparison that stands here, which is passed over; -1: none. */
static int comparison(qn__parser *p)
{
    static const operator_row rows[] = {{QN__OP2('=', '='), QN__OP_EQ},
                                        {QN__OP2('!', '='), QN__OP_NE},
                                        {'<', QN__OP_LT},
                                        {QN__OP2('<', '='), QN__OP_LE},
                                        {'>', QN__OP_GT},
                                        {QN__OP2('>', '='), QN__OP_GE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (qn__parser_skip(p, rows[i].token))
            return rows[i].op;
    if (qn__parser_skip_name(p, "in"))
        return QN__OP_IN;
    if (qn__parser_is_name(p, "not") && p->next.kind == QN__T_NAME &&
        qn__str_is(&p->next.text, "in")) {
        qn__parser_advance(p);
        qn__parser_advance(p);
        return QN__OP_NOT_IN;
    }
    return -1;
}

static qn__node *parse_comparison(qn__parser *p)
{
    qn__node *left = parse_sum(p), *node = NULL;
    size_t capacity = 0;
    int op;
    while (left && (op = comparison(p)) >= 0) {
        if (!node) {
            node = qn__node_new(p, QN__N_COMPARE, NULL, NULL, NULL);
            if (!node || !(node->ops = qn__parser_alloc(p, QN__TEMPLATE_DEPTH)) ||
                !qn__node_add(p, node, &capacity, left))
                return NULL;
        }
        if (node->n == QN__TEMPLATE_DEPTH)
            return qn__parser_fail(p, "more than %d comparisons in a row", QN__TEMPLATE_DEPTH);
        node->ops[node->n - 1] = (unsigned char)op;
        if (!qn__node_add(p, node, &capacity, parse_sum(p)))
            return NULL;
    }
    return p->failed ? NULL : node ? node : left;
}

static qn__node *parse_not(qn__parser *p)
{
    if (!qn__parser_is_name(p, "not"))
        return parse_comparison(p);
    if (!qn__parser_descend(p) || !qn__parser_advance(p))
        return NULL;
    qn__node *node = parse_not(p);
    p->depth--;
    return node ? qn__node_new(p, QN__N_NOT, node, NULL, NULL) : NULL;
}

static qn__node *parse_logic(qn__parser *p, const char *name, qn__node_kind kind,
                             qn__node *(*lower)(qn__parser *))
{
    qn__node *left = lower(p);
    while (left && qn__parser_skip_name(p, name)) {
        qn__node *right = lower(p);
        left = right ? qn__node_new(p, kind, left, right, NULL) : NULL;
    }
    return p->failed ? NULL : left;
}

static qn__node *parse_and(qn__parser *p)
{
    return parse_logic(p, "and", QN__N_AND, parse_not);
}

static qn__node *parse_or(qn__parser *p)
{
    return parse_logic(p, "or", QN__N_OR, parse_and);
}

static qn__node *parse_if_else(qn__parser *p)
{
    qn__node *node = parse_or(p);
    while (node && qn__parser_skip_name(p, "if")) {
        qn__node *test = parse_or(p), *other = NULL;
        if (!test || (qn__parser_skip_name(p, "else") && !(other = qn__parse_expression(p, true))))
            return NULL;
        node = qn__node_new(p, QN__N_IF_ELSE, test, node, other);
    }
    return p->failed ? NULL : node;
}

qn__node *qn__parse_expression(qn__parser *p, bool with_condition)
{
    if (p->failed || !qn__parser_descend(p))
        return NULL;
    qn__node *node = with_condition ? parse_if_else(p) : parse_or(p);
    p->depth--;
    return node;
}
