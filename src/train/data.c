/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of training data, which may be larger than memory: what stays of a line is where it lies,
 * how many tokens it has and their hash. Its text is read and encoded again for each batch, and a
 * file that has changed meanwhile is noticed by the hash. Batch i is a function of i, of the seed
 * and of the file: whoever goes on from a checkpoint needs no more than a number.
 */
#include "train/example.h"

#include "base/buffers.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/sized.h"
#include "quern/train.h"
#include "train/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 16 << 20, PIECE = 1 << 16, SEQUENCE = 2048, NAMES = 120 };

typedef struct entry {
    uint64_t offset, hash, number; /* the line's, from 1 on */
    uint32_t bytes, tokens, other; /* other: tokens of the second text, that is rejected */
} entry;

struct qn_dataset {
    qn__file file;
    qn__example_form form;
    qn_dataset_options options;
    entry *entries;
    size_t n, room;
    qn__packs packs; /* the rows of an epoch: each a text, or several */
    uint32_t *order; /* of the rows in an epoch; NULL: none is drawn */
    int64_t epoch;
    qn__example sample; /* the newest, and its line */
    qn_text line;
    qn_dataset_info info;
    char passed_over[NAMES];
};

/* ---- reading a file once --------------------------------------------------------------------- */

static void remember_key(void *user, const char *key)
{
    qn_dataset *d = user;
    size_t n = strlen(d->passed_over), k = strlen(key);
    for (const char *at = d->passed_over; (at = strstr(at, key)); at += k)
        if ((at == d->passed_over || at[-1] == ' ') && (!at[k] || at[k] == ','))
            return;
    if (n + k + 3 < sizeof d->passed_over)
        snprintf(d->passed_over + n, sizeof d->passed_over - n, "%s%s", n ? ", " : "", key);
}

static uint64_t hash_example(const qn__example *s)
{
    uint64_t h = qn__hash_bytes(s->ids.ids, s->ids.n * sizeof *s->ids.ids, s->prompt);
    return s->other.n ? qn__hash_bytes(s->other.ids, s->other.n * sizeof *s->other.ids, h) : h;
}

/* Encodes a line of the file. */
static qn_status read_entry(qn_dataset *d, const entry *e, qn_dataset *names, qn_error *err)
{
    char name[600];
    snprintf(name, sizeof name, "%.500s: line %llu", d->file.path, (unsigned long long)e->number);
    d->line.n = 0;
    if (!qn__text_reserve(&d->line, e->bytes))
        return qn__fail_memory(err, "a line");
    if (qn__file_pread(&d->file, e->offset, d->line.data, e->bytes, err) != QN_OK)
        return err->code;
    return qn__example_read(&d->form, name, d->line.data, e->bytes, names ? remember_key : NULL,
                            names, &d->sample, err);
}

static bool reserve_entry(qn_dataset *d)
{
    if (d->n < d->room)
        return true;
    size_t room = 2 * d->room + 64;
    entry *more = room < UINT32_MAX ? realloc(d->entries, room * sizeof *more) : NULL;
    if (!more)
        return false;
    d->entries = more;
    d->room = room;
    return true;
}

/* A line that can be used is counted, one that cannot is told of. */
static qn_status take_entry(qn_dataset *d, entry e, qn_error *err)
{
    qn_error wrong = {0};
    if (!reserve_entry(d))
        return qn__fail_memory(err, "texts");
    if (e.bytes > LONGEST)
        qn__fail(&wrong, QN_LIMIT, "%s: line %llu exceeds %d bytes", d->file.path,
                 (unsigned long long)e.number, LONGEST);
    else
        read_entry(d, &e, d, &wrong);
    if (wrong.code == QN_MEMORY || wrong.code == QN_IO)
        return qn__fail(err, wrong.code, "%s", wrong.message);
    if (wrong.code != QN_OK) {
        d->info.bad++;
        if (d->options.bad)
            d->options.bad(d->options.user, wrong.message);
        return QN_OK;
    }
    const qn__example *s = &d->sample;
    d->info.cut += s->cut;
    if (s->prompt >= s->ids.n || (d->form.preferences && s->prompt >= s->other.n)) {
        d->info.left_out++;
        return QN_OK;
    }
    e.tokens = (uint32_t)s->ids.n;
    e.other = (uint32_t)s->other.n;
    e.hash = hash_example(s);
    d->entries[d->n++] = e;
    return QN_OK;
}

