/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of chat templates: a parsed Jinja template and one rendering of it.
 *
 * A template is parsed once into a tree that nothing changes. A rendering (qn__jinja_run) walks the
 * tree over values; all it makes lives in its arena and dies with it. Values never change either,
 * but for namespaces, since chat templates run in Jinja's immutable sandbox: so values may be
 * shared.
 *
 * A failure is recorded once with template and line, and sticks: every function then gives the
 * kind QN__JINJA_FAILED, which its callers pass on. What a template may use up is bounded: steps,
 * bytes of output, bytes of memory, depth.
 *
 * A string knows which of its bytes came from the context's data (`spans`), so that encoding can
 * refuse control tokens there. Strings are made by a builder, which carries the spans along.
 */
#ifndef QN_JINJA_JINJA_H
#define QN_JINJA_JINJA_H

#include "base/arena.h"
#include "base/error.h"
#include "base/unicode.h"
#include "quern/text.h"

#include <string.h>

enum {
    QN__JINJA_SOURCE_DEPTH = 200,     /* of expressions and blocks in the source */
    QN__JINJA_RUN_DEPTH = 1000,       /* of evaluation, calls of macros included */
    QN__JINJA_LARGEST_RANGE = 100000, /* as Jinja's sandbox has it */
    QN__JINJA_LARGEST_SOURCE = 4 << 20
};

/* ---- values --------------------------------------------------------------------------------- */

typedef enum qn__jinja_value_kind {
    QN__JINJA_FAILED, /* the run has failed */
    QN__JINJA_ABSENT, /* an argument that was not given */
    QN__JINJA_UNDEFINED,
    QN__JINJA_NONE,
    QN__JINJA_BOOL,
    QN__JINJA_INT,
    QN__JINJA_FLOAT,
    QN__JINJA_STRING,
    QN__JINJA_LIST, /* from here to GENERATOR: qn__jinja_seq */
    QN__JINJA_TUPLE,
    QN__JINJA_RANGE,
    QN__JINJA_KEYS,
    QN__JINJA_VALUES,
    QN__JINJA_ITEMS,
    QN__JINJA_GENERATOR, /* iterated once, then empty */
    QN__JINJA_DICT,
    QN__JINJA_NAMESPACE,
    QN__JINJA_LOOP,
    QN__JINJA_MACRO,
    QN__JINJA_FUNCTION, /* a global one */
    QN__JINJA_METHOD,   /* bound to its object */
    QN__JINJA_CYCLER,
    QN__JINJA_JOINER,
} qn__jinja_value_kind;

typedef struct qn__jinja_run qn__jinja_run;
typedef struct qn__jinja_node qn__jinja_node;
typedef struct qn__jinja_value qn__jinja_value;
typedef struct qn__jinja_call qn__jinja_call;

/* UTF-8, not terminated. */
typedef struct qn__jinja_str {
    const char *data;
    size_t n;
    const qn_span *spans; /* bytes that came from data: sorted, apart */
    size_t n_spans;
    bool safe; /* Markup: what is added to it is escaped */
} qn__jinja_str;

typedef struct qn__jinja_undefined {
    const qn__jinja_str *name; /* the variable, attribute or key; NULL: see message */
    const char *owner;         /* what lacks it, as Jinja calls it; NULL: a variable */
    const char *message;       /* instead of both */
    bool unsafe;               /* the sandbox forbids it */
} qn__jinja_undefined;

typedef struct qn__jinja_seq {
    const qn__jinja_value *items;
    size_t n;
    bool is_group; /* of groupby: its two items are also .grouper and .list */
} qn__jinja_seq;

typedef struct qn__jinja_entry qn__jinja_entry;

typedef struct qn__jinja_dict {
    qn__jinja_entry *entries; /* in order of insertion */
    size_t n, capacity;
    uint32_t *slots; /* hash table of entry + 1 once there are many; n_slots a power of two */
    size_t n_slots;
} qn__jinja_dict;

typedef qn__jinja_value (*qn__jinja_function)(qn__jinja_run *r, qn__jinja_value self,
                                              const qn__jinja_call *call);

typedef struct qn__jinja_named_function {
    const char *name;
    qn__jinja_function call;
} qn__jinja_named_function;

typedef struct qn__jinja_macro qn__jinja_macro;
typedef struct qn__jinja_loop qn__jinja_loop;

