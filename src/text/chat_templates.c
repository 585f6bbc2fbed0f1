/* SPDX-License-Identifier: Apache-2.0
 *
 * Where transformers looks for chat templates: chat_template.jinja ("default") and
 * additional_chat_templates/NAME.jinja, else "chat_template" of tokenizer_config.json, a text
 * ("default") or a list of {name, template}. Older versions wrote the folder as chat_templates, and
 * models that also read images have chat_template.json instead. A GGUF file has them in its
 * metadata.
 */
#include "text/chat_templates.h"

#include "base/file.h"
#include "base/gguf.h"
#include "base/json.h"
#include "base/recognize.h"
#include "base/utf8.h"
#include "jinja/jinja.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST_CONFIG = 32 << 20, MOST_TEMPLATES = 64, LONGEST_NAME = 100 };

static const char suffix[] = ".jinja";

/* ---- the set -------------------------------------------------------------------------------- */

/* The place of `name`: where it is, or would be put. */
static size_t place_of(const qn__template_set *set, const char *name, bool *found)
{
    size_t i = 0;
    int order = 1;
    while (i < set->n && (order = strcmp(set->items[i].name, name)) < 0)
        i++;
    *found = i < set->n && order == 0;
    return i;
}

const qn__named_template *qn__template_set_find(const qn__template_set *set, const char *name)
{
    bool found;
    size_t i = place_of(set, name, &found);
    return found ? &set->items[i] : NULL;
}

static void clear_template(qn__named_template *item)
{
    qn_template_free(item->t);
    free(item->name);
    free(item->source);
}

void qn__template_set_free(qn__template_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        clear_template(&set->items[i]);
    free(set->items);
    cJSON_free(set->variables);
    *set = (qn__template_set){0};
}

