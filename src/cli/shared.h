/* SPDX-License-Identifier: Apache-2.0
 *
 * What several commands need: finding and opening a model, Ctrl-C, reading a whole input, JSON
 * strings, progress on a terminal. Messages go to standard error, one line each.
 */
#ifndef QN_CLI_SHARED_H
#define QN_CLI_SHARED_H

#include "base/clock.h"
#include "cli/options.h"
#include "quern/quern.h"

#include <stdio.h>

enum { LARGEST_INPUT = 64 << 20 };

/* Prints "quern: MESSAGE"; returns the exit status, 130 for what was cancelled and else 1. */
int failed(const qn_error *err);

/* ---- colour ---------------------------------------------------------------------------------- */

typedef enum colour { COLOUR_NONE, COLOUR_BOLD, COLOUR_DIM, COLOUR_RED, COLOUR_GREEN } colour;

/* What puts a colour on where `to` is a terminal that has colours and NO_COLOR
 * (https://no-color.org) does not forbid them, else "". COLOUR_NONE ends it. */
const char *colour_code(FILE *to, colour c);

/* "(TEXT)" and a newline on standard error, for someone at a terminal. */
void note(const char *format, ...) QN_PRINTF(1, 2);

/* ---- Ctrl-C ---------------------------------------------------------------------------------- */

/* Set by SIGINT, which also ends a read; sessions poll it. */
extern atomic_bool interrupted;

/* From now on SIGINT sets `interrupted`, and with `insist` a second one before it is reset ends the
 * program at once. */
void catch_interrupts(bool insist);

/* Waits until standard input has something, or its end; false when Ctrl-C or wake_input came
 * before. Not with `insist`. */
bool wait_for_input(void);
void wake_input(void); /* for signal handlers */

/* ---- models: locate.c ------------------------------------------------------------------------ */

enum { PATH_ROOM = 4200 };

/* Where the model that -m names is: NULL is the built-in model, a path stays as it is, org/name,
 * maybe with @REVISION, is looked up in the Hugging Face cache. */
qn_status locate_model(const char *name, char path[PATH_ROOM], qn_error *err);

/* A path in which "~/" at the beginning is the user's home; false when it is too long. */
bool expand_home(const char *path, char out[PATH_ROOM]);

typedef struct loaded {
    char path[PATH_ROOM];
    qn_device *device;
    qn_model *model, *draft; /* --draft-model; NULL: none */
    double seconds;
} loaded;

/* What --products says; NULL: auto. */
qn_status products_of(const char *text, qn_products *out, qn_error *err);

/* Opens the device and the models of the arguments, with its progress on a terminal. close_loaded
 * also after a failure, of which a line has been printed. Returns the exit status. `describe`: to
 * be described only, without its weights and its tokenizer. */
int open_loaded(loaded *l, const arguments *a, bool describe);
void close_loaded(loaded *l);

/* device.c: the device's name, by --device or --gpu-layers; NULL is the CPU. */
qn_status device_of(const arguments *a, const char **name, qn_error *err);

/* Whether a model is to be opened again, on *device, which is the CPU now: "auto" had found a GPU
 * that has too little memory, as `err` tells. A warning has been printed; nothing else of the
 * device is open. */
bool turn_to_cpu(qn_device **device, const arguments *a, const qn_device_options *options,
                 qn_error *err);

/* What --gpu-layers does not do. */
void warn_of_layers(const arguments *a, const qn_device *device, const qn_model *model);

/* The device alone. */
qn_device_options device_options_of(const arguments *a);
qn_status open_device(qn_device **out, const arguments *a, qn_error *err);

/* memory.c: bytes that could be had now. */
uint64_t available_memory(void);

/* The cache grows as tokens come: what a model could hold by default need not fit, but what
 * --context asks for must. */
qn_status check_cache(qn_device *device, const qn_model *model, const qn_session_options *options,
                      qn_error *err);

/* A session as the arguments ask for it, which Ctrl-C stops. A --context whose keys and values
 * would not fit into memory is refused. */
qn_status open_session(qn_session **out, const arguments *a, const loaded *l, qn_error *err);

/* How many tokens the options let the text, and a draft model, guess at once. */
int32_t lookup_of(const arguments *a);
int32_t draft_tokens_of(const arguments *a);

/* How to generate: what the model asks for, and what the arguments say instead. They lend the
 * lists; *sampling is filled, and the options point at it. */
qn_generation_options generation_of(const arguments *a, const qn_model *model,
                                    qn_sampling *sampling);

/* ---- input and output ------------------------------------------------------------------------ */

/* Whether standard input is a pipe or a file, which someone put there to be read. */
bool input_is_piped(void);

/* All of a file, or of standard input for "-"; malloc, terminated. */
qn_status read_input(const char *path, char **text, size_t *size, qn_error *err);

void print_json_string(FILE *out, const char *text, size_t n);

/* How keys and values are kept, as --cache-type-k, -v and --kv-bits say; NULL: as usual. Stays
 * where it is while it is used. */
typedef struct cache_types {
    const char *k, *v;
    char name[32];
} cache_types;

qn_status cache_types_of(const arguments *a, cache_types *out, qn_error *err);

/* For qn_session_options: a line on standard error that comes and goes. */
void show_prefill(void *user, int64_t done, int64_t total);

#endif
