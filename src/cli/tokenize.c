/* SPDX-License-Identifier: Apache-2.0
 *
 * quern tokenize: a text's tokens, and back. Needs a tokenizer only, no weights.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A piece on a line of its own: control characters are written as escapes. */
static void print_piece(const char *piece)
{
    for (; *piece; piece++) {
        unsigned char c = (unsigned char)*piece;
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c < 0x20 || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

static const char *piece_of(const qn_tokenizer *t, int32_t id)
{
    const char *piece = qn_tokenizer_piece(t, id);
    return piece ? piece : "";
}

static void print_ids(const qn_tokens *ids, const char *between)
{
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%d", i ? between : "", ids->ids[i]);
}

static void print_tokens(const qn_tokenizer *t, const qn_tokens *ids, const arguments *a)
{
    if (a->json) {
        printf("{\"ids\":[");
        print_ids(ids, ",");
        printf("],\"pieces\":[");
        for (size_t i = 0; i < ids->n; i++) {
            const char *piece = piece_of(t, ids->ids[i]);
            if (i)
                putchar(',');
            print_json_string(stdout, piece, strlen(piece));
        }
        printf("]}\n");
        return;
    }
    if (a->ids) {
        print_ids(ids, " ");
        putchar('\n');
        return;
    }
    for (size_t i = 0; i < ids->n; i++) {
        printf("%d\t", ids->ids[i]);
        print_piece(piece_of(t, ids->ids[i]));
        putchar('\n');
    }
}

static qn_status add_id(qn_tokens *ids, long long id, qn_error *err)
{
    if (ids->n == ids->capacity) {
        size_t room = ids->capacity * 2 + 64;
        int32_t *more = realloc(ids->ids, room * sizeof *more);
        if (!more)
            return qn__fail_memory(err, "ids");
        ids->ids = more;
        ids->capacity = room;
    }
    ids->ids[ids->n++] = (int32_t)id;
    return QN_OK;
}

/* Ids apart by spaces or commas, maybe in [ ]. */
static qn_status parse_ids(const qn_tokenizer *t, const char *text, size_t size, qn_tokens *ids,
                           qn_error *err)
{
    const char *at = text, *end = text + size;
    while (at < end) {
        if (strchr(" \t\r\n,[]", *at) && *at) {
            at++;
            continue;
        }
        char *behind;
        errno = 0;
        long long id = strtoll(at, &behind, 10);
        if (behind == at || errno || id < 0 || id >= qn_tokenizer_vocab_size(t))
            return qn__fail(err, QN_INVALID, "\"%.*s\" is no token id from 0 to %d",
                            (int)strcspn(at, " \t\r\n,[]") > 40 ? 40
                                                                : (int)strcspn(at, " \t\r\n,[]"),
                            at, qn_tokenizer_vocab_size(t) - 1);
        if (add_id(ids, id, err) != QN_OK)
            return err->code;
        at = behind;
    }
    return QN_OK;
}

static qn_status decode(const qn_tokenizer *t, const arguments *a, const char *text, size_t size,
                        qn_error *err)
{
    qn_tokens ids = {0};
    qn_text out = {0};
    qn_status status = parse_ids(t, text, size, &ids, err);
    if (status == QN_OK)
        status =
            qn_tokenizer_decode(t, ids.ids, ids.n, a->no_special ? QN_SKIP_SPECIAL : 0, &out, err);
    if (status == QN_OK && a->json) {
        printf("{\"text\":");
        print_json_string(stdout, out.data ? out.data : "", out.n);
        printf("}\n");
    } else if (status == QN_OK) {
        fwrite(out.data, 1, out.n, stdout);
        if (!out.n || out.data[out.n - 1] != '\n')
            putchar('\n');
    }
    qn_tokens_free(&ids);
    qn_text_free(&out);
    return status;
}

static qn_status encode(const qn_tokenizer *t, const arguments *a, const char *text, size_t size,
                        qn_error *err)
{
    qn_tokens ids = {0};
    unsigned flags =
        (a->no_special ? 0 : QN_ADD_SPECIAL) | (a->parse_special ? QN_PARSE_SPECIAL : 0);
    qn_status status = qn_tokenizer_encode(t, text, size, flags, &ids, err);
    if (status == QN_OK)
        print_tokens(t, &ids, a);
    qn_tokens_free(&ids);
    return status;
}

int command_tokenize(arguments *a)
{
    if (a->prompt && a->file) {
        fprintf(stderr, "quern tokenize: there is a text behind -p and a file, %s; give one\n",
                a->file);
        return 2;
    }
    if (a->decode && (a->ids || a->parse_special)) {
        fprintf(stderr, "quern tokenize: --%s has no meaning with --decode\n",
                a->ids ? "ids" : "parse-special");
        return 2;
    }
    qn_error err = {0};
    char path[PATH_ROOM], *input = NULL;
    size_t size = a->prompt ? strlen(a->prompt) : 0;
    qn_tokenizer *t = NULL;
    if (locate_model(a->model, path, &err) == QN_OK && qn_tokenizer_open(&t, path, &err) == QN_OK &&
        (a->prompt || read_input(a->file ? a->file : "-", &input, &size, &err) == QN_OK))
        (a->decode ? decode : encode)(t, a, a->prompt ? a->prompt : input, size, &err);
    qn_tokenizer_close(t);
    free(input);
    return err.code == QN_OK ? 0 : failed(&err);
}
