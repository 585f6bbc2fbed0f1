/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's side of fuzz_tokenizer.py: reads texts from stdin, each behind its length in four
 * bytes (little-endian), and writes for each, in the same framing, three lists of ids (plain with
 * the template; without; without parsing special tokens) and two decoded texts.
 *
 *     encode_stream path/to/tokenizer.json
 */
#include "quern/text.h"

#include <stdio.h>
#include <stdlib.h>

static void put(const void *data, size_t size)
{
    uint32_t n = (uint32_t)size;
    fwrite(&n, 4, 1, stdout);
    if (size > 0)
        fwrite(data, 1, size, stdout);
}

int main(int argc, char **argv)
{
    static const unsigned flags[] = {QN_PARSE_SPECIAL | QN_ADD_SPECIAL, QN_PARSE_SPECIAL, 0};
    qn_error err = {0};
    qn_tokenizer *t;
    if (argc != 2 || qn_tokenizer_open(&t, argv[1], &err) != QN_OK) {
        fprintf(stderr, "%s\n", argc == 2 ? err.message : "usage: encode_stream TOKENIZER");
        return 1;
    }
    uint32_t n;
    while (fread(&n, 4, 1, stdin) == 1) {
        char *text = malloc(n + 1u);
        if (!text || fread(text, 1, n, stdin) != n)
            return 1;
        qn_tokens plain = {0};
        for (int i = 0; i < 3; i++) {
            qn_tokens ids = {0};
            if (qn_tokenizer_encode(t, text, n, flags[i], &ids, &err) != QN_OK) {
                fprintf(stderr, "%s\n", err.message);
                return 1;
            }
            put(ids.ids, ids.n * sizeof *ids.ids);
            if (i == 1)
                plain = ids;
            else
                qn_tokens_free(&ids);
        }
        for (int i = 0; i < 2; i++) {
            qn_text back = {0};
            if (qn_tokenizer_decode(t, plain.ids, plain.n, i ? QN_SKIP_SPECIAL : 0, &back, &err))
                return 1;
            put(back.data, back.n);
            qn_text_free(&back);
        }
        fflush(stdout);
        qn_tokens_free(&plain);
        free(text);
    }
    qn_tokenizer_close(t);
    return 0;
}
