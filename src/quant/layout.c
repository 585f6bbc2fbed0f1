/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing, which knows nothing but the table of layouts.
 */
#include "quant/layout.h"

#include "base/checked.h"
#include "quant/codecs.h"
#include "quant/layout_table.h"

#include <string.h>

const qn__layout *qn__layout_of(qn__layout_id id)
{
    return id > 0 && id < QN__LAYOUT_COUNT ? &qn__layouts[id - 1] : NULL;
}

const char *qn__layout_name(qn__layout_id id)
{
    const qn__layout *l = qn__layout_of(id);
    return l ? l->encoding->name : "plain";
}

static int64_t units_along(const qn__layout *l, int64_t columns)
{
    return columns / l->columns + (columns % l->columns != 0);
}

size_t qn__layout_group_bytes(const qn__layout *l, int64_t columns)
{
    size_t bytes;
    if (columns < 0 || !qn__mul_size((size_t)units_along(l, columns), l->unit_bytes, &bytes))
        return 0;
    return bytes;
}

size_t qn__layout_bytes(qn__layout_id id, int64_t rows, int64_t columns)
{
    size_t groups, bytes;
    if (rows < 0 || !qn__align_size((size_t)rows, QN__UNIT_ROWS, &groups) ||
        !qn__mul_size(groups / QN__UNIT_ROWS, qn__layout_group_bytes(qn__layout_of(id), columns),
                      &bytes))
        return 0;
    return bytes;
}

/* ---- codes of groups: planes of bits --------------------------------------------------------- */

/* In the file the codes are one stream of bits. In a unit each 32 of them are, as far as `bits` has
 * them: a plane of the low four bits (byte j: code j, and code j + 16 in its high half), one of the
 * next two (byte j: codes j, j + 8, j + 16, j + 24), one of the next one (byte j: codes j, j + 4,
 * ...). 8 bits: as they are. What is above in a code comes first: 5 bits are four and one, 6 four
 * and two, 3 two and one. */
static void planes_from_stream(const uint8_t *from, size_t bytes, int bits, uint8_t *to)
{
    if (bits == 8) {
        memcpy(to, from, bytes);
        return;
    }
    size_t chunk = (size_t)bits * 4;
    for (size_t at = 0; at < bytes; at += chunk, from += chunk, to += chunk) {
        if (bits == 4) {
            qn__halve_nibbles(from, to);
            continue;
        }
        uint8_t code[32];
        uint32_t mask = (1u << bits) - 1, have = 0, n = 0, i = 0;
        for (size_t b = 0; b < chunk; b++) {
            have |= (uint32_t)from[b] << n;
            for (n += 8; n >= (uint32_t)bits; n -= (uint32_t)bits, have >>= bits)
                code[i++] = (uint8_t)(have & mask);
        }
        uint8_t *plane = to;
        int low = 0;
        if (bits & 4) {
            for (int j = 0; j < 16; j++)
                plane[j] = (uint8_t)((code[j] & 15) | (code[j + 16] & 15) << 4);
            plane += 16;
            low = 4;
        }
        if (bits & 2) {
            for (int j = 0; j < 8; j++)
                plane[j] =
                    (uint8_t)((code[j] >> low & 3) | (code[j + 8] >> low & 3) << 2 |
                              (code[j + 16] >> low & 3) << 4 | (code[j + 24] >> low & 3) << 6);
            plane += 8;
            low += 2;
        }
        if (bits & 1)
            for (int j = 0; j < 4; j++) {
                uint32_t byte = 0;
                for (int b = 0; b < 8; b++)
                    byte |= (uint32_t)(code[j + 4 * b] >> low & 1) << b;
                plane[j] = (uint8_t)byte;
            }
    }
}

static void stream_from_planes(const uint8_t *from, size_t bytes, int bits, uint8_t *to)
{
    if (bits == 8) {
        memcpy(to, from, bytes);
        return;
    }
    size_t chunk = (size_t)bits * 4;
    for (size_t at = 0; at < bytes; at += chunk, from += chunk, to += chunk) {
        uint32_t have = 0, n = 0;
        size_t b = 0;
        for (int i = 0; i < 32; i++) {
            const uint8_t *plane = from;
            uint32_t code = 0;
            int low = 0;
            if (bits & 4) {
                code = plane[i % 16] >> (i / 16 * 4) & 15;
                plane += 16;
                low = 4;
            }
            if (bits & 2) {
                code |= (uint32_t)(plane[i % 8] >> (i / 8 * 2) & 3) << low;
                plane += 8;
                low += 2;
            }
            if (bits & 1)
                code |= (uint32_t)(plane[i % 4] >> (i / 4) & 1) << low;
            have |= code << n;
            for (n += (uint32_t)bits; n >= 8; n -= 8, have >>= 8)
                to[b++] = (uint8_t)have;
        }
    }
}

