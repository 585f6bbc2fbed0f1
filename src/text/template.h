/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of chat templates: a parsed Jinja template and one rendering of it.
 *
 * A template is parsed once into a tree that nothing changes. A rendering (qn__run) walks the tree
 * over values; all it makes lives in its arena and dies with it. Values never change either, but
 * for namespaces, since chat templates run in Jinja's immutable sandbox: so values may be shared.
 *
 * A failure is recorded once with template and line, and sticks: every function then gives the
 * kind QN__V_FAILED, which its callers pass on. What a template may use up is bounded: steps,
 * bytes of output, bytes of memory, depth.
 *
 * A string knows which of its bytes came from the context's data (`spans`), so that encoding can
 * refuse control tokens there. Strings are made by a builder, which carries the spans along.
 */
#ifndef QN_TEXT_TEMPLATE_H
#define QN_TEXT_TEMPLATE_H

#include "base/arena.h"
#include "base/error.h"
#include "quern/text.h"
#include "text/unicode.h"

#include <string.h>

enum {
    QN__TEMPLATE_DEPTH = 200,   /* of expressions and blocks in the source */
    QN__RUN_DEPTH = 1000,       /* of evaluation, calls of macros included */
    QN__LARGEST_RANGE = 100000, /* as Jinja's sandbox has it */
    QN__LARGEST_TEMPLATE = 4 << 20
};

/* ---- values --------------------------------------------------------------------------------- */

typedef enum qn__value_kind {
    QN__V_FAILED, /* the run has failed */
    QN__V_ABSENT, /* an argument that was not given */
    QN__V_UNDEFINED,
    QN__V_NONE,
    QN__V_BOOL,
    QN__V_INT,
    QN__V_FLOAT,
    QN__V_STRING,
    QN__V_LIST, /* from here to GENERATOR: qn__seq */
    QN__V_TUPLE,
    QN__V_RANGE,
    QN__V_KEYS,
    QN__V_VALUES,
    QN__V_ITEMS,
    QN__V_GENERATOR, /* iterated once, then empty */
    QN__V_DICT,
    QN__V_NAMESPACE,
    QN__V_LOOP,
    QN__V_MACRO,
    QN__V_FUNCTION, /* a global one */
    QN__V_METHOD,   /* bound to its object */
    QN__V_CYCLER,
    QN__V_JOINER,
} qn__value_kind;

typedef struct qn__run qn__run;
typedef struct qn__node qn__node;
typedef struct qn__value qn__value;
typedef struct qn__call qn__call;

/* UTF-8, not terminated. */
typedef struct qn__str {
    const char *data;
    size_t n;
    const qn_span *spans; /* bytes that came from data: sorted, apart */
    size_t n_spans;
    bool safe; /* Markup: what is added to it is escaped */
} qn__str;

typedef struct qn__undefined {
    const qn__str *name; /* the variable, attribute or key; NULL: see message */
    const char *owner;   /* what lacks it, as Jinja calls it; NULL: a variable */
    const char *message; /* instead of both */
    bool unsafe;         /* the sandbox forbids it */
} qn__undefined;

typedef struct qn__seq {
    const qn__value *items;
    size_t n;
    bool is_group; /* of groupby: its two items are also .grouper and .list */
} qn__seq;

typedef struct qn__entry qn__entry;

typedef struct qn__dict {
    qn__entry *entries; /* in order of insertion */
    size_t n, capacity;
    uint32_t *slots; /* hash table of entry + 1 once there are many; n_slots a power of two */
    size_t n_slots;
} qn__dict;

typedef qn__value (*qn__function)(qn__run *r, qn__value self, const qn__call *call);

typedef struct qn__named_function {
    const char *name;
    qn__function call;
} qn__named_function;

typedef struct qn__macro qn__macro;
typedef struct qn__loop qn__loop;

