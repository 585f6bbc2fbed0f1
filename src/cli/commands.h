/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of quern. Each gets its own arguments (argv[0] is its name) and returns the exit status:
 * 0 success, 1 failure, 2 wrong usage, 130 interrupted.
 */
#ifndef QN_CLI_COMMANDS_H
#define QN_CLI_COMMANDS_H

int command_generate(int argc, char **argv);

#endif
