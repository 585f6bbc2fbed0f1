/* SPDX-License-Identifier: Apache-2.0
 *
 * Regular expressions as Oniguruma reads them, which the Hugging Face library runs the patterns of
 * tokenizers with: its syntax, its Unicode, its order of preference. What is not understood is
 * refused by name, never read differently. Parsing gives a tree (regex_parse.c), compiling a
 * program (regex_compile.c), and that runs by backtracking (regex_match.c) with every step counted:
 * a search that takes more than its budget, or more memory, is an error.
 */
#ifndef QN_TEXT_REGEX_H
#define QN_TEXT_REGEX_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct qn__regex qn__regex;

/* Compiles pattern[0..n), valid UTF-8. `place` begins messages. */
qn_status qn__regex_new(qn__regex **out, const char *pattern, size_t n, const char *place,
                        qn_error *err);
void qn__regex_free(qn__regex *regex);

/* What a thread needs for matching; zero it before use. */
typedef struct qn__regex_work {
    struct qn__regex_frame *frames;
    size_t n_frames, capacity;
    int64_t *registers;
    size_t n_registers;
    uint64_t spent; /* steps of all searches since it was zeroed */
} qn__regex_work;

void qn__regex_work_free(qn__regex_work *work);

/* The first match in s[0..n), valid UTF-8, that begins at `at` or behind it: [*start, *end), or
 * *start = n + 1 where there is none. text_size is that of the whole text, for the limits. */
qn_status qn__regex_search(const qn__regex *regex, qn__regex_work *work, const char *s, size_t n,
                           size_t at, size_t text_size, size_t *start, size_t *end, qn_error *err);

/* ---- sets of characters --------------------------------------------------------------------- */

typedef struct qn__range {
    uint32_t first, last;
} qn__range;

/* Ranges, sorted and apart once it is finished. */
typedef struct qn__charset {
    qn__range *ranges;
    size_t n, capacity;
    uint64_t low[2]; /* the same for characters below 128 */
} qn__charset;

bool qn__charset_add(qn__arena *arena, qn__charset *set, uint32_t first, uint32_t last);
bool qn__charset_join(qn__arena *arena, qn__charset *set, const qn__charset *other);
bool qn__charset_negate(qn__arena *arena, qn__charset *set);
bool qn__charset_intersect(qn__arena *arena, qn__charset *set, const qn__charset *other);
bool qn__charset_fold(qn__arena *arena, qn__charset *set); /* with all cases of what is in it */
void qn__charset_finish(qn__charset *set);
bool qn__charset_slow_has(const qn__charset *set, uint32_t c);

static inline bool qn__charset_has(const qn__charset *set, uint32_t c)
{
    return c < 128 ? set->low[c >> 6] >> (c & 63) & 1 : qn__charset_slow_has(set, c);
}

/* Adds a property, script or POSIX class by its name, written as it may be; 0: there is none, -1:
 * memory is out. */
int qn__charset_property(qn__arena *arena, qn__charset *set, const char *name, size_t n);

/* ---- tables --------------------------------------------------------------------------------- */

typedef struct qn__regex_start {
    uint32_t first; /* of a run that ends where the next begins */
    uint8_t name;   /* 255: none */
} qn__regex_start;

typedef struct qn__regex_property {
    const char *name;
    const qn__range *ranges;
    size_t n;
} qn__regex_property;

/* A character and the least of those that match each other without case. */
typedef struct qn__regex_fold {
    uint32_t c, least;
} qn__regex_fold;

/* One that matches several without case. */
typedef struct qn__regex_many {
    uint32_t c, to[3];
} qn__regex_many;

extern const qn__regex_start qn__regex_categories[], qn__regex_scripts[];
extern const size_t qn__regex_n_categories, qn__regex_n_scripts;
extern const char *const qn__regex_category_names[], *const qn__regex_script_names[];
extern const size_t qn__regex_n_category_names, qn__regex_n_script_names;
extern const qn__regex_property qn__regex_properties[];
extern const size_t qn__regex_n_properties;
extern const qn__regex_fold qn__regex_folds[];
extern const size_t qn__regex_n_folds;
extern const qn__regex_many qn__regex_manys[];
extern const size_t qn__regex_n_manys;

/* ---- the tree ------------------------------------------------------------------------------- */

