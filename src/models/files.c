/* SPDX-License-Identifier: Apache-2.0
 *
 * Copying the files beside a model's weights.
 */
#include "models/files.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

enum { LARGEST_COPY = 256 << 20 };

static const char *const copied[] = {"tokenizer.json",
                                     "tokenizer.model",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "generation_config.json",
                                     "chat_template.jinja",
                                     "chat_template.json"};
enum { N_COPIED = sizeof copied / sizeof *copied };

bool qn__is_model_file(const char *name)
{
    for (int i = 0; i < N_COPIED; i++)
        if (!strcmp(name, copied[i]))
            return true;
    return false;
}

static qn_status copy_file(const char *directory, const char *to_directory, const char *name,
                           qn_error *err)
{
    char *from = NULL, *data = NULL, *to = qn__path_join(to_directory, name);
    size_t n;
    qn_error missing = {0};
    qn_status status = qn__path_resolve(directory, name, strlen(name), &from, &missing);
    if (status == QN_NOT_FOUND)
        status = QN_OK;
    else if (status != QN_OK)
        qn__fail(err, status, "%s", missing.message);
    else if (!to)
        status = qn__fail_memory(err, "a path");
    else if ((status = qn__file_read(from, LARGEST_COPY, &data, &n, err)) == QN_OK)
        status = qn__file_write(to, data, n, 0, err);
    free(from);
    free(data);
    free(to);
    return status;
}

qn_status qn__model_files_copy(const char *from, const char *to, qn_error *err)
{
    qn_status status = QN_OK;
    for (int i = 0; status == QN_OK && i < N_COPIED; i++)
        status = copy_file(from, to, copied[i], err);
    return status;
}
