/* SPDX-License-Identifier: Apache-2.0
 *
 * A model as it lies on disk, whatever its files are: its configuration in the terms of Hugging
 * Face's config.json and generation_config.json, its tensors, and how these are named and stored.
 * A directory of Hugging Face's has that as it is; of a GGUF file it is made from the metadata
 * (gguf_config.c) and of a directory as Meta gives it out from params.json (meta_config.c), so that
 * families are configured by the same code.
 */
#ifndef QN_MODELS_SOURCE_H
#define QN_MODELS_SOURCE_H

#include "base/json.h"
#include "models/names.h"
#include "models/quantized.h"
#include "quern/io.h"

typedef struct qn__source {
    char *path;          /* what was opened: a directory or a GGUF file */
    char *config_path;   /* of config.json, or the GGUF file: for messages */
    cJSON *config;       /* as config.json has it */
    cJSON *generation;   /* as generation_config.json has it; NULL: nothing is said */
    qn_tensors *tensors; /* NULL until qn__source_open_tensors, but for GGUF and Meta's */
    bool gguf;
    bool paired;                   /* rows of queries and keys: see qn__parameter.paired_rows */
    bool norms_whole;              /* norms that multiply by 1 + weight are stored with the 1 */
    bool byte_rows;                /* see qn__decoder_config */
    qn__quantization quantization; /* when a decoder was described by it */
} qn__source;

/* Reads the configuration. On failure *out is empty. */
qn_status qn__source_open(qn__source *out, const char *path, qn_error *err);

/* Opens the tensors where they are not open. */
qn_status qn__source_open_tensors(qn__source *source, qn_error *err);
void qn__source_close(qn__source *source);

/* What asks for the sizes of tensors, for messages: "config.json" or "the metadata". */
const char *qn__source_config_name(const qn__source *source);

/* The configuration of a GGUF file's model and how its weights are stored, into *source, whose
 * tensors are open. */
qn_status qn__gguf_config(qn__source *source, qn_error *err);

/* The same of a directory as Meta gives it out, whose params.json is at source->config_path. */
qn_status qn__meta_config(qn__source *source, qn_error *err);

#endif
