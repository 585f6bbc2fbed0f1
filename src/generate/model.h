/* SPDX-License-Identifier: Apache-2.0
 *
 * The model object behind include/quern/model.h.
 */
#ifndef QN_GENERATE_MODEL_H
#define QN_GENERATE_MODEL_H

#include "models/loaded.h"
#include "models/source.h"
#include "quern/model.h"

enum { QN__MOST_STOPS = 64 };

struct qn_model {
    atomic_int refs; /* the opener's and sessions' */
    qn_device *device;
    qn__decoder decoder;
    qn_tokenizer *tokenizer;
    qn_sampling sampling;
    int32_t stop[QN__MOST_STOPS];
    size_t n_stop;
    char *stop_strings[QN__MOST_STOPS];
    size_t n_stop_strings;
    int64_t max_tokens; /* of a generation; 0: no limit of the model's */
    char **adapter_names;
    char *directory, *config_path; /* of Hugging Face's files; NULL: it is of others */
};

/* adapters.c: reads the options' adapters. */
qn_status qn__model_open_adapters(qn_model *m, const qn_model_options *options, qn_error *err);
void qn__model_close_adapters(qn_model *m);

/* The number that `asked`, an option of that name, means; *out 0: none. */
qn_status qn__model_adapter(const qn_model *m, int asked, int32_t *out, qn_error *err);

/* Reads generation_config.json, or what stands for it; it may be absent and may hold anything: what
 * makes no sense is left out, with a line in the log. Fails only when memory is out. */
qn_status qn__model_read_defaults(qn_model *m, const qn__source *source, qn_error *err);

/* The stop tokens of config.json, where generation_config.json has none. */
qn_status qn__model_read_config_stops(qn_model *m, const qn__source *source, qn_error *err);

void qn__model_add_stop(qn_model *m, int64_t id);

/* QN_INVALID, naming the first of n tokens that is not in the vocabulary. */
qn_status qn__model_check_tokens(const qn_model *m, const int32_t *ids, size_t n, qn_error *err);

/* ---- model_cache.c ---- */

typedef struct qn__model_cache_options {
    const char *keys, *values; /* encodings; NULL: as the model's numbers want it */
    int64_t limit, keep;       /* 0, or queries see so many positions at most, the first `keep` of
                                  which are the sequence's first ones */
} qn__model_cache_options;

/* A cache for the model's layers. */
qn_status qn__model_cache(qn__cache *cache, const qn_model *model, const qn__cache_room *room,
                          const qn__model_cache_options *options, qn_error *err);

/* Bytes of one that holds so many positions of one sequence; 0 when memory is out. */
uint64_t qn__model_cache_bytes(const qn_model *model, int64_t positions,
                               const qn__model_cache_options *options);

#endif
