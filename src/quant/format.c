/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of storage formats.
 */
#include "quant/format.h"

#include "base/checked.h"

static const struct {
    const char *name;
    uint8_t row_block, column_block, element_bytes;
} formats[QN__FORMAT_COUNT] = {
    [QN__PLAIN] = {"plain", 1, 1, 0},
    [QN__PANEL_BF16] = {"panel-bf16", 16, 2, 2},
    [QN__PANEL_F32] = {"panel-f32", 16, 1, 4},
};

size_t qn__format_bytes(uint8_t format, int64_t rows, int64_t columns)
{
    size_t r, c, n;
    if (rows < 0 || columns < 0 || !qn__align_size((size_t)rows, formats[format].row_block, &r) ||
        !qn__align_size((size_t)columns, formats[format].column_block, &c) ||
        !qn__mul_size(r, c, &n) || !qn__mul_size(n, formats[format].element_bytes, &n))
        return 0;
    return n;
}

const char *qn__format_name(uint8_t format)
{
    return format < QN__FORMAT_COUNT ? formats[format].name : "?";
}