struct qn__value {
    qn__value_kind kind;
    union {
        bool truth;
        int64_t i;
        double f;
        const qn__str *s;
        qn__seq *seq;
        qn__dict *dict; /* also of a namespace */
        const qn__undefined *undefined;
        qn__macro *macro;
        qn__loop *loop;
        const qn__named_function *function;
        struct qn__method *method;
        struct qn__cycler *cycler;
    };
};

struct qn__entry {
    qn__value key, value;
};

typedef struct qn__method {
    const qn__named_function *function;
    qn__value self;
} qn__method;

/* Also a joiner: `values` holds the separator, `at` whether it was used. */
typedef struct qn__cycler {
    qn__seq values;
    size_t at;
} qn__cycler;

/* Arguments of a call, evaluated. */
struct qn__call {
    const char *name; /* what is called, for messages */
    const qn__value *args;
    size_t n;
    const qn__str *const *names;
    const qn__value *named;
    size_t n_named;
};

/* ---- the tree ------------------------------------------------------------------------------- */

typedef enum qn__node_kind {
    /* expressions */
    QN__N_CONST,   /* value */
    QN__N_NAME,    /* name */
    QN__N_LIST,    /* items */
    QN__N_TUPLE,   /* items */
    QN__N_DICT,    /* items: key, value, key, value ... */
    QN__N_IF_ELSE, /* b if a else c (or NULL) */
    QN__N_OR,
    QN__N_AND,
    QN__N_NOT,
    QN__N_NEGATE,
    QN__N_PLUS,
    QN__N_COMPARE,   /* items; ops[i] between items i and i + 1 */
    QN__N_BINARY,    /* a op b */
    QN__N_CONCAT,    /* items */
    QN__N_ATTRIBUTE, /* a.name */
    QN__N_ITEM,      /* a[b] */
    QN__N_SLICE,     /* in the place of ITEM's b: a:b:c, each may be NULL */
    QN__N_CALL,      /* a(args) */
    QN__N_FILTER,    /* a | name(args) */
    QN__N_TEST,      /* a is name(args) */
    QN__N_INPUT,     /* what a filter block filters */
    /* statements */
    QN__N_BLOCK,     /* items */
    QN__N_TEXT,      /* value */
    QN__N_OUTPUT,    /* a */
    QN__N_IF,        /* items: test, block, test, block ..., (else block) */
    QN__N_FOR,       /* for a in b if c: d, else e; op 1: recursive */
    QN__N_SET,       /* a = b */
    QN__N_SET_BLOCK, /* a = d, through filters c (or NULL) */
    QN__N_MACRO, /* name, items: NAMEs, then `n_defaults` defaults of the last; body d; op: uses */
    QN__N_CALL_BLOCK,   /* a: the CALL; b: the MACRO that is its caller */
    QN__N_FILTER_BLOCK, /* c(d) */
    QN__N_WITH,         /* items: target, value, target, value ...; body d */
    QN__N_GENERATION,   /* d */
    QN__N_BREAK,
    QN__N_CONTINUE,
} qn__node_kind;

/* Names that a macro's body mentions: it takes more arguments then. */
enum { QN__USES_VARARGS = 1, QN__USES_KWARGS = 2, QN__USES_CALLER = 4 };

typedef struct qn__arguments {
    qn__node **args;
    size_t n;
    const qn__str **names;
    qn__node **named;
    size_t n_named;
    qn__node *star, *star_star; /* *args, **kwargs */
} qn__arguments;

typedef enum qn__operator {
    QN__OP_ADD,
    QN__OP_SUBTRACT,
    QN__OP_MULTIPLY,
    QN__OP_DIVIDE,
    QN__OP_FLOOR_DIVIDE,
    QN__OP_MODULO,
    QN__OP_POWER,
    QN__OP_EQ,
    QN__OP_NE,
    QN__OP_LT,
    QN__OP_LE,
    QN__OP_GT,
    QN__OP_GE,
    QN__OP_IN,
    QN__OP_NOT_IN,
} qn__operator;