typedef enum qn__regex_kind {
    QN__RX_EMPTY,
    QN__RX_CHAR,    /* c; fold: without case */
    QN__RX_SET,     /* set */
    QN__RX_CAT,     /* items */
    QN__RX_ALT,     /* items */
    QN__RX_REPEAT,  /* items[0], min, max (-1: none), mode */
    QN__RX_CAPTURE, /* items[0], number */
    QN__RX_ATOMIC,  /* items[0] */
    QN__RX_LOOK,    /* items[0], behind, negated */
    QN__RX_ANCHOR,  /* anchor */
    QN__RX_BACKREF, /* number */
    QN__RX_KEEP,    /* \K */
} qn__regex_kind;

#define QN__RX_UNBOUNDED INT32_MAX

typedef enum qn__regex_mode { QN__RX_GREEDY, QN__RX_LAZY, QN__RX_POSSESSIVE } qn__regex_mode;

typedef enum qn__regex_anchor {
    QN__RX_LINE_BEGIN,
    QN__RX_LINE_END,
    QN__RX_TEXT_BEGIN,
    QN__RX_TEXT_END,
    QN__RX_TEXT_LAST, /* \Z: also before a line feed that ends the text */
    QN__RX_WORD_EDGE,
    QN__RX_WORD_INSIDE,
    QN__RX_SEARCH_BEGIN, /* \G */
} qn__regex_anchor;

typedef struct qn__regex_node qn__regex_node;

struct qn__regex_node {
    qn__regex_kind kind;
    qn__regex_mode mode;
    qn__regex_anchor anchor;
    uint32_t c;
    int min, max, number;
    bool fold, behind, negated, line_break; /* the last: an ATOMIC that is \R */
    qn__charset *set;
    qn__regex_node **items;
    size_t n, capacity;
};

/* What parsing gives; everything is in the arena. */
typedef struct qn__regex_tree {
    qn__arena *arena;
    qn__regex_node *root;
    qn__charset *word; /* \w */
    int n_captures;
    const char *problem; /* why not */
    bool no_memory;
    bool unsupported;  /* it is Oniguruma's, but not understood here */
    size_t problem_at; /* byte of the pattern */
} qn__regex_tree;

bool qn__regex_parse(qn__regex_tree *tree, const char *pattern, size_t n);

/* ---- the program ---------------------------------------------------------------------------- */

typedef enum qn__regex_op {
    QN__RX_OP_CHAR,    /* a: the character */
    QN__RX_OP_SET,     /* set */
    QN__RX_OP_STAR,    /* set, a..b times, mode: one character over and over */
    QN__RX_OP_SPLIT,   /* to a, else to b */
    QN__RX_OP_JUMP,    /* to a */
    QN__RX_OP_SAVE,    /* the place in register a */
    QN__RX_OP_BEGIN,   /* a loop; its count and place are registers a and a + 1 */
    QN__RX_OP_LOOP,    /* another turn behind it, or out to `out`: a, min, max, mode */
    QN__RX_OP_TURN,    /* a turn begins: a */
    QN__RX_OP_MARK,    /* what follows is on its own; register a; b: negated, out to b else */
    QN__RX_OP_COMMIT,  /* and ends here: register a; b: back to its place */
    QN__RX_OP_REFUTE,  /* it matched, but was negated: register a */
    QN__RX_OP_BACK,    /* a to b characters back from the mark in register min, and no further on */
    QN__RX_OP_ARRIVED, /* at the place of the mark in register a */
    QN__RX_OP_ANCHOR,  /* a: which */
    QN__RX_OP_BACKREF, /* a: registers a and a + 1 */
    QN__RX_OP_MATCH
} qn__regex_op;

typedef struct qn__regex_step {
    uint8_t op, mode;
    int32_t a, b, min, max, out;
    const qn__charset *set;
} qn__regex_step;

struct qn__regex {
    qn__arena arena;
    char *place;
    qn__regex_step *steps;
    size_t n, capacity;
    size_t n_registers; /* 0: where the match begins (and \K moves); 1: where the text ends for a
                           look behind; then captures; then others */
    const qn__charset *word;
    bool first[256]; /* bytes that a match can begin with */
    bool may_be_empty;
};

bool qn__regex_compile(qn__regex *regex, const qn__regex_tree *tree, const char **problem);

#endif