struct qn__jinja_value {
    qn__jinja_value_kind kind;
    union {
        bool truth;
        int64_t i;
        double f;
        const qn__jinja_str *s;
        qn__jinja_seq *seq;
        qn__jinja_dict *dict; /* also of a namespace */
        const qn__jinja_undefined *undefined;
        qn__jinja_macro *macro;
        qn__jinja_loop *loop;
        const qn__jinja_named_function *function;
        struct qn__jinja_method *method;
        struct qn__jinja_cycler *cycler;
    };
};

struct qn__jinja_entry {
    qn__jinja_value key, value;
};

typedef struct qn__jinja_method {
    const qn__jinja_named_function *function;
    qn__jinja_value self;
} qn__jinja_method;

/* Also a joiner: `values` holds the separator, `at` whether it was used. */
typedef struct qn__jinja_cycler {
    qn__jinja_seq values;
    size_t at;
} qn__jinja_cycler;

/* Arguments of a call, evaluated. */
struct qn__jinja_call {
    const char *name; /* what is called, for messages */
    const qn__jinja_value *args;
    size_t n;
    const qn__jinja_str *const *names;
    const qn__jinja_value *named;
    size_t n_named;
};

/* ---- the tree ------------------------------------------------------------------------------- */

typedef enum qn__jinja_node_kind {
    /* expressions */
    QN__JINJA_NODE_CONST,   /* value */
    QN__JINJA_NODE_NAME,    /* name */
    QN__JINJA_NODE_LIST,    /* items */
    QN__JINJA_NODE_TUPLE,   /* items */
    QN__JINJA_NODE_DICT,    /* items: key, value, key, value ... */
    QN__JINJA_NODE_IF_ELSE, /* b if a else c (or NULL) */
    QN__JINJA_NODE_OR,
    QN__JINJA_NODE_AND,
    QN__JINJA_NODE_NOT,
    QN__JINJA_NODE_NEGATE,
    QN__JINJA_NODE_PLUS,
    QN__JINJA_NODE_COMPARE,   /* items; ops[i] between items i and i + 1 */
    QN__JINJA_NODE_BINARY,    /* a op b */
    QN__JINJA_NODE_CONCAT,    /* items */
    QN__JINJA_NODE_ATTRIBUTE, /* a.name */
    QN__JINJA_NODE_ITEM,      /* a[b] */
    QN__JINJA_NODE_SLICE,     /* in the place of ITEM's b: a:b:c, each may be NULL */
    QN__JINJA_NODE_CALL,      /* a(args) */
    QN__JINJA_NODE_FILTER,    /* a | name(args) */
    QN__JINJA_NODE_TEST,      /* a is name(args) */
    QN__JINJA_NODE_INPUT,     /* what a filter block filters */
    /* statements */
    QN__JINJA_NODE_BLOCK,     /* items */
    QN__JINJA_NODE_TEXT,      /* value */
    QN__JINJA_NODE_OUTPUT,    /* a */
    QN__JINJA_NODE_IF,        /* items: test, block, test, block ..., (else block) */
    QN__JINJA_NODE_FOR,       /* for a in b if c: d, else e; op 1: recursive */
    QN__JINJA_NODE_SET,       /* a = b */
    QN__JINJA_NODE_SET_BLOCK, /* a = d, through filters c (or NULL) */
    QN__JINJA_NODE_MACRO, /* name, items: NAMEs, then `n_defaults` defaults of the last; body d; op:
                             uses */
    QN__JINJA_NODE_CALL_BLOCK,   /* a: the CALL; b: the MACRO that is its caller */
    QN__JINJA_NODE_FILTER_BLOCK, /* c(d) */
    QN__JINJA_NODE_WITH,         /* items: target, value, target, value ...; body d */
    QN__JINJA_NODE_GENERATION,   /* d */
    QN__JINJA_NODE_BREAK,
    QN__JINJA_NODE_CONTINUE,
} qn__jinja_node_kind;

/* Names that a macro's body mentions: it takes more arguments then. */
enum { QN__JINJA_USES_VARARGS = 1, QN__JINJA_USES_KWARGS = 2, QN__JINJA_USES_CALLER = 4 };