/* [begin, end) of the file without blanks around it and a byte order mark before. */
static qn_status take_line(qn_dataset *d, uint64_t number, uint64_t begin, uint64_t end,
                           qn_error *err)
{
    char ends[3];
    if (number == 1 && end - begin >= 3) {
        if (qn__file_pread(&d->file, begin, ends, 3, err) != QN_OK)
            return err->code;
        begin += !memcmp(ends, "\xef\xbb\xbf", 3) ? 3 : 0;
    }
    for (bool blank = true; blank && begin < end; end -= blank) {
        if (qn__file_pread(&d->file, end - 1, ends, 1, err) != QN_OK)
            return err->code;
        blank = strchr(" \t\r", ends[0]) && ends[0];
    }
    uint64_t bytes = end - begin < UINT32_MAX ? end - begin : UINT32_MAX;
    return bytes ? take_entry(
                       d, (entry){.offset = begin, .number = number, .bytes = (uint32_t)bytes}, err)
                 : QN_OK;
}

static qn_status take_lines(qn_dataset *d, char *piece, qn_error *err)
{
    uint64_t begin = 0, number = 0;
    for (uint64_t at = 0; at < d->file.size;) {
        size_t n = d->file.size - at < PIECE ? (size_t)(d->file.size - at) : PIECE;
        if (qn__file_pread(&d->file, at, piece, n, err) != QN_OK)
            return err->code;
        for (const char *from = piece, *end; (end = memchr(from, '\n', n - (size_t)(from - piece)));
             from = end + 1) {
            uint64_t newline = at + (uint64_t)(end - piece);
            if (take_line(d, ++number, begin, newline, err) != QN_OK)
                return err->code;
            begin = newline + 1;
            if (d->options.cancel && atomic_load(d->options.cancel))
                return qn__fail(err, QN_CANCELLED, "cancelled");
        }
        at += n;
    }
    return begin < d->file.size ? take_line(d, number + 1, begin, d->file.size, err) : QN_OK;
}

static uint32_t longest_of(const entry *e)
{
    return e->tokens > e->other ? e->tokens : e->other;
}

static void describe_entries(qn_dataset *d)
{
    qn_dataset_info *i = &d->info;
    const uint64_t form[] = {d->form.longest, d->form.mask_prompt,
                             d->form.parse_special | (uint64_t)d->form.preferences << 1};
    i->texts = d->n;
    i->tokens = i->longest = 0;
    i->fingerprint = qn__hash_bytes(form, sizeof form, d->options.pack ? 2 : 1);
    for (size_t k = 0; k < d->n; k++) {
        i->tokens += (uint64_t)d->entries[k].tokens + d->entries[k].other;
        i->longest =
            longest_of(&d->entries[k]) > i->longest ? longest_of(&d->entries[k]) : i->longest;
        i->fingerprint =
            qn__hash_bytes(&d->entries[k].hash, sizeof d->entries[k].hash, i->fingerprint);
    }
    i->passed_over = d->passed_over;
}

/* Puts the texts into rows. */
static qn_status pack_entries(qn_dataset *d, qn_error *err)
{
    uint32_t *lengths = malloc((d->n + 1) * sizeof *lengths);
    for (size_t i = 0; lengths && i < d->n; i++)
        lengths[i] = d->entries[i].tokens;
    if (!lengths ||
        !qn__packs_make(&d->packs, lengths, d->n, d->options.pack ? d->form.longest : 0))
        qn__fail_memory(err, "texts");
    free(lengths);
    d->info.rows = d->packs.n;
    return err->code;
}

static qn_status read_entries(qn_dataset *d, qn_error *err)
{
    char *piece = malloc(PIECE);
    if (!piece)
        return qn__fail_memory(err, "texts");
    take_lines(d, piece, err);
    free(piece);
    if (err->code != QN_OK)
        return err->code;
    describe_entries(d);
    if (d->info.bad)
        return qn__fail(err, QN_INVALID, "%s: %llu of %llu lines cannot be used", d->file.path,
                        (unsigned long long)d->info.bad,
                        (unsigned long long)(d->n + d->info.left_out + d->info.bad));
    if (d->n)
        return pack_entries(d, err);
    return d->info.left_out
               ? qn__fail(err, QN_INVALID,
                          "%s: nothing is left to learn: the prompts alone fill %zu tokens",
                          d->file.path, d->form.longest)
               : qn__fail(err, QN_INVALID, "%s: there are no texts", d->file.path);
}

/* ---- opening --------------------------------------------------------------------------------- */