/* ---- packing --------------------------------------------------------------------------------- */

typedef uint32_t word_row __attribute__((vector_size(16)));

/* Four words of each of four rows into their lanes: those of a row lie 16 rows apart. */
static inline void turn_words(const uint8_t *const row[4], size_t at, uint8_t *to)
{
    word_row a, b, c, d, turned[4];
    memcpy(&a, row[0] + at, 16);
    memcpy(&b, row[1] + at, 16);
    memcpy(&c, row[2] + at, 16);
    memcpy(&d, row[3] + at, 16);
    word_row ab = __builtin_shufflevector(a, b, 0, 4, 1, 5),
             cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    turned[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    turned[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    turned[2] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    turned[3] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(to + 64 * i, &turned[i], 16);
}

/* A field's words of n rows, four at most. Inline: `word` is a constant. */
static inline void turn_field(const uint8_t *const row[4], int n, size_t at, int bytes, int word,
                              uint8_t *to)
{
    int i = 0;
    for (; word == 4 && n == 4 && i + 16 <= bytes; i += 16)
        turn_words(row, at + (size_t)i, to + 16 * i);
    for (; i < bytes; i += word)
        for (int r = 0; r < n; r++)
            memcpy(to + 16 * i + r * word, row[r] + at + i, (size_t)word);
}

/* What n rows, four at most, have of a unit, into lanes from `lane` on. */
static void rows_into_unit(const qn__layout *l, const uint8_t *const row[4], int n, uint8_t *unit,
                           int lane)
{
    for (const qn__unit_field *f = l->field; f < l->field + QN__UNIT_FIELDS && f->bytes; f++)
        for (int b = 0; b < l->blocks; b++, unit += 16 * f->bytes) {
            size_t at = (size_t)b * l->encoding->block_bytes + f->offset;
            if (f->word == 4)
                turn_field(row, n, at, f->bytes, 4, unit + 4 * lane);
            else if (f->word == 2)
                turn_field(row, n, at, f->bytes, 2, unit + 2 * lane);
            else
                turn_field(row, n, at, f->bytes, 1, unit + lane);
        }
}

static void row_from_unit(const qn__layout *l, const uint8_t *unit, int lane, uint8_t *row)
{
    size_t block_bytes = l->encoding->block_bytes;
    for (const qn__unit_field *f = l->field; f < l->field + QN__UNIT_FIELDS && f->bytes; f++)
        for (int b = 0; b < l->blocks; b++) {
            uint8_t *to = row + (size_t)b * block_bytes + f->offset;
            for (int i = 0; i < f->bytes; i += f->word, unit += 16 * f->word)
                memcpy(to + i, unit + f->word * lane, f->word);
        }
}

/* A row of U columns, of which the file has `have` bytes; codes as the unit wants them. Gives where
 * it is: in the file's bytes, or in `room`. */
static const uint8_t *unit_row(const qn__layout *l, const uint8_t *from, size_t have, uint8_t *room)
{
    if (have >= l->row_bytes && !l->encoding->bits)
        return from;
    size_t n = have < l->row_bytes ? have : l->row_bytes;
    memcpy(room, from, n);
    memset(room + n, 0, l->row_bytes - n);
    if (l->encoding->bits)
        for (int b = 0; b < l->blocks; b++) {
            size_t at = (size_t)b * l->encoding->block_bytes;
            if (at < n)
                planes_from_stream(from + at, l->field[0].bytes, l->encoding->bits, room + at);
        }
    return room;
}

/* Rows whose word i is all of unit i: floats. `words` whole ones, then `rest` bytes. */
static void pack_words(uint8_t *group, const uint8_t *from, size_t row_bytes, int lane, int n,
                       size_t words, size_t rest)
{
    size_t quads = words - words % 4;
    int fours = n - n % 4;
    for (size_t i = 0; i < quads; i += 4)
        for (int r = 0; r < fours; r += 4) {
            const uint8_t *row[4] = {from + (size_t)r * row_bytes};
            for (int k = 1; k < 4; k++)
                row[k] = row[k - 1] + row_bytes;
            turn_words(row, 4 * i, group + 64 * i + 4 * (lane + r));
        }
    for (size_t i = 0; i < words; i++)
        for (int r = i < quads ? fours : 0; r < n; r++)
            memcpy(group + i * 64 + 4 * (size_t)(lane + r), from + (size_t)r * row_bytes + 4 * i,
                   4);
    for (int r = 0; rest && r < n; r++) {
        uint8_t word[4] = {0};
        memcpy(word, from + (size_t)r * row_bytes + 4 * words, rest);
        memcpy(group + words * 64 + 4 * (size_t)(lane + r), word, 4);
    }
}

/* n rows of one group from `lane` on. */
static void pack_group(const qn__layout *l, uint8_t *group, const uint8_t *from, size_t row_bytes,
                       size_t encoded, int64_t columns, int lane, int n)
{
    uint8_t room[4][1024];
    const uint8_t *row[4];
    if (l->unit_bytes == 64) {
        pack_words(group, from, row_bytes, lane, n, encoded / 4, encoded % 4);
        return;
    }
    int64_t units = units_along(l, columns);
    for (int64_t u = 0; u < units; u++, group += l->unit_bytes) {
        size_t at = (size_t)u * l->row_bytes;
        for (int r = 0, some; r < n; r += some) {
            some = n - r < 4 ? n - r : 4;
            for (int k = 0; k < some; k++)
                row[k] =
                    unit_row(l, from + (size_t)(r + k) * row_bytes + at, encoded - at, room[k]);
            rows_into_unit(l, row, some, group, lane + r);
        }
    }
}

static void clear_lanes(const qn__layout *l, uint8_t *group, int64_t columns, int lane)
{
    static const uint8_t zeros[1024], *const row[4] = {zeros, zeros, zeros, zeros};
    int64_t units = units_along(l, columns);
    for (int64_t u = 0; u < units; u++, group += l->unit_bytes)
        for (int r = lane, some; r < QN__UNIT_ROWS; r += some) {
            some = QN__UNIT_ROWS - r < 4 ? QN__UNIT_ROWS - r : 4;
            rows_into_unit(l, row, some, group, r);
        }
}

void qn__layout_pack(const qn__layout *l, void *w, int64_t rows, int64_t columns, const void *from,
                     size_t row_bytes, int64_t first, int64_t n)
{
    size_t group_bytes = qn__layout_group_bytes(l, columns),
           encoded = qn__encoding_row_bytes(l->encoding, columns);
    const uint8_t *source = from;
    for (int64_t row = first, end = first + n; row < end;) {
        int lane = (int)(row % QN__UNIT_ROWS);
        int64_t take = QN__UNIT_ROWS - lane < end - row ? QN__UNIT_ROWS - lane : end - row;
        uint8_t *group = (uint8_t *)w + (size_t)(row / QN__UNIT_ROWS) * group_bytes;
        pack_group(l, group, source, row_bytes, encoded, columns, lane, (int)take);
        row += take;
        source += (size_t)take * row_bytes;
        if (row == rows)
            clear_lanes(l, group, columns, lane + (int)take);
    }
}

void qn__layout_unpack_row(const qn__layout *l, const void *w, int64_t columns, int64_t row,
                           void *to)
{
    const uint8_t *group =
        (const uint8_t *)w + (size_t)(row / QN__UNIT_ROWS) * qn__layout_group_bytes(l, columns);
    size_t left = qn__encoding_row_bytes(l->encoding, columns);
    int lane = (int)(row % QN__UNIT_ROWS);
    uint8_t room[1024], *out = to;
    for (; left > 0; group += l->unit_bytes) {
        size_t n = left < l->row_bytes ? left : l->row_bytes;
        row_from_unit(l, group, lane, room);
        memcpy(out, room, n);
        if (l->encoding->bits)
            for (size_t at = 0; at < n; at += l->encoding->block_bytes)
                stream_from_planes(room + at, l->field[0].bytes, l->encoding->bits, out + at);
        out += n;
        left -= n;
    }
}

void qn__layout_row_values(const qn__layout *l, const void *w, int64_t columns, int64_t row,
                           float *to)
{
    const qn__encoding *e = l->encoding;
    const uint8_t *group =
        (const uint8_t *)w + (size_t)(row / QN__UNIT_ROWS) * qn__layout_group_bytes(l, columns);
    int lane = (int)(row % QN__UNIT_ROWS);
    uint8_t room[1024], codes[256];
    for (int64_t at = 0; at < columns; at += l->columns, group += l->unit_bytes) {
        int64_t n = columns - at < l->columns ? columns - at : l->columns;
        row_from_unit(l, group, lane, room);
        for (int b = 0; l->encoding->bits && b < l->blocks; b++) {
            uint8_t *block = room + (size_t)b * e->block_bytes;
            stream_from_planes(block, l->field[0].bytes, e->bits, codes);
            memcpy(block, codes, l->field[0].bytes);
        }
        e->decode(e, room, (size_t)(n / e->block_elements), to + at);
    }
}
