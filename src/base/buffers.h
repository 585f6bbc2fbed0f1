/* SPDX-License-Identifier: Apache-2.0
 *
 * Appending to the growing buffers of quern/text.h. Growth doubles.
 */
#ifndef QN_BASE_BUFFERS_H
#define QN_BASE_BUFFERS_H

#include "quern/text.h"

/* Room for n more bytes and the NUL; false when memory is out. */
bool qn__text_reserve(qn_text *text, size_t n);
bool qn__text_append(qn_text *text, const char *data, size_t n);
bool qn__text_puts(qn_text *text, const char *s); /* terminated */

/* n bytes of UTF-8 as a string of JSON, in quotes. */
bool qn__text_append_json(qn_text *text, const char *data, size_t n);

bool qn__tokens_reserve(qn_tokens *tokens, size_t n);

static inline bool qn__tokens_push(qn_tokens *tokens, int32_t id)
{
    if (tokens->n == tokens->capacity && !qn__tokens_reserve(tokens, 1))
        return false;
    tokens->ids[tokens->n++] = id;
    return true;
}

#endif
