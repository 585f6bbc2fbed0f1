/* SPDX-License-Identifier: Apache-2.0
 *
 * A chat: a message a line, and the model's replies as they come. Each reply runs only what is new.
 * With a FILE the conversation goes on where it was left, without running it again.
 *     build/examples/05_chat models/demo FILE
 */
#include <quern/quern.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static qn_status answer(qn_conversation *c, qn_session *session, qn_error *err)
{
    qn_generation *g;
    qn_text reply = {0};
    int32_t id = 0;
    if (qn_conversation_begin_reply(&g, c, session, NULL, err) != QN_OK)
        return err->code;
    for (size_t shown = 0; id >= 0 && qn_generation_next(g, &id, err) == QN_OK; shown = reply.n) {
        qn_generation_text(g, id < 0, &reply, err);
        if (reply.n > shown)
            fwrite(reply.data + shown, 1, reply.n - shown, stdout);
        fflush(stdout);
    }
    qn_generation_end(g);
    putchar('\n');
    if (err->code == QN_OK)
        qn_conversation_add(c, "assistant", reply.data, reply.n, err);
    qn_text_free(&reply);
    return err->code;
}

/* Everything that a chat needs; what is NULL may be closed. */
typedef struct program {
    qn_device *device;
    qn_model *model;
    qn_chat *chat; /* the model's templates */
    qn_session *session;
    qn_conversation *conversation;
} program;

static qn_status open_program(program *p, const char *model, const char *file, qn_error *err)
{
    if (qn_device_open(&p->device, "cpu", NULL, err) != QN_OK ||
        qn_model_open(&p->model, p->device, model, NULL, err) != QN_OK ||
        qn_chat_open(&p->chat, qn_model_tokenizer(p->model), model, err) != QN_OK ||
        qn_session_open(&p->session, p->model, NULL, err) != QN_OK ||
        qn_conversation_new(&p->conversation, p->chat, err) != QN_OK || !file ||
        access(file, F_OK) != 0)
        return err->code;
    return qn_conversation_restore(p->conversation, p->session, file, err);
}

int main(int argc, char **argv)
{
    program p = {0};
    qn_error err = {0};
    char line[4096];
    if (argc < 2 || argc > 3)
        return fprintf(stderr, "usage: 05_chat MODEL [FILE]\n"), 2;
    open_program(&p, argv[1], argv[2], &err);
    while (err.code == QN_OK && fgets(line, sizeof line, stdin))
        if (qn_conversation_add(p.conversation, "user", line, strcspn(line, "\n"), &err) == QN_OK)
            answer(p.conversation, p.session, &err);
    if (err.code == QN_OK && argv[2])
        qn_conversation_save(p.conversation, p.session, argv[2], &err);
    if (err.code != QN_OK)
        fprintf(stderr, "05_chat: %s\n", err.message);
    qn_conversation_free(p.conversation);
    qn_session_close(p.session);
    qn_chat_close(p.chat);
    qn_model_close(p.model);
    qn_device_close(p.device);
    return err.code == QN_OK ? 0 : 1;
}
