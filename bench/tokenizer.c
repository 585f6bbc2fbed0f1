/* SPDX-License-Identifier: Apache-2.0
 *
 * Our side of bench/tokenizer.py: how long a tokenizer takes to open, and to encode the texts of a
 * file (each behind its length in four bytes, little-endian), best of five.
 *
 *     bench-tokenizer path/to/tokenizer.json texts.bin ids.bin
 *
 * Prints one line of JSON; all ids go to ids.bin, for comparison.
 */
#include "quern/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static char *read_all(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size + 1);
    if (data && fread(data, 1, *size, f) != *size)
        *size = 0;
    fclose(f);
    return data;
}

static int encode_texts(const qn_tokenizer *t, const char *data, size_t size, qn_tokens *ids)
{
    qn_error err = {0};
    ids->n = 0;
    for (size_t at = 0; at + 4 <= size;) {
        uint32_t n;
        memcpy(&n, data + at, 4);
        at += 4;
        if (n > size - at || qn_tokenizer_encode(t, data + at, n, QN_PARSE_SPECIAL, ids, &err))
            return fprintf(stderr, "%s\n", err.message), 1;
        at += n;
    }
    return 0;
}

int main(int argc, char **argv)
{
    qn_tokenizer *t = NULL;
    qn_error err = {0};
    qn_tokens ids = {0};
    double opened = 1e9, encoded = 1e9;
    size_t size = 0;
    char *data = argc == 4 ? read_all(argv[2], &size) : NULL;
    if (!data)
        return fprintf(stderr, "usage: bench-tokenizer TOKENIZER TEXTS IDS\n"), 1;
    for (int i = 0; i < 5; i++) {
        qn_tokenizer_close(t);
        double start = now();
        if (qn_tokenizer_open(&t, argv[1], &err) != QN_OK)
            return fprintf(stderr, "%s\n", err.message), 1;
        opened = now() - start < opened ? now() - start : opened;
    }
    for (int i = 0; i < 5; i++) {
        double start = now();
        if (encode_texts(t, data, size, &ids))
            return 1;
        encoded = now() - start < encoded ? now() - start : encoded;
    }
    FILE *out = fopen(argv[3], "wb");
    if (!out || fwrite(ids.ids, 4, ids.n, out) != ids.n || fclose(out) != 0)
        return 1;
    printf("{\"open\": %.4f, \"encode\": %.5f, \"tokens\": %zu}\n", opened, encoded, ids.n);
    qn_tokens_free(&ids);
    qn_tokenizer_close(t);
    free(data);
    return 0;
}
