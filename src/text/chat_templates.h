/* SPDX-License-Identifier: Apache-2.0
 *
 * The chat templates of a model's directory, by name, as transformers finds them, or of a GGUF
 * file.
 */
#ifndef QN_TEXT_CHAT_TEMPLATES_H
#define QN_TEXT_CHAT_TEMPLATES_H

#include "quern/text.h"

typedef struct qn__named_template {
    char *name, *source;
    size_t n;       /* bytes of the source */
    qn_template *t; /* NULL: `error` says why, to whoever uses it */
    qn_error error;
} qn__named_template;

typedef struct qn__template_set {
    qn__named_template *items; /* sorted by name */
    size_t n;
    char *variables; /* JSON: bos_token and others */
} qn__template_set;

/* Reads what the directory or GGUF file has; the set is {0} before. A template that does not parse
 * is kept with its error: others may be in use. */
qn_status qn__template_set_read(qn__template_set *set, const char *path, qn_error *err);
void qn__template_set_free(qn__template_set *set);

/* NULL: there is none of that name. */
const qn__named_template *qn__template_set_find(const qn__template_set *set, const char *name);

#endif
