/* SPDX-License-Identifier: Apache-2.0
 *
 * A reply on a terminal: lines are broken between words, as they come.
 */
#ifndef QN_CLI_WRAP_H
#define QN_CLI_WRAP_H

#include "quern/text.h"

#include <stdbool.h>
#include <stddef.h>

enum { LONGEST_WORD_KEPT = 512 };

/* Zero it and set width before use. */
typedef struct wrapper {
    int width;  /* columns of the terminal; 0: nothing is broken */
    int column; /* where the cursor is */
    int word_width;
    size_t word_size;
    char word[LONGEST_WORD_KEPT]; /* what stands behind the last place where the line may break */
    bool broken;                  /* the line began at a break: spaces there are left out */
    bool fenced;                  /* within ``` lines, which stay as they are */
    char start[4];                /* how the line began, but for spaces */
    size_t started;
} wrapper;

/* The columns of the terminal that standard output is; 0: it is none. */
int terminal_width(void);

/* Appends to *out what goes to the terminal for n bytes of text, which are whole characters. A word
 * that does not fit is taken back and begun anew on the next line. False when memory is out. */
bool wrap_text(wrapper *w, const char *text, size_t n, qn_text *out);

#endif
