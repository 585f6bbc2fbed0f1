/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading texts. A text that cannot be read ends the run, with its line's number: results stand for
 * texts by their order.
 */
#include "cli/texts.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_AT_ONCE = 4096 };

bool text_kind_of(const arguments *a, const char *command, text_kind *kind)
{
    static const char *const names[] = {[TEXT_LINES] = "lines",
                                        [TEXT_WORDS] = "words",
                                        [TEXT_JSON] = "jsonl",
                                        [TEXT_WHOLE] = "none"};
    size_t n = a->file ? strlen(a->file) : 0;
    const char *wrong = !a->prompt && !a->file     ? "which texts? Give one with -p, or name their "
                                                     "file; - is standard input"
                        : a->prompt && a->file     ? "the text comes from -p or from FILE, not both"
                        : a->prompt && a->split    ? "--split is how FILE is cut into texts"
                        : a->system && !a->in_chat ? "--system belongs to --chat"
                                                   : NULL;
    *kind = n > 6 && !strcmp(a->file + n - 6, ".jsonl") ? TEXT_JSON : TEXT_LINES;
    if (wrong) {
        fprintf(stderr, "quern %s: %s\n", command, wrong);
        return false;
    }
    for (int i = TEXT_LINES; a->split && i <= TEXT_WHOLE; i++)
        if (!strcmp(a->split, names[i])) {
            *kind = (text_kind)i;
            return true;
        }
    if (a->split)
        fprintf(stderr, "quern %s: --split: it is lines, words, jsonl or none, not \"%.40s\"\n",
                command, a->split);
    return !a->split;
}

qn_status texts_open(text_source *s, const loaded *l, const arguments *a, text_kind kind,
                     size_t longest, qn_error *err)
{
    const qn_tokenizer *t = qn_model_tokenizer(l->model);
    *s = (text_source){.arguments = a, .loaded = l, .kind = kind, .longest = longest, .in.fd = -1};
    if (!t)
        return qn__fail(err, QN_NOT_FOUND, "the model has no tokenizer");
    if (a->file && lines_open(&s->in, a->file, err) != QN_OK)
        return err->code;
    return a->in_chat || kind == TEXT_JSON ? chat_form_open(&s->chat, t, l->path, a, err) : QN_OK;
}

void texts_close(text_source *s)
{
    lines_close(&s->in);
    qn_chat_close(s->chat);
}

static void clear_list(text_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        qn_tokens_free(&list->items[i].ids);
        free(list->items[i].custom_id);
        free(list->items[i].text);
    }
    list->n = list->tokens = 0;
}

void texts_free(text_list *list)
{
    clear_list(list);
    free(list->items);
    free(list->ids);
}

/* ---- one text -------------------------------------------------------------------------------- */

static qn_status encode_text(const text_source *s, const char *text, size_t n, text_item *item,
                             qn_error *err)
{
    const arguments *a = s->arguments;
    item->text = strndup(text, n);
    if (!item->text)
        return qn__fail_memory(err, "a text");
    if (!a->in_chat)
        return qn_tokenizer_encode(qn_model_tokenizer(s->loaded->model), text, n,
                                   QN_ADD_SPECIAL | (a->parse_special ? QN_PARSE_SPECIAL : 0),
                                   &item->ids, err);
    return message_encode(s->chat, a, text, n, &item->ids, err);
}

static qn_status take_text_messages(const text_source *s, const qn__json_at *line, text_item *item,
                                    qn_error *err)
{
    qn_conversation *c;
    if (qn_conversation_new(&c, s->chat, err) != QN_OK)
        return err->code;
    if (conversation_take(c, line, err) == QN_OK)
        conversation_encode(c, s->arguments, &item->ids, err);
    qn_conversation_free(c);
    return err->code;
}

static qn_status take_text_ids(const qn__json_at *list, text_item *item, qn_error *err)
{
    int n = cJSON_GetArraySize(list->node);
    qn__json_at value;
    item->ids.ids = malloc(((size_t)n + 1) * sizeof *item->ids.ids);
    if (!item->ids.ids)
        return qn__fail_memory(err, "a text");
    item->ids.capacity = (size_t)n + 1;
    for (bool any = qn__json_first(list, &value); any; any = qn__json_next(&value)) {
        int64_t id;
        if (qn__json_as_int(&value, 0, INT32_MAX, &id, err) != QN_OK)
            return err->code;
        item->ids.ids[item->ids.n++] = (int32_t)id;
    }
    return QN_OK;
}

/* A text, ids, or messages. */
static qn_status take_value(const text_source *s, const qn__json_at *value, text_item *item,
                            qn_error *err)
{
    const char *text;
    if (cJSON_IsArray(value->node))
        return take_text_ids(value, item, err);
    return qn__json_as_string(value, &text, err) == QN_OK
               ? encode_text(s, text, strlen(text), item, err)
               : err->code;
}

static qn_status take_member(const text_source *s, const qn__json_at *line,
                             const qn__json_at *member, text_item *item, qn_error *err)
{
    const char *id;
    if (!strcmp(member->key, "custom_id")) {
        if (qn__json_as_string(member, &id, err) == QN_OK && !(item->custom_id = strdup(id)))
            qn__fail_memory(err, "a text");
    } else if (item->text || item->ids.n) {
        qn__json_fail(member, QN_INVALID, err, "the line has a text already");
    } else if (!strcmp(member->key, "messages")) {
        take_text_messages(s, line, item, err);
    } else if (!strcmp(member->key, "text") || !strcmp(member->key, "prompt") ||
               !strcmp(member->key, "input")) {
        take_value(s, member, item, err);
    } else {
        qn__json_fail(member, QN_UNSUPPORTED, err,
                      "not supported; known are text, prompt, input, messages and custom_id");
    }
    return err->code;
}

