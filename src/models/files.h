/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies beside the weights in a directory of Hugging Face's, and stays as it is where weights
 * change: the tokenizer, the templates, the defaults.
 */
#ifndef QN_MODELS_FILES_H
#define QN_MODELS_FILES_H

#include "base/error.h"

#include <stdbool.h>

bool qn__is_model_file(const char *name);

/* Copies those that are there. */
qn_status qn__model_files_copy(const char *from, const char *to, qn_error *err);

#endif
