/* SPDX-License-Identifier: Apache-2.0
 *
 * quern template: what a conversation becomes for the model, as text or ids. Needs no weights.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>

static qn_status read_conversation(qn_conversation *c, const char *path, qn_error *err)
{
    char *text = NULL;
    size_t size;
    const char *name = strcmp(path, "-") ? path : "standard input";
    if (read_input(path, &text, &size, err) == QN_OK &&
        qn_conversation_parse(c, name, text, size, err) == QN_OK && !qn_conversation_length(c))
        qn__fail(err, QN_FORMAT, "%s: there is no message", name);
    free(text);
    return err->code;
}

/* From the file or -p, with --system in front and --tools. */
static qn_status gather(qn_conversation *c, const arguments *a, qn_error *err)
{
    if (a->prompt)
        qn_conversation_add(c, "user", a->prompt, strlen(a->prompt), err);
    else
        read_conversation(c, a->file, err);
    if (err->code == QN_OK && a->system)
        qn_conversation_set_system(c, a->system, strlen(a->system), err);
    if (err->code == QN_OK && a->tools)
        conversation_read_tools(c, a->tools, err);
    return err->code == QN_OK ? conversation_fill(c, a, err) : err->code;
}

static qn_status print_rendered(const qn_conversation *c, const arguments *a, qn_error *err)
{
    qn_text text = {0};
    qn_tokens ids = {0};
    qn_status status = QN_OK;
    if (!a->tokens || a->json)
        status = qn_conversation_text(c, !a->no_prompt, &text, err);
    if (status == QN_OK && (a->tokens || a->json))
        status = qn_conversation_ids(c, !a->no_prompt, &ids, err);
    if (status == QN_OK && a->json) {
        printf("{\"text\":");
        print_json_string(stdout, text.data ? text.data : "", text.n);
        printf(",\"ids\":[");
    } else if (status == QN_OK && !a->tokens) {
        fwrite(text.data, 1, text.n, stdout);
    }
    for (size_t i = 0; status == QN_OK && i < ids.n; i++)
        printf("%s%d", !i ? "" : a->json ? "," : " ", ids.ids[i]);
    if (status == QN_OK && (a->json || a->tokens))
        printf(a->json ? "]}\n" : "\n");
    qn_text_free(&text);
    qn_tokens_free(&ids);
    return status;
}

int command_template(arguments *a)
{
    if (!a->prompt == !a->file) {
        fprintf(stderr, "quern template: give a FILE of messages or a message behind -p%s\n",
                a->prompt ? ", not both" : "");
        return 2;
    }
    qn_error err = {0};
    char path[PATH_ROOM];
    qn_tokenizer *t = NULL;
    qn_chat *chat = NULL;
    qn_conversation *c = NULL;
    if (locate_model(a->model, path, &err) == QN_OK && qn_tokenizer_open(&t, path, &err) == QN_OK &&
        chat_form_open(&chat, t, path, a, &err) == QN_OK &&
        qn_conversation_new(&c, chat, &err) == QN_OK && gather(c, a, &err) == QN_OK)
        print_rendered(c, a, &err);
    qn_conversation_free(c);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
    return err.code == QN_OK ? 0 : failed(&err);
}
