/* SPDX-License-Identifier: Apache-2.0
 *
 * quern serve --stdio.
 */
#ifndef QN_CLI_SERVE_STDIO_H
#define QN_CLI_SERVE_STDIO_H

#include "cli/options.h"

/* Answers the lines of standard input until their end, or quit; returns the exit status. */
int serve_stdio(const arguments *a);

#endif