qn_status qn_dataset_open(qn_dataset **out, const qn_chat *chat, const char *path,
                          const qn_dataset_options *given, qn_error *err)
{
    qn_error local = {0};
    qn_dataset_options o;
    err = err ? err : &local;
    *out = NULL;
    if (qn__sized_in(&o, sizeof o, given, "qn_dataset_options", err) != QN_OK)
        return err->code;
    if (o.max_length < 0 || o.max_length == 1 || o.max_length > INT32_MAX)
        return qn__fail(err, QN_INVALID, "qn_dataset_options.max_length is %lld, out of its range",
                        (long long)o.max_length);
    if (o.pack && o.preferences)
        return qn__fail(err, QN_UNSUPPORTED, "preferences are not packed: a row is one answer");
    qn_dataset *d = calloc(1, sizeof *d);
    if (!d)
        return qn__fail_memory(err, "texts");
    d->options = o;
    d->form = (qn__example_form){.chat = chat,
                                 .longest = o.max_length ? (size_t)o.max_length : SEQUENCE,
                                 .mask_prompt = o.mask_prompt,
                                 .parse_special = o.parse_special,
                                 .preferences = o.preferences};
    d->info.size = sizeof d->info;
    d->epoch = -1;
    if (qn__file_open(&d->file, path, err) != QN_OK || read_entries(d, err) != QN_OK) {
        qn_dataset_close(d);
        return err->code;
    }
    *out = d;
    return QN_OK;
}

void qn_dataset_close(qn_dataset *d)
{
    if (!d)
        return;
    qn__file_close(&d->file);
    qn__example_free(&d->sample);
    qn_text_free(&d->line);
    free(d->entries);
    free(d->order);
    qn__packs_free(&d->packs);
    free(d);
}

qn_status qn_dataset_get_info(const qn_dataset *d, qn_dataset_info *info)
{
    return qn__sized_out(info, &d->info, sizeof d->info);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* The rows' order in an epoch (Fisher and Yates). */
static qn_status draw_order(qn_dataset *d, int64_t epoch, qn_error *err)
{
    if (d->order && d->epoch == epoch)
        return QN_OK;
    if (!d->order && !(d->order = malloc(d->packs.n * sizeof *d->order)))
        return qn__fail_memory(err, "an order of texts");
    uint64_t seed = qn__random_bits(d->options.seed, (uint64_t)epoch);
    for (size_t i = 0; i < d->packs.n; i++)
        d->order[i] = (uint32_t)i;
    for (size_t i = d->packs.n; i > 1 && !d->options.in_order; i--) {
        size_t k = (size_t)(qn__random_uniform(seed, i) * (double)i);
        uint32_t other = d->order[k];
        d->order[k] = d->order[i - 1];
        d->order[i - 1] = other;
    }
    d->epoch = epoch;
    return QN_OK;
}

int64_t qn_dataset_batches(const qn_dataset *d, int64_t rows)
{
    return rows < 1 ? 0 : ((int64_t)d->packs.n - 1) / rows + 1;
}

void qn_batch_free(qn_batch *b)
{
    free(b->tokens);
    free(b->mask);
    free(b->begins);
    *b = (qn_batch){0};
}

static bool reserve_batch(qn_batch *b, size_t n)
{
    if (n <= b->capacity)
        return true;
    int32_t *tokens = realloc(b->tokens, n * sizeof *tokens);
    b->tokens = tokens ? tokens : b->tokens;
    uint8_t *mask = realloc(b->mask, n);
    b->mask = mask ? mask : b->mask;
    free(b->begins);
    b->begins = NULL;
    b->capacity = tokens && mask ? n : b->capacity;
    return tokens && mask;
}

/* Of rows that are several texts; NULL of others. */
static bool reserve_begins(qn_batch *b, bool packed)
{
    if (!packed) {
        free(b->begins);
        b->begins = NULL;
    } else if (!b->begins) {
        b->begins = malloc(b->capacity * sizeof *b->begins);
    }
    return b->begins || !packed;
}

static void set_begins(qn_batch *b, int64_t row, int64_t from, int64_t end)
{
    for (int64_t i = from; b->begins && i < end; i++)
        b->begins[row * b->length + i] = (int32_t)from;
}

/* A text, from *at on, in row `row`. */
static void put_text(const qn_tokens *ids, size_t prompt, qn_batch *b, int64_t row, int64_t *at)
{
    size_t to = (size_t)(row * b->length + *at), first = prompt > 1 ? prompt : 1;
    memcpy(b->tokens + to, ids->ids, ids->n * sizeof *ids->ids);
    memset(b->mask + to, 0, first);
    memset(b->mask + to + first, 1, ids->n - first);
    set_begins(b, row, *at, *at + (int64_t)ids->n);
    b->counted += (int64_t)(ids->n - first);
    *at += (int64_t)ids->n;
}

/* What is behind its texts does not count. */
static void end_row(qn_batch *b, int64_t row, int64_t at)
{
    size_t end = (size_t)(row * b->length + at), left = (size_t)(b->length - at);
    memset(b->tokens + end, 0, left * sizeof *b->tokens);
    memset(b->mask + end, 0, left);
    set_begins(b, row, at, b->length);
}

/* Reads a text as it was when the file was opened. */
static qn_status read_again(qn_dataset *d, const entry *e, qn_error *err)
{
    if (read_entry(d, e, NULL, err) != QN_OK)
        return err->code;
    const qn__example *s = &d->sample;
    if (s->ids.n != e->tokens || s->other.n != e->other || hash_example(s) != e->hash)
        return qn__fail(err, QN_STATE, "%s: line %llu has changed since training began",
                        d->file.path, (unsigned long long)e->number);
    return QN_OK;
}

/* Row `row` gets the texts of a pack; of a preference the next row gets the rejected one. */
static qn_status fill_row(qn_dataset *d, size_t pack, qn_batch *b, int64_t row, qn_error *err)
{
    const qn__example *s = &d->sample;
    int64_t at = 0, other = 0;
    for (size_t i = d->packs.first[pack]; i < d->packs.first[pack + 1]; i++) {
        if (read_again(d, &d->entries[d->packs.member[i]], err) != QN_OK)
            return err->code;
        put_text(&s->ids, s->prompt, b, row, &at);
    }
    end_row(b, row, at);
    if (d->form.preferences) {
        put_text(&s->other, s->prompt, b, row + 1, &other);
        end_row(b, row + 1, other);
    }
    return QN_OK;
}

static int64_t pack_tokens(const qn_dataset *d, size_t pack)
{
    int64_t n = 0;
    for (size_t i = d->packs.first[pack]; i < d->packs.first[pack + 1]; i++)
        n += longest_of(&d->entries[d->packs.member[i]]);
    return n;
}

qn_status qn_dataset_batch(qn_dataset *d, int64_t rows, int64_t index, qn_batch *b, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    if (rows < 1 || index < 0)
        return qn__fail(err, QN_INVALID, "batch %lld of %lld rows", (long long)index,
                        (long long)rows);
    int64_t batches = qn_dataset_batches(d, rows), first = index % batches * rows;
    int64_t left = (int64_t)d->packs.n - first;
    if (draw_order(d, index / batches, err) != QN_OK)
        return err->code;
    int64_t n = left < rows ? left : rows, each = d->form.preferences ? 2 : 1;
    b->rows = each * n;
    b->length = b->counted = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t length = pack_tokens(d, d->order[first + i]);
        b->length = length > b->length ? length : b->length;
    }
    if (!reserve_batch(b, (size_t)(b->rows * b->length)) || !reserve_begins(b, d->options.pack))
        return qn__fail_memory(err, "a batch");
    for (int64_t i = 0; i < n; i++)
        if (fill_row(d, d->order[first + i], b, each * i, err) != QN_OK)
            return err->code;
    return QN_OK;
}