typedef struct qn__jinja_arguments {
    qn__jinja_node **args;
    size_t n;
    const qn__jinja_str **names;
    qn__jinja_node **named;
    size_t n_named;
    qn__jinja_node *star, *star_star; /* *args, **kwargs */
} qn__jinja_arguments;

typedef enum qn__jinja_operator {
    QN__JINJA_OP_ADD,
    QN__JINJA_OP_SUBTRACT,
    QN__JINJA_OP_MULTIPLY,
    QN__JINJA_OP_DIVIDE,
    QN__JINJA_OP_FLOOR_DIVIDE,
    QN__JINJA_OP_MODULO,
    QN__JINJA_OP_POWER,
    QN__JINJA_OP_EQ,
    QN__JINJA_OP_NE,
    QN__JINJA_OP_LT,
    QN__JINJA_OP_LE,
    QN__JINJA_OP_GT,
    QN__JINJA_OP_GE,
    QN__JINJA_OP_IN,
    QN__JINJA_OP_NOT_IN,
} qn__jinja_operator;

struct qn__jinja_node {
    qn__jinja_node_kind kind;
    int line, depth, op;
    qn__jinja_node *a, *b, *c, *d, *e;
    qn__jinja_node **items;
    size_t n, n_defaults;
    unsigned char *ops;
    qn__jinja_arguments *call;
    const qn__jinja_str *name;
    const qn__jinja_named_function *function; /* of FILTER and TEST; NULL: there is none */
    qn__jinja_value value;
};

struct qn_template {
    char *name;
    qn__arena arena;
    qn__jinja_node *root;
};

/* ---- lexing and parsing --------------------------------------------------------------------- */

typedef enum qn__jinja_token_kind {
    QN__JINJA_TOKEN_END,
    QN__JINJA_TOKEN_TEXT,           /* outside of tags; text */
    QN__JINJA_TOKEN_BLOCK_BEGIN,    /* {% */
    QN__JINJA_TOKEN_BLOCK_END,      /* %} */
    QN__JINJA_TOKEN_VARIABLE_BEGIN, /* {{ */
    QN__JINJA_TOKEN_VARIABLE_END,   /* }} */
    QN__JINJA_TOKEN_NAME,
    QN__JINJA_TOKEN_STRING,
    QN__JINJA_TOKEN_INT,
    QN__JINJA_TOKEN_FLOAT,
    QN__JINJA_TOKEN_OPERATOR, /* op holds it: a character, or two */
} qn__jinja_token_kind;

#define QN__JINJA_OP2(a, b) ((a) | (b) << 8)

typedef struct qn__jinja_token {
    qn__jinja_token_kind kind;
    int line, op;
    qn__jinja_str text; /* of TEXT, NAME and STRING */
    int64_t i;
    double f;
} qn__jinja_token;

typedef struct qn__jinja_lexer {
    const char *name; /* of the template */
    const char *s;    /* the source, line ends made "\n" */
    size_t n, at;
    int line;
    enum { QN__JINJA_LEX_TEXT, QN__JINJA_LEX_BLOCK, QN__JINJA_LEX_VARIABLE } state;
    bool line_starting, raw;
    char open[QN__JINJA_SOURCE_DEPTH]; /* brackets */
    int n_open;
    qn__arena *arena;
    qn_error *err;
    bool failed;
} qn__jinja_lexer;

/* Copies the source into the arena. */
bool qn__jinja_lexer_begin(qn__jinja_lexer *lexer, const char *name, const char *source, size_t n,
                           qn__arena *arena, qn_error *err);

/* The next token; false after a failure. Behind the end it is QN__JINJA_TOKEN_END. */
bool qn__jinja_lexer_next(qn__jinja_lexer *lexer, qn__jinja_token *token);

/* "NAME:LINE: ..."; always false. */
bool qn__jinja_fail(qn_error *err, qn_status code, const char *name, int line, const char *format,
                    ...) QN_PRINTF(5, 6);

typedef struct qn__jinja_parser {
    qn__jinja_lexer lexer;
    qn__jinja_token token; /* the current one, and the one behind it */
    qn__jinja_token next;
    int depth, loops;
    int uses; /* of the macro's body that is being read */
    bool failed;
} qn__jinja_parser;

qn__jinja_node *qn__jinja_parse(qn__jinja_parser *p);