struct qn__node {
    qn__node_kind kind;
    int line, depth, op;
    qn__node *a, *b, *c, *d, *e;
    qn__node **items;
    size_t n, n_defaults;
    unsigned char *ops;
    qn__arguments *call;
    const qn__str *name;
    const qn__named_function *function; /* of FILTER and TEST; NULL: there is none */
    qn__value value;
};

struct qn_template {
    char *name;
    qn__arena arena;
    qn__node *root;
};

/* ---- lexing and parsing --------------------------------------------------------------------- */

typedef enum qn__token_kind {
    QN__T_END,
    QN__T_TEXT,           /* outside of tags; text */
    QN__T_BLOCK_BEGIN,    /* {% */
    QN__T_BLOCK_END,      /* %} */
    QN__T_VARIABLE_BEGIN, /* {{ */
    QN__T_VARIABLE_END,   /* }} */
    QN__T_NAME,
    QN__T_STRING,
    QN__T_INT,
    QN__T_FLOAT,
    QN__T_OPERATOR, /* op holds it: a character, or two */
} qn__token_kind;

#define QN__OP2(a, b) ((a) | (b) << 8)

typedef struct qn__token {
    qn__token_kind kind;
    int line, op;
    qn__str text; /* of TEXT, NAME and STRING */
    int64_t i;
    double f;
} qn__token;

typedef struct qn__lexer {
    const char *name; /* of the template */
    const char *s;    /* the source, line ends made "\n" */
    size_t n, at;
    int line;
    enum { QN__LEX_TEXT, QN__LEX_BLOCK, QN__LEX_VARIABLE } state;
    bool line_starting, raw;
    char open[QN__TEMPLATE_DEPTH]; /* brackets */
    int n_open;
    qn__arena *arena;
    qn_error *err;
    bool failed;
} qn__lexer;

/* Copies the source into the arena. */
bool qn__lexer_begin(qn__lexer *lexer, const char *name, const char *source, size_t n,
                     qn__arena *arena, qn_error *err);

/* The next token; false after a failure. Behind the end it is QN__T_END. */
bool qn__lexer_next(qn__lexer *lexer, qn__token *token);

/* "NAME:LINE: ..."; always false. */
bool qn__template_fail(qn_error *err, qn_status code, const char *name, int line,
                       const char *format, ...) QN_PRINTF(5, 6);

typedef struct qn__parser {
    qn__lexer lexer;
    qn__token token; /* the current one, and the one behind it */
    qn__token next;
    int depth, loops;
    int uses; /* of the macro's body that is being read */
    bool failed;
} qn__parser;

qn__node *qn__parse_template(qn__parser *p);

/* Between the parser's files. A NULL node is a failure. */
qn__node *qn__parse_expression(qn__parser *p, bool with_condition);
qn__node *qn__parse_tuple(qn__parser *p, bool with_condition, const char *end_name, bool closed);
qn__node *qn__parse_primary(qn__parser *p);
qn__node *qn__parse_postfix(qn__parser *p, qn__node *node);
qn__node *qn__parse_filters(qn__parser *p, qn__node *node, bool begin_here);
qn__node *qn__node_new(qn__parser *p, qn__node_kind kind, qn__node *a, qn__node *b, qn__node *c);
bool qn__node_add(qn__parser *p, qn__node *node, size_t *capacity, qn__node *item);
bool qn__node_deepen(qn__parser *p, qn__node *node, const qn__node *child); /* false: too deep */
bool qn__parser_descend(qn__parser *p); /* one deeper; leave with p->depth-- */
bool qn__parser_advance(qn__parser *p);
bool qn__parser_is(const qn__parser *p, int op);
bool qn__parser_is_name(const qn__parser *p, const char *name);
bool qn__parser_skip(qn__parser *p, int op);
bool qn__parser_skip_name(qn__parser *p, const char *name);
bool qn__parser_expect(qn__parser *p, int op);
void *qn__parser_unexpected(qn__parser *p); /* fails: no expression begins here */
void *qn__parser_fail(qn__parser *p, const char *format, ...) QN_PRINTF(2, 3);
void *qn__parser_alloc(qn__parser *p, size_t size);
const qn__str *qn__parser_str(qn__parser *p, const qn__token *token);

