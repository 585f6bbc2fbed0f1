/* SPDX-License-Identifier: Apache-2.0
 *
 * A GGUF file's tokenizer in the terms of a Hugging Face directory.
 */
#ifndef QN_CONVERT_TOKENIZER_OUT_H
#define QN_CONVERT_TOKENIZER_OUT_H

#include "base/gguf.h"
#include "base/json.h"
#include "text/chat_templates.h"

/* The text of tokenizer.json for a tokenizer that was read from g's metadata, into *out, which the
 * caller frees in any case. */
qn_status qn__tokenizer_json(const qn_tokenizer *tokenizer, const qn__gguf *g, qn_text *out,
                             qn_error *err);

/* tokenizer_config.json, with the chat templates; NULL with *err filled: no memory. */
cJSON *qn__tokenizer_config(const qn_tokenizer *tokenizer, const qn__gguf *g,
                            const qn__template_set *templates, int64_t positions, qn_error *err);

#endif