/* Between the parser's files. A NULL node is a failure. */
qn__jinja_node *qn__jinja_parse_expression(qn__jinja_parser *p, bool with_condition);
qn__jinja_node *qn__jinja_parse_tuple(qn__jinja_parser *p, bool with_condition,
                                      const char *end_name, bool closed);
qn__jinja_node *qn__jinja_parse_primary(qn__jinja_parser *p);
qn__jinja_node *qn__jinja_parse_postfix(qn__jinja_parser *p, qn__jinja_node *node);
qn__jinja_node *qn__jinja_parse_filters(qn__jinja_parser *p, qn__jinja_node *node, bool begin_here);
qn__jinja_node *qn__jinja_node_new(qn__jinja_parser *p, qn__jinja_node_kind kind, qn__jinja_node *a,
                                   qn__jinja_node *b, qn__jinja_node *c);
bool qn__jinja_node_add(qn__jinja_parser *p, qn__jinja_node *node, size_t *capacity,
                        qn__jinja_node *item);
bool qn__jinja_node_deepen(qn__jinja_parser *p, qn__jinja_node *node,
                           const qn__jinja_node *child); /* false: too deep */
bool qn__jinja_parser_descend(qn__jinja_parser *p);      /* one deeper; leave with p->depth-- */
bool qn__jinja_parser_advance(qn__jinja_parser *p);
bool qn__jinja_parser_is(const qn__jinja_parser *p, int op);
bool qn__jinja_parser_is_name(const qn__jinja_parser *p, const char *name);
bool qn__jinja_parser_skip(qn__jinja_parser *p, int op);
bool qn__jinja_parser_skip_name(qn__jinja_parser *p, const char *name);
bool qn__jinja_parser_expect(qn__jinja_parser *p, int op);
void *qn__jinja_parser_unexpected(qn__jinja_parser *p); /* fails: no expression begins here */
void *qn__jinja_parser_fail(qn__jinja_parser *p, const char *format, ...) QN_PRINTF(2, 3);
void *qn__jinja_parser_alloc(qn__jinja_parser *p, size_t size);
const qn__jinja_str *qn__jinja_parser_str(qn__jinja_parser *p, const qn__jinja_token *token);

/* ---- a rendering ---------------------------------------------------------------------------- */

/* Text in the making. */
typedef struct qn__jinja_builder {
    qn__jinja_run *run;
    char *data;
    size_t n, capacity;
    qn_span *spans;
    size_t n_spans, spans_capacity;
} qn__jinja_builder;

/* What a block has set, by name; outer blocks behind it. */
typedef struct qn__jinja_scope {
    struct qn__jinja_scope *parent;
    qn__jinja_dict variables;
} qn__jinja_scope;

struct qn__jinja_macro {
    const qn__jinja_node *node;
    qn__jinja_scope *scope; /* where it was defined */
};

struct qn__jinja_loop {
    qn__jinja_seq items;
    size_t at;
    int depth;
    const qn__jinja_node *node;
    qn__jinja_scope *scope; /* around the loop, for recursion */
    qn__jinja_value changed;
};

struct qn__jinja_run {
    const qn_template *source;
    qn__arena arena;
    qn_error *err;
    bool failed;
    int line, depth;
    int jump;       /* QN__JINJA_NODE_BREAK or QN__JINJA_NODE_CONTINUE on its way to the loop */
    uint64_t steps; /* left */
    size_t memory, output; /* limits, in bytes */
    size_t asked;          /* bytes of memory asked for so far */
    bool drop_nulls;       /* of messages */
    int64_t now;           /* local time as if it were UTC, seconds since 1970 */
    uint64_t seed;
    qn__jinja_dict *context;
    qn__jinja_scope *scope;
    qn__jinja_builder *out;
    qn__jinja_value input; /* of a filter block */
};

qn__jinja_value qn__jinja_run_fail(qn__jinja_run *r, const char *format, ...) QN_PRINTF(2, 3);
qn__jinja_value qn__jinja_run_limit(qn__jinja_run *r, const char *format, ...) QN_PRINTF(2, 3);
void *qn__jinja_run_alloc(qn__jinja_run *r, size_t size);
bool qn__jinja_run_spend(qn__jinja_run *r,
                         uint64_t steps); /* a step is some 10 to 100 ns of work */
