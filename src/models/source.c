/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a model's files; see source.h.
 */
#include "models/source.h"

#include "base/file.h"
#include "base/gguf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGEST_CONFIG = 4 << 20 };

static qn_status open_gguf(qn__source *s, char *file, qn_error *err)
{
    s->gguf = true;
    s->config_path = file;
    qn_status status = qn_tensors_open(&s->tensors, file, err);
    return status == QN_OK ? qn__gguf_config(s, err) : status;
}

static qn_status open_directory(qn__source *s, qn_error *err)
{
    char *params = NULL;
    s->config_path = qn__path_join(s->path, "config.json");
    if (!s->config_path)
        return qn__fail_memory(err, "a path");
    if (access(s->config_path, F_OK) != 0 &&
        qn__path_resolve(s->path, "params.json", strlen("params.json"), &params, NULL) == QN_OK) {
        free(s->config_path);
        s->config_path = params;
        qn_status status = qn_tensors_open(&s->tensors, s->path, err);
        return status == QN_OK ? qn__meta_config(s, err) : status;
    }
    return qn__json_read(&s->config, s->config_path, LARGEST_CONFIG, err);
}

qn_status qn__source_open(qn__source *out, const char *path, qn_error *err)
{
    char *gguf = NULL;
    *out = (qn__source){.path = strdup(path)};
    qn_status status = out->path ? qn__gguf_locate(path, &gguf, err) : QN_MEMORY;
    if (!out->path)
        qn__fail_memory(err, "a path");
    if (status == QN_OK)
        status = gguf ? open_gguf(out, gguf, err) : open_directory(out, err);
    if (status != QN_OK)
        qn__source_close(out);
    return status;
}

qn_status qn__source_open_tensors(qn__source *s, qn_error *err)
{
    return s->tensors ? QN_OK : qn_tensors_open(&s->tensors, s->path, err);
}

void qn__source_close(qn__source *s)
{
    qn_tensors_close(s->tensors);
    cJSON_Delete(s->config);
    cJSON_Delete(s->generation);
    free(s->config_path);
    free(s->path);
    *s = (qn__source){0};
}

const char *qn__source_config_name(const qn__source *s)
{
    return s->gguf ? "the metadata" : "config.json";
}
