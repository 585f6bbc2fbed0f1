/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention as SVG: a square a pair of tokens, the darker the more of the column's token goes into
 * what the row's reads. Squares that would look white are left out; where tokens are few, each says
 * its weight under the pointer.
 */
#include "cli/heatmap.h"
#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    WIDTH = 1280, /* of all squares, about */
    LARGEST = 18, /* a square */
    SMALLEST = 2,
    LABELLED = 9, /* a square beside which there is room for text */
    MARGIN = 130,
    TOP = 40,
    EXPLAINED = 96 /* tokens */
};

static const double faintest = 0.004; /* of what can be told from white */

/* ---- text ------------------------------------------------------------------------------------ */

static void print_escaped(FILE *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        const char *as = c == '&'                ? "&amp;"
                         : c == '<'              ? "&lt;"
                         : c == '>'              ? "&gt;"
                         : c == '"'              ? "&quot;"
                         : c == ' '              ? "\u2423" /* an open box */
                         : c == '\n'             ? "\u23ce"
                         : c < 0x20 || c == 0x7f ? "\u00b7"
                                                 : NULL;
        if (as)
            fputs(as, out);
        else
            fputc(c, out);
    }
}

/* The text of a token; of a part of a character its bytes. */
static void print_label(FILE *out, const qn_tokenizer *t, int32_t id)
{
    qn_text bytes = {0};
    qn_tokenizer_token_bytes(t, id, &bytes, NULL);
    const char *text = bytes.data ? bytes.data : "";
    if (!bytes.n)
        fprintf(out, "#%d", id);
    else if (qn__utf8_check(text, bytes.n) == bytes.n)
        print_escaped(out, text, bytes.n);
    else
        for (size_t i = 0; i < bytes.n; i++)
            fprintf(out, "\\x%02x", (unsigned char)text[i]);
    qn_text_free(&bytes);
}

/* ---- the picture ----------------------------------------------------------------------------- */

static void print_labels_of(FILE *out, const heatmap *h, int side)
{
    int size = side < 12 ? side : 12;
    fprintf(out, "<g font-size=\"%d\" text-anchor=\"end\">\n", size);
    for (size_t i = 0; i < h->n; i++) {
        fprintf(out, "<text x=\"%d\" y=\"%zu\">", MARGIN - 4,
                MARGIN + i * (size_t)side + (size_t)(side + size) / 2 - 1);
        print_label(out, h->tokenizer, h->ids[i]);
        fprintf(out, "</text>\n");
    }
    fprintf(out, "</g>\n<g font-size=\"%d\">\n", size);
    for (size_t i = 0; i < h->n; i++) {
        size_t x = MARGIN + i * (size_t)side + (size_t)(side + size) / 2 - 1;
        fprintf(out, "<text transform=\"translate(%zu %d) rotate(-90)\">", x, MARGIN - 4);
        print_label(out, h->tokenizer, h->ids[i]);
        fprintf(out, "</text>\n");
    }
    fprintf(out, "</g>\n");
}

static void print_square(FILE *out, const heatmap *h, size_t row, size_t column, int side)
{
    double weight = (double)h->weights[row * h->n + column];
    if (weight < faintest)
        return;
    fprintf(out, "<rect x=\"%zu\" y=\"%zu\" width=\"%d\" height=\"%d\" fill-opacity=\"%.3f\"",
            column * (size_t)side, row * (size_t)side, side, side, weight < 1 ? weight : 1);
    if (h->n > EXPLAINED) {
        fprintf(out, "/>\n");
        return;
    }
    fprintf(out, "><title>");
    print_label(out, h->tokenizer, h->ids[row]);
    fprintf(out, " (%zu) reads ", row);
    print_label(out, h->tokenizer, h->ids[column]);
    fprintf(out, " (%zu): %.4f</title></rect>\n", column, weight);
}

static void print_picture(FILE *out, const heatmap *h)
{
    int side = WIDTH / (int)h->n;
    side = side > LARGEST ? LARGEST : side < SMALLEST ? SMALLEST : side;
    int square = side * (int)h->n, all = MARGIN + square + TOP / 2;
    all = all < 480 ? 480 : all;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"10\" y=\"24\" font-size=\"15\">%s</text>\n",
            all, all, h->title);
    if (side >= LABELLED)
        print_labels_of(out, h, side);
    fprintf(out,
            "<g transform=\"translate(%d %d)\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#888\"/>\n"
            "<g fill=\"#08306b\">\n",
            MARGIN, MARGIN, square, square);
    for (size_t row = 0; row < h->n; row++)
        for (size_t column = 0; column <= row; column++)
            print_square(out, h, row, column, side);
    fprintf(out, "</g>\n</g>\n</svg>\n");
}

qn_status heatmap_write(const heatmap *h, const char *path, qn_error *err)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return qn__fail_memory(err, "a picture");
    print_picture(out, h);
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad)
        qn__fail_memory(err, "a picture");
    else
        qn__file_write(path, text, n, QN__WRITER_REPLACE, err);
    free(text);
    return err->code;
}