bool qn__jinja_run_enter(
    qn__jinja_run *r); /* one deeper; leave with r->depth-- also when it failed */

qn__jinja_value qn__jinja_eval(qn__jinja_run *r, const qn__jinja_node *node);
qn__jinja_value qn__jinja_eval_call(qn__jinja_run *r, const qn__jinja_node *node,
                                    const qn__jinja_value *caller);
qn__jinja_value qn__jinja_call_macro(qn__jinja_run *r, const qn__jinja_macro *macro,
                                     const qn__jinja_call *call, const qn__jinja_value *caller);
bool qn__jinja_exec(qn__jinja_run *r,
                    const qn__jinja_node *node); /* false: failed, or break or continue */
qn__jinja_value qn__jinja_loop_again(qn__jinja_run *r, const qn__jinja_loop *outer,
                                     qn__jinja_value items);
qn__jinja_value qn__jinja_loop_attribute(qn__jinja_run *r, qn__jinja_loop *loop,
                                         const qn__jinja_str *name);
qn__jinja_value qn__jinja_scope_find(qn__jinja_run *r, const qn__jinja_str *name);
bool qn__jinja_scope_set(qn__jinja_run *r, const qn__jinja_str *name, qn__jinja_value value);
qn__jinja_value qn__jinja_attribute(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_str *name);
qn__jinja_value qn__jinja_own_attribute(qn__jinja_run *r, qn__jinja_value v,
                                        const qn__jinja_str *name); /* ABSENT: none */
qn__jinja_value qn__jinja_cycler_attribute(qn__jinja_run *r, qn__jinja_value v,
                                           const qn__jinja_str *name);
qn__jinja_value qn__jinja_item(qn__jinja_run *r, qn__jinja_value v, qn__jinja_value key);
qn__jinja_value qn__jinja_binary(qn__jinja_run *r, int op, qn__jinja_value a, qn__jinja_value b);
qn__jinja_value qn__jinja_power(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b);
qn__jinja_value qn__jinja_sign(qn__jinja_run *r, qn__jinja_value v, bool minus);
bool qn__jinja_compare(qn__jinja_run *r, int op, qn__jinja_value a,
                       qn__jinja_value b); /* EQ to NOT_IN */

/* ---- making values -------------------------------------------------------------------------- */

static inline qn__jinja_value qn__jinja_none(void)
{
    return (qn__jinja_value){.kind = QN__JINJA_NONE};
}

static inline qn__jinja_value qn__jinja_failed(void)
{
    return (qn__jinja_value){.kind = QN__JINJA_FAILED};
}

static inline qn__jinja_value qn__jinja_bool(bool truth)
{
    return (qn__jinja_value){.kind = QN__JINJA_BOOL, .truth = truth};
}

static inline qn__jinja_value qn__jinja_int(int64_t i)
{
    return (qn__jinja_value){.kind = QN__JINJA_INT, .i = i};
}

static inline qn__jinja_value qn__jinja_float(double f)
{
    return (qn__jinja_value){.kind = QN__JINJA_FLOAT, .f = f};
}

static inline bool qn__jinja_is_seq(qn__jinja_value v)
{
    return v.kind >= QN__JINJA_LIST && v.kind <= QN__JINJA_GENERATOR;
}

/* An integer, where True is 1. */
static inline bool qn__jinja_as_int(qn__jinja_value v, int64_t *i)
{
    *i = v.kind == QN__JINJA_BOOL ? v.truth : v.i;
    return v.kind == QN__JINJA_INT || v.kind == QN__JINJA_BOOL;
}

/* A number, integers made doubles. */
static inline bool qn__jinja_as_double(qn__jinja_value v, double *f)
{
    int64_t i;
    if (v.kind == QN__JINJA_FLOAT)
        *f = v.f;
    else if (qn__jinja_as_int(v, &i))
        *f = (double)i;
    else
        return false;
    return true;
}

static inline bool qn__jinja_str_is(const qn__jinja_str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->data, text, s->n) == 0;
}