/* ---- a rendering ---------------------------------------------------------------------------- */

/* Text in the making. */
typedef struct qn__builder {
    qn__run *run;
    char *data;
    size_t n, capacity;
    qn_span *spans;
    size_t n_spans, spans_capacity;
} qn__builder;

/* What a block has set, by name; outer blocks behind it. */
typedef struct qn__scope {
    struct qn__scope *parent;
    qn__dict variables;
} qn__scope;

struct qn__macro {
    const qn__node *node;
    qn__scope *scope; /* where it was defined */
};

struct qn__loop {
    qn__seq items;
    size_t at;
    int depth;
    const qn__node *node;
    qn__scope *scope; /* around the loop, for recursion */
    qn__value changed;
};

struct qn__run {
    const qn_template *source;
    qn__arena arena;
    qn_error *err;
    bool failed;
    int line, depth;
    int jump;              /* QN__N_BREAK or QN__N_CONTINUE on its way to the loop */
    uint64_t steps;        /* left */
    size_t memory, output; /* limits, in bytes */
    size_t asked;          /* bytes of memory asked for so far */
    bool drop_nulls;       /* of messages */
    int64_t now;           /* local time as if it were UTC, seconds since 1970 */
    uint64_t seed;
    qn__dict *context;
    qn__scope *scope;
    qn__builder *out;
    qn__value input; /* of a filter block */
};

qn__value qn__run_fail(qn__run *r, const char *format, ...) QN_PRINTF(2, 3);
qn__value qn__run_limit(qn__run *r, const char *format, ...) QN_PRINTF(2, 3);
void *qn__run_alloc(qn__run *r, size_t size);
bool qn__run_spend(qn__run *r, uint64_t steps); /* a step is some 10 to 100 ns of work */
bool qn__run_enter(qn__run *r); /* one deeper; leave with r->depth-- also when it failed */

qn__value qn__eval(qn__run *r, const qn__node *node);
qn__value qn__eval_call(qn__run *r, const qn__node *node, const qn__value *caller);
qn__value qn__call_macro(qn__run *r, const qn__macro *macro, const qn__call *call,
                         const qn__value *caller);
bool qn__exec(qn__run *r, const qn__node *node); /* false: failed, or break or continue */
qn__value qn__loop_again(qn__run *r, const qn__loop *outer, qn__value items);
qn__value qn__loop_attribute(qn__run *r, qn__loop *loop, const qn__str *name);
qn__value qn__scope_find(qn__run *r, const qn__str *name);
bool qn__scope_set(qn__run *r, const qn__str *name, qn__value value);
qn__value qn__attribute(qn__run *r, qn__value v, const qn__str *name);
qn__value qn__own_attribute(qn__run *r, qn__value v, const qn__str *name); /* ABSENT: none */
qn__value qn__cycler_attribute(qn__run *r, qn__value v, const qn__str *name);
qn__value qn__item(qn__run *r, qn__value v, qn__value key);
qn__value qn__binary(qn__run *r, int op, qn__value a, qn__value b);
qn__value qn__power(qn__run *r, qn__value a, qn__value b);
qn__value qn__sign(qn__run *r, qn__value v, bool minus);
bool qn__compare(qn__run *r, int op, qn__value a, qn__value b); /* EQ to NOT_IN */

/* ---- making values -------------------------------------------------------------------------- */

static inline qn__value qn__none(void)
{
    return (qn__value){.kind = QN__V_NONE};
}

