/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of encodings, and how one is found.
 */
#include "quant/codecs.h"

#include "base/checked.h"

#define BLOCK_ROW(id, text, ggml, elements, bytes)                                                 \
    [QN__##id] = {.name = text,                                                                    \
                  .ggml_type = ggml,                                                               \
                  .block_elements = elements,                                                      \
                  .block_bytes = bytes,                                                            \
                  QN__CODEC_##id},
#define GROUP_ROW(KIND, kind, width, columns, type, text, scale_bytes)                             \
    [QN__##KIND##width##_G##columns##_##                                                           \
        type] = {.name = kind #width "-g" #columns "-" text,                                       \
                 .ggml_type = -1,                                                                  \
                 .block_elements = columns,                                                        \
                 .block_bytes = columns * width / 8 + 2 * scale_bytes,                             \
                 .bits = width,                                                                    \
                 .group = columns,                                                                 \
                 .scale = QN__##type,                                                              \
                 QN__CODEC_##KIND},
#define GROUP_ROWS(KIND, kind, width, columns)                                                     \
    GROUP_ROW(KIND, kind, width, columns, F32, "f32", 4)                                           \
    GROUP_ROW(KIND, kind, width, columns, F16, "f16", 2)                                           \
    GROUP_ROW(KIND, kind, width, columns, BF16, "bf16", 2)
#define AFFINE_ROWS(width, columns) GROUP_ROWS(AFFINE, "affine", width, columns)
#define ZEROED_ROWS(width, columns) GROUP_ROWS(ZEROED, "zeroed", width, columns)

const qn__encoding qn__encodings[QN__ENCODING_COUNT] = {
    QN__BLOCK_ENCODINGS(BLOCK_ROW) QN__AFFINE_WIDTHS(AFFINE_ROWS) QN__ZEROED_WIDTHS(ZEROED_ROWS)};

int qn__encoding_named(const char *name)
{
    for (int i = 0; i < QN__ENCODING_COUNT; i++)
        if (strcmp(qn__encodings[i].name, name) == 0)
            return i;
    return -1;
}

int qn__encoding_of_ggml(int64_t type)
{
    for (int i = 0; i < QN__ENCODING_COUNT; i++)
        if (type >= 0 && qn__encodings[i].ggml_type == type)
            return i;
    return -1;
}

static int encoding_of_groups(bool zeroed, int bits, int group, qn__encoding_id scale)
{
    for (int i = 0; i < QN__ENCODING_COUNT; i++) {
        const qn__encoding *e = &qn__encodings[i];
        if (e->bits != 0 && e->zeroed == zeroed && e->bits == bits && e->group == group &&
            e->scale == scale)
            return i;
    }
    return -1;
}

int qn__encoding_affine(int bits, int group, qn__encoding_id scale)
{
    return encoding_of_groups(false, bits, group, scale);
}

int qn__encoding_zeroed(int bits, int group, qn__encoding_id scale)
{
    return encoding_of_groups(true, bits, group, scale);
}

size_t qn__encoding_row_bytes(const qn__encoding *e, int64_t columns)
{
    size_t n;
    if (columns < 0 || columns % e->block_elements != 0 ||
        !qn__mul_size((size_t)columns / e->block_elements, e->block_bytes, &n))
        return 0;
    return n;
}