/* Adds a template, in the place of one of that name. `file` is for messages. */
static qn_status add_template(qn__template_set *set, const char *file, const char *name,
                              const char *source, size_t n, qn_error *err)
{
    bool found;
    char quoted[2 * LONGEST_NAME];
    size_t at = place_of(set, name, &found);
    qn__utf8_quote(quoted, sizeof quoted, name, strlen(name));
    if (strlen(name) > LONGEST_NAME)
        return qn__fail(err, QN_LIMIT, "%s: a chat template's name has more than %d bytes: %s",
                        file, LONGEST_NAME, quoted);
    if (!found && set->n == MOST_TEMPLATES)
        return qn__fail(err, QN_LIMIT, "%s: the model has more than %d chat templates", file,
                        MOST_TEMPLATES);
    if (!set->items && !(set->items = calloc(MOST_TEMPLATES, sizeof *set->items)))
        return qn__fail_memory(err, "a chat");
    qn__named_template item = {.name = strdup(name), .source = malloc(n + 1), .n = n};
    if (item.name && item.source) {
        memcpy(item.source, source, n);
        item.source[n] = 0;
        qn_template_new(&item.t, file, source, n, &item.error);
    }
    if (!item.name || !item.source || item.error.code == QN_MEMORY) {
        clear_template(&item);
        return qn__fail_memory(err, "a chat");
    }
    qn__named_template *place = &set->items[at];
    if (found)
        clear_template(place);
    else
        memmove(place + 1, place, (set->n++ - at) * sizeof *place);
    *place = item;
    return QN_OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

/* The path of a file of the directory that may be missing: NULL then, or after a failure. */
static char *optional_file(const char *directory, const char *name, qn_error *err)
{
    char *path;
    qn_error missing = {0};
    qn_status status = qn__path_resolve(directory, name, strlen(name), &path, &missing);
    if (status != QN_OK && status != QN_NOT_FOUND)
        qn__fail(err, status, "%s", missing.message);
    return status == QN_OK ? path : NULL;
}

static qn_status read_jinja(qn__template_set *set, const char *directory, const char *file,
                            const char *name, qn_error *err)
{
    char *source, *path = optional_file(directory, file, err);
    size_t n;
    if (path && qn__file_read(path, QN__JINJA_LARGEST_SOURCE, &source, &n, err) == QN_OK) {
        const char *is = qn__recognize_bytes(source, n);
        if (is)
            qn__fail(err, QN_UNSUPPORTED, "%s: %s", path, is);
        else
            add_template(set, path, name, source, n, err);
        free(source);
    }
    free(path);
    return err->code;
}

static bool is_jinja(const char *name)
{
    size_t n = strlen(name), end = sizeof suffix - 1;
    return n > end && strcmp(name + n - end, suffix) == 0;
}

/* FOLDER/NAME.jinja for each NAME; `again`: also where there is one of that name. */
static qn_status read_folder(qn__template_set *set, const char *directory, const char *folder,
                             bool again, qn_error *err)
{
    char *path = optional_file(directory, folder, err);
    DIR *entries = path ? opendir(path) : NULL;
    const struct dirent *entry;
    if (path && !entries && errno != ENOTDIR)
        qn__fail(err, QN_IO, "%s: cannot be listed: %s", path, strerror(errno));
    while (entries && err->code == QN_OK && (entry = readdir(entries))) {
        char file[sizeof entry->d_name + 64], name[sizeof entry->d_name];
        if (!is_jinja(entry->d_name))
            continue;
        size_t n = strlen(entry->d_name) - (sizeof suffix - 1);
        memcpy(name, entry->d_name, n);
        name[n] = 0;
        snprintf(file, sizeof file, "%s/%s", folder, entry->d_name);
        if (again || !qn__template_set_find(set, name))
            read_jinja(set, directory, file, name, err);
    }
    if (entries)
        closedir(entries);
    free(path);
    return err->code;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* "chat_template": a text, or a list of {"name", "template"}. */
static qn_status read_listed(qn__template_set *set, const qn__json_at *at, qn_error *err)
{
    const char *name, *source;
    qn__json_at item;
    if (cJSON_IsNull(at->node))
        return QN_OK;
    if (cJSON_IsString(at->node))
        return add_template(set, at->file, "default", at->node->valuestring,
                            strlen(at->node->valuestring), err);
    if (!cJSON_IsArray(at->node))
        return qn__json_fail(at, QN_FORMAT, err, "expected a text or a list of named templates");
    if (qn__json_first(at, &item))
        do {
            if (qn__json_get_string(&item, "name", &name, err) != QN_OK ||
                qn__json_get_string(&item, "template", &source, err) != QN_OK ||
                add_template(set, at->file, name, source, strlen(source), err) != QN_OK)
                return err->code;
        } while (qn__json_next(&item));
    return QN_OK;
}

/* Keeps the named special tokens as JSON for the templates. */
static qn_status keep_tokens(qn__template_set *set, const qn__json_at *config, qn_error *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    cJSON *kept = cJSON_CreateObject();
    bool ok = kept != NULL;
    for (size_t i = 0; ok && i < sizeof names / sizeof *names; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(config->node, names[i]);
        if (cJSON_IsObject(v))
            v = cJSON_GetObjectItemCaseSensitive(v, "content");
        if (cJSON_IsString(v))
            ok = cJSON_AddStringToObject(kept, names[i], v->valuestring) != NULL;
    }
    set->variables = ok ? cJSON_PrintUnformatted(kept) : NULL;
    cJSON_Delete(kept);
    return set->variables ? QN_OK : qn__fail_memory(err, "a chat");
}

/* A JSON file with "chat_template", which counts where there is no template yet. */
static qn_status read_config(qn__template_set *set, const char *directory, const char *file,
                             bool tokens, qn_error *err)
{
    char *path = optional_file(directory, file, err);
    cJSON *root = NULL;
    if (path && qn__json_read(&root, path, LARGEST_CONFIG, err) == QN_OK) {
        qn__json_at config = qn__json_root(path, root), at;
        if (tokens)
            keep_tokens(set, &config, err);
        if (err->code == QN_OK && set->n == 0 && qn__json_find(&config, "chat_template", &at))
            read_listed(set, &at, err);
        cJSON_Delete(root);
    }
    free(path);
    return err->code;
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

/* Token `id` of the vocabulary; false: there is none. */
static bool find_token(const qn__gguf *g, int64_t id, qn__gguf_text *out)
{
    const qn__gguf_value *tokens = NULL;
    size_t at = 0;
    if (qn__gguf_opt_array(g, "tokenizer.ggml.tokens", QN__GGUF_STRING, &tokens, NULL) != QN_OK ||
        !tokens)
        return false;
    for (int64_t i = 0; qn__gguf_next_text(tokens, &at, out); i++)
        if (i == id)
            return true;
    return false;
}

/* The special tokens, whose ids the metadata has, by the names that templates know. */
static qn_status keep_gguf_tokens(qn__template_set *set, const qn__gguf *g, qn_error *err)
{
    static const struct {
        const char *key, *name;
    } tokens[] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                  {"tokenizer.ggml.eos_token_id", "eos_token"},
                  {"tokenizer.ggml.unknown_token_id", "unk_token"},
                  {"tokenizer.ggml.padding_token_id", "pad_token"},
                  {"tokenizer.ggml.seperator_token_id", "sep_token"}};
    cJSON *kept = cJSON_CreateObject();
    bool ok = kept != NULL;
    for (size_t i = 0; ok && i < sizeof tokens / sizeof *tokens; i++) {
        int64_t id = -1;
        qn__gguf_text text;
        if (qn__gguf_opt_int(g, tokens[i].key, 0, INT32_MAX, &id, NULL) != QN_OK || id < 0 ||
            !find_token(g, id, &text) || qn__utf8_check(text.data, text.n) != text.n)
            continue;
        char *copy = strndup(text.data, text.n);
        ok = copy && cJSON_AddStringToObject(kept, tokens[i].name, copy);
        free(copy);
    }
    set->variables = ok ? cJSON_PrintUnformatted(kept) : NULL;
    cJSON_Delete(kept);
    return set->variables ? QN_OK : qn__fail_memory(err, "a chat");
}

/* tokenizer.chat_template is "default", tokenizer.chat_template.NAME one of that name. */
static qn_status add_gguf_template(qn__template_set *set, const qn__gguf *g,
                                   const qn__gguf_value *value, qn_error *err)
{
    static const char key[] = "tokenizer.chat_template";
    const char *name = value->key + sizeof key - 1;
    qn__gguf_text text;
    if (strncmp(value->key, key, sizeof key - 1) != 0 || (*name && *name != '.'))
        return QN_OK;
    if (qn__gguf_opt_text(g, value->key, &text, err) != QN_OK)
        return err->code;
    return add_template(set, g->path, *name ? name + 1 : "default", text.data, text.n, err);
}

static qn_status read_gguf_templates(qn__template_set *set, const char *path, qn_error *err)
{
    qn__gguf g;
    qn_status status = qn__gguf_open(&g, path, err);
    for (size_t i = 0; status == QN_OK && i < g.n_values; i++)
        status = add_gguf_template(set, &g, &g.values[i], err);
    if (status == QN_OK)
        status = keep_gguf_tokens(set, &g, err);
    qn__gguf_free(&g);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static qn_status read_directory(qn__template_set *set, const char *directory, qn_error *err)
{
    if (read_jinja(set, directory, "chat_template.jinja", "default", err) == QN_OK &&
        read_folder(set, directory, "additional_chat_templates", true, err) == QN_OK &&
        read_folder(set, directory, "chat_templates", false, err) == QN_OK &&
        read_config(set, directory, "tokenizer_config.json", true, err) == QN_OK && set->n == 0)
        read_config(set, directory, "chat_template.json", false, err);
    return err->code;
}

qn_status qn__template_set_read(qn__template_set *set, const char *path, qn_error *err)
{
    qn_error local = {0};
    char *gguf = NULL;
    if (qn__gguf_locate(path, &gguf, &local) == QN_OK) {
        if (gguf)
            read_gguf_templates(set, gguf, &local);
        else
            read_directory(set, path, &local);
    }
    free(gguf);
    if (local.code != QN_OK) {
        qn__template_set_free(set);
        return qn__fail(err, local.code, "%s", local.message);
    }
    return QN_OK;
}