static inline qn__value qn__failed(void)
{
    return (qn__value){.kind = QN__V_FAILED};
}

static inline qn__value qn__bool(bool truth)
{
    return (qn__value){.kind = QN__V_BOOL, .truth = truth};
}

static inline qn__value qn__int(int64_t i)
{
    return (qn__value){.kind = QN__V_INT, .i = i};
}

static inline qn__value qn__float(double f)
{
    return (qn__value){.kind = QN__V_FLOAT, .f = f};
}

static inline bool qn__is_seq(qn__value v)
{
    return v.kind >= QN__V_LIST && v.kind <= QN__V_GENERATOR;
}

/* An integer, where True is 1. */
static inline bool qn__as_int(qn__value v, int64_t *i)
{
    *i = v.kind == QN__V_BOOL ? v.truth : v.i;
    return v.kind == QN__V_INT || v.kind == QN__V_BOOL;
}

/* A number, integers made doubles. */
static inline bool qn__as_double(qn__value v, double *f)
{
    int64_t i;
    if (v.kind == QN__V_FLOAT)
        *f = v.f;
    else if (qn__as_int(v, &i))
        *f = (double)i;
    else
        return false;
    return true;
}

static inline bool qn__str_is(const qn__str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->data, text, s->n) == 0;
}

static inline bool qn__str_same(const qn__str *a, const qn__str *b)
{
    return a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

qn__value qn__string(qn__run *r, const char *data, size_t n); /* borrowed, not from data */
qn__value qn__text(qn__run *r, const char *text);             /* terminated, borrowed */
qn__value qn__str_value(const qn__str *s);
qn__value qn__substring(qn__run *r, const qn__str *s, size_t from, size_t to);
qn__value qn__seq_new(qn__run *r, qn__value_kind kind, const qn__value *items, size_t n);
qn__value qn__pair(qn__run *r, qn__value a, qn__value b);
qn__value qn__method_of(qn__run *r, const qn__named_function *function, qn__value self);
qn__value qn__undefined_name(qn__run *r, const qn__str *name);
qn__value qn__undefined_of(qn__run *r, qn__value owner, qn__value key);
qn__value qn__undefined_message(qn__run *r, const char *message);
qn__value qn__unsafe(qn__run *r, qn__value owner, const char *name);
qn__value qn__refuse_undefined(qn__run *r, qn__value v); /* fails with what Jinja says */

/* A list in the making: push, then qn__seq_new over items. */
typedef struct qn__pile {
    qn__value *items;
    size_t n, capacity;
} qn__pile;
bool qn__pile_push(qn__run *r, qn__pile *pile, qn__value v);

qn__dict *qn__dict_new(qn__run *r, size_t capacity);
qn__value qn__dict_value(qn__dict *dict);
bool qn__dict_set(qn__run *r, qn__dict *dict, qn__value key, qn__value value);
qn__entry *qn__dict_find(qn__run *r, const qn__dict *dict, qn__value key); /* NULL: not there */
qn__entry *qn__dict_find_str(qn__run *r, const qn__dict *dict, const qn__str *key);
/* The same in dictionaries whose keys are all strings, for one hash in many of them. */
uint64_t qn__dict_hash(const qn__run *r, const qn__str *key);
qn__entry *qn__dict_find_hashed(const qn__dict *dict, const qn__str *key, uint64_t hash);
void qn__dict_empty(qn__dict *dict);
qn__value qn__json_value(qn__run *r, const char *file, const char *json, size_t n, bool data);

/* ---- asking values -------------------------------------------------------------------------- */

bool qn__truth(qn__value v);
const char *qn__type_name(qn__value v);
bool qn__equal(qn__run *r, qn__value a, qn__value b);
int qn__order(qn__run *r, qn__value a, qn__value b, const char *op); /* <0, 0, >0; 2: neither */
bool qn__contains(qn__run *r, qn__value container, qn__value item);
size_t qn__length_of(const qn__str *s);                           /* in code points */
size_t qn__str_offset(const qn__str *s, size_t at, size_t count); /* `count` characters on */
bool qn__items_of(qn__run *r, qn__value v, qn__seq *items); /* to iterate; fails where it can't */
bool qn__is_iterable(qn__value v);

/* ---- text ----------------------------------------------------------------------------------- */

void qn__builder_begin(qn__builder *b, qn__run *r);
bool qn__build(qn__builder *b, const char *data, size_t n, bool is_data);
bool qn__build_text(qn__builder *b, const char *text); /* terminated, not from data */
bool qn__build_str(qn__builder *b, const qn__str *s, size_t from, size_t to);
bool qn__build_escaped(qn__builder *b, const qn__str *s); /* & < > ' " for HTML */
bool qn__build_value(qn__builder *b, qn__value v);        /* str() */
bool qn__build_repr(qn__builder *b, qn__value v);
qn__value qn__builder_end(qn__builder *b);
qn__value qn__to_str(qn__run *r, qn__value v);
bool qn__str_from_data(const qn__str *s, size_t at);
size_t qn__str_span(const qn__str *s, size_t at); /* the first span that ends behind `at` */

typedef struct qn__json_style {
    bool ascii, sort, pretty;
    const qn__str *indent, *item, *key; /* item and key: separators */
} qn__json_style;
bool qn__build_json(qn__builder *b, qn__value v, const qn__json_style *style, int level);
size_t qn__double_repr(double f, char out[40]); /* as Python */
bool qn__build_time(qn__builder *b, const qn__str *format, int64_t seconds);
qn__value qn__format_percent(qn__run *r, const qn__str *format, qn__value args);
qn__value qn__format_braces(qn__run *r, const qn__str *format, const qn__call *call);

/* The first character (of each word, with `words`) gets one case, the others the other. */
qn__value qn__change_case(qn__run *r, const qn__str *s, qn__case first, qn__case rest, bool words);
qn__value qn__is_case(qn__run *r, const qn__str *s, qn__case wanted); /* isupper, islower */
qn__value qn__is_title(qn__run *r, const qn__str *s);
/* All characters are of one of the classes or have one of the bits, and there is one at least. */
qn__value qn__has_text_bits(qn__run *r, const qn__str *s, unsigned classes, unsigned bits);
size_t qn__line_end(const qn__str *s, size_t at, size_t *next); /* *next: behind the line break */
qn__value qn__center(qn__run *r, const qn__str *s, int64_t width, const qn__str *fill);
qn__value qn__strip(qn__run *r, const qn__str *s, const qn__str *chars, int sides);
qn__value qn__replace(qn__run *r, const qn__str *s, const qn__str *was, const qn__str *is,
                      int64_t count);
qn__value qn__join(qn__run *r, qn__value items, const qn__str *separator, bool strict);

/* ---- tables --------------------------------------------------------------------------------- */

const qn__named_function *qn__filter_find(const qn__str *name);
const qn__named_function *qn__sequence_filter_find(const qn__str *name);
const qn__named_function *qn__layout_filter_find(const qn__str *name);
const qn__named_function *qn__markup_filter_find(const qn__str *name);
const qn__named_function *qn__test_find(const qn__str *name);
const qn__named_function *qn__global_find(const qn__str *name);
qn__value qn__method_find(qn__run *r, qn__value self, const qn__str *name); /* ABSENT: none */
const qn__named_function *qn__str_method_find(const qn__str *name);
const qn__named_function *qn__named_find(const qn__named_function *table, size_t n,
                                         const qn__str *name);

/* Puts arguments in the places of `names`; a place without one is ABSENT. False: failed. */
bool qn__bind(qn__run *r, const qn__call *call, const char *const *names, size_t n,
              qn__value *places);

#endif