static qn_status read_json_line(const text_source *s, text_item *item, qn_error *err)
{
    char name[40];
    cJSON *tree = NULL;
    qn__json_at member;
    snprintf(name, sizeof name, "line %llu", (unsigned long long)s->in.number);
    if (qn__json_parse(&tree, name, s->in.line.data, s->in.line.n, err) != QN_OK)
        return err->code;
    qn__json_at line = qn__json_root(name, tree);
    if (!cJSON_IsObject(tree))
        take_value(s, &line, item, err);
    for (bool any = cJSON_IsObject(tree) && qn__json_first(&line, &member);
         any && err->code == QN_OK; any = qn__json_next(&member))
        take_member(s, &line, &member, item, err);
    if (err->code == QN_OK && !item->text && !item->ids.n)
        qn__json_fail(&line, QN_INVALID, err, "there is no text");
    cJSON_Delete(tree);
    return err->code;
}

/* ---- the next one ---------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The line that was read has another word: [*from, *from + *n). */
static bool next_word(text_source *s, const char **from, size_t *n)
{
    const qn_text *line = &s->in.line;
    while (s->word < line->n && is_space(line->data[s->word]))
        s->word++;
    size_t end = s->word;
    while (end < line->n && !is_space(line->data[end]))
        end++;
    *from = line->data + s->word;
    *n = end - s->word;
    s->word = end;
    return *n > 0;
}

static qn_status read_whole(text_source *s, text_item *item, bool *more, qn_error *err)
{
    const arguments *a = s->arguments;
    char *text = NULL;
    size_t n;
    *more = !s->read_all;
    s->read_all = true;
    if (!*more)
        return QN_OK;
    if (a->prompt)
        return encode_text(s, a->prompt, strlen(a->prompt), item, err);
    if (read_input(a->file, &text, &n, err) == QN_OK)
        encode_text(s, text, n, item, err);
    free(text);
    return err->code;
}

static qn_status read_item(text_source *s, text_item *item, bool *more, qn_error *err)
{
    const char *word;
    size_t n;
    if (s->arguments->prompt || s->kind == TEXT_WHOLE)
        return read_whole(s, item, more, err);
    *more = true;
    if (s->kind == TEXT_WORDS && next_word(s, &word, &n))
        return encode_text(s, word, n, item, err);
    s->word = 0;
    if (lines_next(&s->in, more, err) != QN_OK || !*more)
        return err->code;
    if (s->kind == TEXT_JSON)
        return read_json_line(s, item, err);
    if (s->kind == TEXT_LINES)
        return encode_text(s, s->in.line.data, s->in.line.n, item, err);
    return next_word(s, &word, &n) ? encode_text(s, word, n, item, err) : QN_OK;
}

static qn_status check_item(const text_source *s, const text_item *item, qn_error *err)
{
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(s->loaded->model, &info);
    for (size_t i = 0; i < item->ids.n; i++)
        if (item->ids.ids[i] >= info.vocab_size)
            return qn__fail(err, QN_INVALID, "token %zu is %d, the vocabulary has %lld", i,
                            item->ids.ids[i], (long long)info.vocab_size);
    if (item->ids.n && item->ids.n <= s->longest)
        return QN_OK;
    return item->ids.n ? qn__fail(err, QN_LIMIT, "%zu tokens; there is room for %zu", item->ids.n,
                                  s->longest)
                       : qn__fail(err, QN_INVALID, "the text has no tokens");
}

static qn_status reserve_item(text_list *list, qn_error *err)
{
    if (list->n < list->room)
        return QN_OK;
    size_t room = list->room * 2 + 64;
    text_item *items = realloc(list->items, room * sizeof *items);
    if (items)
        list->items = items;
    qn_ids *ids = realloc(list->ids, room * sizeof *ids);
    if (ids)
        list->ids = ids;
    if (!items || !ids)
        return qn__fail_memory(err, "texts");
    list->room = room;
    return QN_OK;
}

/* With the line's number, where messages about JSON have not said it. */
static qn_status fail_text(const text_source *s, const qn_error *wrong, qn_error *err)
{
    bool told = !s->in.number || !strncmp(wrong->message, "line ", 5);
    return told ? qn__fail(err, wrong->code, "%s", wrong->message)
                : qn__fail(err, wrong->code, "line %llu: %s", (unsigned long long)s->in.number,
                           wrong->message);
}

qn_status texts_read(text_source *s, text_list *list, size_t tokens, qn_error *err)
{
    bool more = true;
    clear_list(list);
    while (more && list->tokens < tokens && list->n < MOST_AT_ONCE) {
        qn_error wrong = {0};
        if (reserve_item(list, err) != QN_OK)
            return err->code;
        text_item *item = &list->items[list->n++];
        *item = (text_item){.text = NULL};
        if (read_item(s, item, &more, &wrong) == QN_OK && more)
            check_item(s, item, &wrong);
        if (wrong.code != QN_OK)
            return fail_text(s, &wrong, err);
        list->n -= !more;
        list->ids[list->n - more] = (qn_ids){item->ids.ids, item->ids.n};
        list->tokens += item->ids.n;
    }
    return QN_OK;
}
