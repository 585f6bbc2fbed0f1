/* SPDX-License-Identifier: Apache-2.0
 *
 * Command-line options: one table for all commands, from which parsing, --help, /set and man pages
 * come.
 */
#ifndef QN_CLI_OPTIONS_H
#define QN_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "request/settings.h"

enum { MOST_TEMPLATE_VARS = 64, MOST_OVERRIDES = 256, MOST_WORDS = 256 };

/* Of --gpu-layers: all; and all on a GPU that has room for them, else none. */
enum { ALL_LAYERS = 1000000, AUTO_LAYERS };

/* What an option says that may come several times. */
typedef struct words {
    const char *word[MOST_WORDS];
    size_t n;
} words;

/* What the options of all commands say. Absent: NULL, false, -1 for integers, NaN for numbers. */
typedef struct arguments {
    const char *backend;
    const char *model, *prompt, *system, *device, *tools, *template_name, *products;
    const char *file;        /* the word that is no option, of the commands that take one */
    const char *prompt_file; /* -f */
    const char *against, *against_products; /* eval */
    const char *type, *output;              /* bench, convert */
    const char *shape, *head_type;          /* bench, with the lists that follow */
    const char *n_prompt, *n_gen, *n_depth, *batches, *thread_counts;
    int64_t memory_limit, wired_limit; /* bytes */
    int64_t context, threads, gpu_layers, stride, chunks, repeat;
    qn__settings settings;
    bool raw, rotate, json, verbose, no_special, parse_special, decode, ids, tokens, no_prompt,
        no_history;
    bool no_ceilings, load, batch_invariant;
    int64_t requests; /* bench */
    const char *cache_type_k, *cache_type_v;
    int64_t kv_bits, kv_group_size;
    const char *prompt_cache; /* generate, chat */
    int64_t prompt_lookup, draft_tokens;
    const char *draft_model;
    const char *adapter;
    words adapters; /* serve */
    bool prompt_cache_all, prompt_cache_ro;
    const char *mode, *dtype; /* convert */
    int64_t shard_size, bits, group_size;
    bool keep_head, force, packed;
    const char *host, *key_file, *alias; /* serve */
    int64_t port, parallel;
    bool insecure, stdio;
    words keys, hosts, origins;
    const char *overrides[MOST_OVERRIDES];
    size_t n_overrides;
    const char *template_vars[MOST_TEMPLATE_VARS];
    size_t n_template_vars;
    bool resume;
    const char *split; /* classify, embed */
    bool in_chat;
    words labels; /* classify */
    int64_t top;
    const char *pooling, *embd_form; /* embed */
    int64_t embd_normalize;
    const char *picture; /* inspect */
    int64_t layer, head;
    const char *data; /* train */
    int64_t iters, batch_size, steps_per_report, steps_per_eval, val_batches, save_every,
        max_seq_length, rank, grad_accumulation_steps, num_layers, warmup_steps, lr_decay_steps,
        patience;
    double learning_rate, alpha, weight_decay, max_grad_norm, val_split, beta1, beta2, eps,
        min_learning_rate, beta, label_smoothing, lora_dropout;
    const char *adapter_format, *adapter_dtype, *optimizer_dtype, *loss, *optimizer, *lr_schedule,
        *resume_adapter, *config, *log, *report, *fine_tune_type, *init;
    bool grad_checkpoint, dry_run, full, pack;
    words samples;
    bool mask_prompt;
    words targets;
} arguments;

/* Whose an option is. */
enum {
    OF_GENERATE = 1,
    OF_CHAT = 2,
    OF_TOKENIZE = 4,
    OF_TEMPLATE = 8,
    OF_INFO = 16,
    OF_SET = 32, /* chat's /set takes it, too */
    OF_CONVERT = 64,
    OF_EVAL = 128,
    OF_BENCH = 256,
    OF_SERVE = 512,
    OF_BATCH = 1024,
    OF_CLASSIFY = 2048,
    OF_EMBED = 4096,
    OF_INSPECT = 8192,
    OF_BACKENDS = 16384, /* that other backends than native have, too */
    OF_TRAIN = 32768,
    OF_HTTP = 65536 /* of serve, not with --stdio */
};

typedef enum option_type {
    OPTION_FLAG,     /* bool */
    OPTION_STRING,   /* const char * */
    OPTION_INTEGER,  /* int64_t, within least..most */
    OPTION_NUMBER,   /* double, within least..most */
    OPTION_LAYERS,   /* int64_t, 0..ALL_LAYERS, which is also all and -1, or AUTO_LAYERS */
    OPTION_SIZE,     /* int64_t, bytes: above 0, maybe with K, M or G */
    OPTION_VARIABLE, /* NAME=VALUE, once more each time */
    OPTION_SAMPLERS, /* names of a chain */
    OPTION_STOP,     /* text, once more each time */
    OPTION_BIAS,     /* ID+BIAS or ID-BIAS, once more each time */
    OPTION_OVERRIDE, /* PATTERN=TYPE, once more each time */
    OPTION_WORDS,    /* text, once more each time */
    OPTION_LABEL     /* the same, in which \n and the like stand for what they do in --stop */
} option_type;

typedef struct option {
    const char *name; /* without dashes */
    char letter;      /* 0: none */
    option_type type;
    unsigned of;
    size_t offset; /* in arguments */
    double least, most;
    const char *argument; /* "N", "TEXT"; NULL for flags */
    const char *help;     /* one line */
} option;

/* What of a command its options need. */
typedef struct option_user {
    const char *name;
    unsigned of;
    const char *operand; /* "FILE" where one word may be no option; NULL: none */
} option_user;

/* The options of one command, one by one: NULL at the end. Begin with *at = 0. */
const option *options_next(unsigned of, size_t *at);

/* The settings are to be freed. */
arguments options_defaults(void);

/* Whether it says something else than by default. */
bool options_given(const option *o, const arguments *a);

/* Parses argv[1..]. On failure prints one line to standard error (with the nearest name where an
 * option is unknown) and returns false. *help: --help was there. */
bool options_parse(const option_user *user, int argc, char **argv, arguments *a, bool *help);

/* Sets one option as `--name value` would, for /set. Prints one line and returns false on failure.
 */
bool options_set(const option_user *user, const char *name, const char *value, arguments *a);

/* The value of an option as text; "default" where it is absent. Returns text. */
const char *options_value(const option *o, const arguments *a, char *text, size_t room);

/* The nearest of the names to a misspelt word, or NULL when none is near. */
const char *options_nearest(const char *word, const char *const *names, size_t n);

#endif
