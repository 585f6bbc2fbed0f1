/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening what is trained on. Whoever has a file of texts wants to hear of all its bad lines at
 * once, and before hours of work, not after.
 */
#include "cli/train_data.h"

#include "base/error.h"
#include "base/file.h"
#include "cli/conversation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_NAMED = 20, SEQUENCE = 2048 }; /* bad lines */

/* Bad lines are named where they are not too many. */
static void name_bad_line(void *user, const char *message)
{
    size_t *named = user;
    if (++*named <= MOST_NAMED)
        fprintf(stderr, "quern: %s\n", message);
}

/* What a user may not have meant. */
static void warn_of(const char *path, const qn_dataset *d, int64_t longest)
{
    qn_dataset_info i = QN_INIT(qn_dataset_info);
    qn_dataset_get_info(d, &i);
    if (i.cut)
        fprintf(stderr, "quern: warning: %s: %llu texts are cut off at %lld tokens%s\n", path,
                (unsigned long long)i.cut, (long long)longest,
                i.left_out ? "" : " (--max-seq-length)");
    if (i.left_out)
        fprintf(stderr,
                "quern: warning: %s: %llu of them are left out: their prompts alone are as long "
                "(--max-seq-length)\n",
                path, (unsigned long long)i.left_out);
    if (*i.passed_over)
        fprintf(stderr, "quern: warning: %s: not looked at: %s\n", path, i.passed_over);
}

static qn_status open_texts(qn_dataset **out, const qn_chat *chat, const char *path,
                            const arguments *a, int64_t longest, bool preferences, bool pack,
                            qn_error *err)
{
    size_t named = 0;
    qn_dataset_options o = {.size = sizeof o,
                            .max_length = longest,
                            .mask_prompt = a->mask_prompt,
                            .parse_special = a->parse_special,
                            .seed = a->settings.seed > 0 ? (uint64_t)a->settings.seed : 0,
                            .bad = name_bad_line,
                            .user = &named,
                            .cancel = &interrupted,
                            .pack = pack,
                            .preferences = preferences};
    if (qn_dataset_open(out, chat, path, &o, err) == QN_OK)
        warn_of(path, *out, longest);
    return err->code;
}

/* FILE, or DIR/name where there is one; "" where there is none. */
static void place_of(const arguments *a, const char *name, bool directory, char out[PATH_ROOM])
{
    int n = snprintf(out, PATH_ROOM, directory ? "%s/%s" : "%s", a->data, name);
    if (directory && (n >= PATH_ROOM || access(out, F_OK) != 0))
        *out = 0;
}

qn_status train_data_open(train_data *d, const loaded *l, const arguments *a, bool preferences,
                          qn_error *err)
{
    char path[PATH_ROOM], valid[PATH_ROOM] = "";
    bool directory = false;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(l->model, &info);
    const qn_tokenizer *t = qn_model_tokenizer(l->model);
    int64_t longest = a->max_seq_length > 0 ? a->max_seq_length : SEQUENCE;
    longest = longest < info.max_positions ? longest : info.max_positions;
    d->longest_row = a->pack ? longest : 0;
    if (!t)
        return qn__fail(err, QN_NOT_FOUND, "the model has no tokenizer");
    if (!strcmp(a->data, "-"))
        return qn__fail(err, QN_UNSUPPORTED,
                        "--data -: texts are read again and again; give a file");
    if (chat_form_open(&d->chat, t, l->path, a, err) != QN_OK ||
        qn__path_is_directory(a->data, &directory, err) != QN_OK)
        return err->code;
    place_of(a, "train.jsonl", directory, path);
    if (!*path)
        return qn__fail(err, QN_NOT_FOUND, "%s: there is no train.jsonl in it", a->data);
    if (directory)
        place_of(a, "valid.jsonl", true, valid);
    if (*valid && !isnan(a->val_split))
        return qn__fail(err, QN_INVALID, "--val-split, but there is %s", valid);
    if (open_texts(&d->train, d->chat, path, a, longest, preferences, a->pack, err) != QN_OK)
        return err->code;
    if (!isnan(a->val_split))
        return qn_dataset_split(d->train, a->val_split, &d->valid, err);
    return *valid ? open_texts(&d->valid, d->chat, valid, a, longest, preferences, false, err)
                  : QN_OK;
}

void train_data_close(train_data *d)
{
    qn_dataset_close(d->train);
    qn_dataset_close(d->valid);
    qn_chat_close(d->chat);
    *d = (train_data){0};
}
