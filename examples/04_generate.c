/* SPDX-License-Identifier: Apache-2.0
 *
 * Text from a model: opens a model directory, lets it reply to a message in its own chat format,
 * and prints the reply as it comes. A second message continues the conversation.
 *     build/examples/04_generate models/demo "Tell me a story about a fox." "And then?"
 */
#include <quern/quern.h>

#include <stdio.h>

/* Everything that the program holds, so that one place frees it. */
typedef struct program {
    qn_device *device;
    qn_model *model;
    qn_chat *chat; /* the model's chat templates */
    qn_session *session;
    qn_decoder *decoder; /* ids to text, whole characters at a time */
    qn_tokens ids;
    qn_text reply;
} program;

static qn_status open_program(program *p, const char *directory, qn_error *err)
{
    if (qn_device_open(&p->device, "cpu", NULL, err) != QN_OK ||
        qn_model_open(&p->model, p->device, directory, NULL, err) != QN_OK ||
        qn_chat_open(&p->chat, qn_model_tokenizer(p->model), directory, err) != QN_OK ||
        qn_session_open(&p->session, p->model, NULL, err) != QN_OK)
        return err->code;
    p->decoder = qn_decoder_new(qn_model_tokenizer(p->model), QN_SKIP_SPECIAL);
    return p->decoder ? QN_OK : QN_MEMORY;
}

static void close_program(program *p)
{
    qn_text_free(&p->reply);
    qn_tokens_free(&p->ids);
    qn_decoder_free(p->decoder);
    qn_session_close(p->session);
    qn_chat_close(p->chat);
    qn_model_close(p->model);
    qn_device_close(p->device);
}

/* Runs the conversation and prints the model's reply, which is also kept in p->reply. */
static qn_status answer(program *p, const qn_chat_message *messages, size_t n, qn_error *err)
{
    qn_generation *g;
    qn_generation_options options = QN_INIT(qn_generation_options);
    options.max_tokens = 40; /* sampling stays NULL: the most probable token each time */
    p->ids.n = p->reply.n = 0;
    qn_session_rewind(p->session, 0); /* simple: the whole conversation runs again */
    if (qn_chat_apply(p->chat, messages, n, true, &p->ids, err) != QN_OK ||
        qn_generation_begin(&g, p->session, p->ids.ids, p->ids.n, &options, err) != QN_OK)
        return err->code;
    int32_t id;
    size_t shown = 0;
    while (qn_generation_next(g, &id, err) == QN_OK && id >= 0 &&
           qn_decoder_push(p->decoder, id, &p->reply, err) == QN_OK) {
        fwrite(p->reply.data + shown, 1, p->reply.n - shown, stdout);
        fflush(stdout);
        shown = p->reply.n;
    }
    qn_decoder_flush(p->decoder, &p->reply, err); /* an unfinished character, if any */
    printf("%s\n", p->reply.n > shown ? p->reply.data + shown : "");
    qn_generation_end(g);
    return err->code;
}

int main(int argc, char **argv)
{
    program p = {0};
    qn_error err = {0};
    if (argc < 3 || argc > 4)
        return fprintf(stderr, "usage: 04_generate MODEL MESSAGE [MESSAGE]\n"), 2;
    qn_chat_message messages[3] = {{.role = "user", .content = argv[2]}};
    qn_status status = open_program(&p, argv[1], &err);
    if (status == QN_OK)
        status = answer(&p, messages, 1, &err);
    if (status == QN_OK && argc == 4) {
        messages[1] = (qn_chat_message){"assistant", p.reply.data, p.reply.n};
        messages[2] = (qn_chat_message){.role = "user", .content = argv[3]};
        status = answer(&p, messages, 3, &err);
    }
    if (status != QN_OK)
        fprintf(stderr, "04_generate: %s\n", err.message);
    close_program(&p);
    return status == QN_OK ? 0 : 1;
}