/* ---- validation ------------------------------------------------------------------------------ */

/* Those whose draw is among the smallest go to the other, each in the file's order. */
static void divide_entries(qn_dataset *d, qn_dataset *other, size_t n)
{
    size_t kept = 0, left = d->n;
    uint64_t seed = qn__random_bits(d->options.seed, UINT64_MAX);
    for (size_t i = 0; i < d->n; i++, left--) {
        bool goes = qn__random_uniform(seed, i) * (double)left < (double)(n - other->n);
        if (goes)
            other->entries[other->n++] = d->entries[i];
        else
            d->entries[kept++] = d->entries[i];
    }
    d->n = kept;
}

qn_status qn_dataset_split(qn_dataset *d, double part, qn_dataset **out, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    size_t n = part > 0 && part < 1 ? (size_t)(part * (double)d->n + 0.5) : 0;
    if (n < 1 || n >= d->n)
        return qn__fail(err, QN_INVALID, "%g of %zu texts: one at least is to be on each side",
                        part, d->n);
    qn_dataset *other = calloc(1, sizeof *other);
    if (!other || !(other->entries = malloc(n * sizeof *other->entries))) {
        free(other);
        return qn__fail_memory(err, "texts");
    }
    other->form = d->form;
    other->options = d->options;
    other->options.in_order = true;
    other->options.pack = false;
    other->info = (qn_dataset_info){.size = sizeof other->info};
    other->epoch = d->epoch = -1;
    if (qn__file_open(&other->file, d->file.path, err) != QN_OK) {
        qn_dataset_close(other);
        return err->code;
    }
    divide_entries(d, other, n);
    describe_entries(d);
    describe_entries(other);
    if (pack_entries(d, err) != QN_OK || pack_entries(other, err) != QN_OK) {
        qn_dataset_close(other);
        return err->code;
    }
    *out = other;
    return QN_OK;
}