static inline bool qn__jinja_str_same(const qn__jinja_str *a, const qn__jinja_str *b)
{
    return a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

qn__jinja_value qn__jinja_string(qn__jinja_run *r, const char *data,
                                 size_t n);                         /* borrowed, not from data */
qn__jinja_value qn__jinja_text(qn__jinja_run *r, const char *text); /* terminated, borrowed */
qn__jinja_value qn__jinja_str_value(const qn__jinja_str *s);
qn__jinja_value qn__jinja_substring(qn__jinja_run *r, const qn__jinja_str *s, size_t from,
                                    size_t to);
qn__jinja_value qn__jinja_seq_new(qn__jinja_run *r, qn__jinja_value_kind kind,
                                  const qn__jinja_value *items, size_t n);
qn__jinja_value qn__jinja_pair(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b);
qn__jinja_value qn__jinja_method_of(qn__jinja_run *r, const qn__jinja_named_function *function,
                                    qn__jinja_value self);
qn__jinja_value qn__jinja_undefined_name(qn__jinja_run *r, const qn__jinja_str *name);
qn__jinja_value qn__jinja_undefined_of(qn__jinja_run *r, qn__jinja_value owner,
                                       qn__jinja_value key);
qn__jinja_value qn__jinja_undefined_message(qn__jinja_run *r, const char *message);
qn__jinja_value qn__jinja_unsafe(qn__jinja_run *r, qn__jinja_value owner, const char *name);
qn__jinja_value qn__jinja_refuse_undefined(qn__jinja_run *r,
                                           qn__jinja_value v); /* fails with what Jinja says */

/* A list in the making: push, then qn__jinja_seq_new over items. */
typedef struct qn__jinja_pile {
    qn__jinja_value *items;
    size_t n, capacity;
} qn__jinja_pile;
bool qn__jinja_pile_push(qn__jinja_run *r, qn__jinja_pile *pile, qn__jinja_value v);

qn__jinja_dict *qn__jinja_dict_new(qn__jinja_run *r, size_t capacity);
qn__jinja_value qn__jinja_dict_value(qn__jinja_dict *dict);
bool qn__jinja_dict_set(qn__jinja_run *r, qn__jinja_dict *dict, qn__jinja_value key,
                        qn__jinja_value value);
qn__jinja_entry *qn__jinja_dict_find(qn__jinja_run *r, const qn__jinja_dict *dict,
                                     qn__jinja_value key); /* NULL: not there */
qn__jinja_entry *qn__jinja_dict_find_str(qn__jinja_run *r, const qn__jinja_dict *dict,
                                         const qn__jinja_str *key);
/* The same in dictionaries whose keys are all strings, for one hash in many of them. */
uint64_t qn__jinja_dict_hash(const qn__jinja_run *r, const qn__jinja_str *key);
qn__jinja_entry *qn__jinja_dict_find_hashed(const qn__jinja_dict *dict, const qn__jinja_str *key,
                                            uint64_t hash);
void qn__jinja_dict_empty(qn__jinja_dict *dict);
qn__jinja_value qn__jinja_json_value(qn__jinja_run *r, const char *file, const char *json, size_t n,
                                     bool data);

/* ---- asking values -------------------------------------------------------------------------- */

bool qn__jinja_truth(qn__jinja_value v);
const char *qn__jinja_type_name(qn__jinja_value v);
bool qn__jinja_equal(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b);
int qn__jinja_order(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b,
                    const char *op); /* <0, 0, >0; 2: neither */
bool qn__jinja_contains(qn__jinja_run *r, qn__jinja_value container, qn__jinja_value item);
size_t qn__jinja_length_of(const qn__jinja_str *s); /* in code points */
size_t qn__jinja_str_offset(const qn__jinja_str *s, size_t at,
                            size_t count); /* `count` characters on */
bool qn__jinja_items_of(qn__jinja_run *r, qn__jinja_value v,
                        qn__jinja_seq *items); /* to iterate; fails where it can't */
bool qn__jinja_is_iterable(qn__jinja_value v);

/* ---- text ----------------------------------------------------------------------------------- */

void qn__jinja_builder_begin(qn__jinja_builder *b, qn__jinja_run *r);
bool qn__jinja_build(qn__jinja_builder *b, const char *data, size_t n, bool is_data);
bool qn__jinja_build_text(qn__jinja_builder *b, const char *text); /* terminated, not from data */
bool qn__jinja_build_str(qn__jinja_builder *b, const qn__jinja_str *s, size_t from, size_t to);
bool qn__jinja_build_escaped(qn__jinja_builder *b, const qn__jinja_str *s); /* & < > ' " for HTML */
bool qn__jinja_build_value(qn__jinja_builder *b, qn__jinja_value v);        /* str() */
bool qn__jinja_build_repr(qn__jinja_builder *b, qn__jinja_value v);
qn__jinja_value qn__jinja_builder_end(qn__jinja_builder *b);
qn__jinja_value qn__jinja_to_str(qn__jinja_run *r, qn__jinja_value v);
bool qn__jinja_str_from_data(const qn__jinja_str *s, size_t at);
size_t qn__jinja_str_span(const qn__jinja_str *s,
                          size_t at); /* the first span that ends behind `at` */

typedef struct qn__jinja_json_style {
    bool ascii, sort, pretty;
    const qn__jinja_str *indent, *item, *key; /* item and key: separators */
} qn__jinja_json_style;
bool qn__jinja_build_json(qn__jinja_builder *b, qn__jinja_value v,
                          const qn__jinja_json_style *style, int level);
size_t qn__jinja_double_repr(double f, char out[40]); /* as Python */
bool qn__jinja_build_time(qn__jinja_builder *b, const qn__jinja_str *format, int64_t seconds);
qn__jinja_value qn__jinja_format_percent(qn__jinja_run *r, const qn__jinja_str *format,
                                         qn__jinja_value args);
qn__jinja_value qn__jinja_format_braces(qn__jinja_run *r, const qn__jinja_str *format,
                                        const qn__jinja_call *call);

/* The first character (of each word, with `words`) gets one case, the others the other. */
qn__jinja_value qn__jinja_change_case(qn__jinja_run *r, const qn__jinja_str *s, qn__case first,
                                      qn__case rest, bool words);
qn__jinja_value qn__jinja_is_case(qn__jinja_run *r, const qn__jinja_str *s,
                                  qn__case wanted); /* isupper, islower */
qn__jinja_value qn__jinja_is_title(qn__jinja_run *r, const qn__jinja_str *s);
/* All characters are of one of the classes or have one of the bits, and there is one at least. */
qn__jinja_value qn__jinja_has_text_bits(qn__jinja_run *r, const qn__jinja_str *s, unsigned classes,
                                        unsigned bits);
size_t qn__jinja_line_end(const qn__jinja_str *s, size_t at,
                          size_t *next); /* *next: behind the line break */
qn__jinja_value qn__jinja_center(qn__jinja_run *r, const qn__jinja_str *s, int64_t width,
                                 const qn__jinja_str *fill);
qn__jinja_value qn__jinja_strip(qn__jinja_run *r, const qn__jinja_str *s,
                                const qn__jinja_str *chars, int sides);
qn__jinja_value qn__jinja_replace(qn__jinja_run *r, const qn__jinja_str *s,
                                  const qn__jinja_str *was, const qn__jinja_str *is, int64_t count);
qn__jinja_value qn__jinja_join(qn__jinja_run *r, qn__jinja_value items,
                               const qn__jinja_str *separator, bool strict);

/* ---- tables --------------------------------------------------------------------------------- */

const qn__jinja_named_function *qn__jinja_filter_find(const qn__jinja_str *name);
const qn__jinja_named_function *qn__jinja_sequence_filter_find(const qn__jinja_str *name);
const qn__jinja_named_function *qn__jinja_layout_filter_find(const qn__jinja_str *name);
const qn__jinja_named_function *qn__jinja_markup_filter_find(const qn__jinja_str *name);
const qn__jinja_named_function *qn__jinja_test_find(const qn__jinja_str *name);
const qn__jinja_named_function *qn__jinja_global_find(const qn__jinja_str *name);
qn__jinja_value qn__jinja_method_find(qn__jinja_run *r, qn__jinja_value self,
                                      const qn__jinja_str *name); /* ABSENT: none */
const qn__jinja_named_function *qn__jinja_str_method_find(const qn__jinja_str *name);
const qn__jinja_named_function *qn__jinja_named_find(const qn__jinja_named_function *table,
                                                     size_t n, const qn__jinja_str *name);

/* Puts arguments in the places of `names`; a place without one is ABSENT. False: failed. */
bool qn__jinja_bind(qn__jinja_run *r, const qn__jinja_call *call, const char *const *names,
                    size_t n, qn__jinja_value *places);

#endif
