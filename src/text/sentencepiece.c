/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a SentencePiece model of the BPE or Unigram type (tokenizer.model), a Protocol Buffers
 * message whose fields
 * https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto lists. The
 * scores of a Unigram model are used as they are (unigram.h). A BPE model has no merges: two
 * neighbours join when what they spell is a piece, the piece of the best score first. So a merge is
 * made of every way to cut a piece in two pieces, with the rank of its score; pieces of equal score
 * share a rank, and the leftmost pair goes first.
 *
 * Control symbols are special tokens: as in a tokenizer.json, text becomes one only if the caller
 * asks for that. User-defined symbols are matched in the text, before anything else, and are never
 * part of a merge.
 */
#include "base/utf8.h"
#include "text/protobuf.h"
#include "text/spm_model.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static qn_status fail_broken(const qn__spm_model *m, const char *message, const qn__proto *p,
                             const char *begin, qn_error *err)
{
    return qn__fail(err, QN_FORMAT, "%s: %s: broken at its byte %td", m->file, message,
                    p->broken_at - begin);
}

static qn_status read_piece(qn__spm_model *m, const char *data, size_t size, qn_error *err)
{
    if (m->n == m->capacity) {
        size_t capacity = m->capacity ? m->capacity * 2 : 1024;
        qn__spm_piece *grown = realloc(m->pieces, capacity * sizeof *grown);
        if (!grown)
            return qn__fail_memory(err, "a vocabulary");
        m->pieces = grown;
        m->capacity = capacity;
    }
    qn__spm_piece *piece = &m->pieces[m->n];
    *piece = (qn__spm_piece){.text = "", .id = (int32_t)m->n, .type = QN__SPM_NORMAL};
    qn__proto p = qn__proto_begin(data, size);
    qn__proto_field f;
    while (qn__proto_next(&p, &f)) {
        if (f.number == 1 && f.kind == QN__PROTO_BYTES) {
            piece->text = f.bytes;
            piece->n = f.size;
        } else if (f.number == 2 && f.kind == QN__PROTO_FIXED32) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&piece->score, &bits, sizeof bits);
        } else if (f.number == 3 && f.kind == QN__PROTO_VARINT) {
            piece->type = f.value > QN__SPM_BYTE ? 0 : (uint32_t)f.value;
        }
    }
    if (p.broken_at)
        return fail_broken(m, "pieces", &p, data, err);
    if (piece->n == 0 || piece->n > QN__SPM_MAX_PIECE ||
        qn__utf8_check(piece->text, piece->n) != piece->n)
        return qn__fail(err, QN_FORMAT, "%s: pieces[%zu].piece: expected 1..%d bytes of UTF-8",
                        m->file, m->n, QN__SPM_MAX_PIECE);
    if (!isfinite(piece->score))
        return qn__fail(err, QN_FORMAT, "%s: pieces[%zu].score: not a finite number", m->file,
                        m->n);
    if (piece->type == 0 || piece->type == QN__SPM_UNUSED)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: pieces[%zu].type: %s is not supported (supported: NORMAL, UNKNOWN, "
                        "CONTROL, USER_DEFINED, BYTE)",
                        m->file, m->n, piece->type ? "UNUSED" : "a number that means nothing");
    if (++m->n > QN__SPM_MAX_PIECES)
        return qn__fail(err, QN_LIMIT, "%s: pieces: more than %d", m->file, QN__SPM_MAX_PIECES);
    return QN_OK;
}

static qn_status read_trainer(qn__spm_model *m, const char *data, size_t size, qn_error *err)
{
    qn__proto p = qn__proto_begin(data, size);
    qn__proto_field f;
    while (qn__proto_next(&p, &f)) {
        if (f.kind != QN__PROTO_VARINT)
            continue;
        switch (f.number) {
        case 3: m->type = f.value; break;
        case 24: m->space_is_suffix = f.value != 0; break;
        case 35: m->byte_fallback = f.value != 0; break;
        case 41: m->bos = (int32_t)f.value; break;
        case 42: m->eos = (int32_t)f.value; break;
        default: break;
        }
    }
    return p.broken_at ? fail_broken(m, "trainer_spec", &p, data, err) : QN_OK;
}

static qn_status read_normalizer(qn__spm_model *m, const char *data, size_t size, qn_error *err)
{
    qn__proto p = qn__proto_begin(data, size);
    qn__proto_field f;
    while (qn__proto_next(&p, &f)) {
        if (f.number == 2 && f.kind == QN__PROTO_BYTES) {
            m->charsmap = f.bytes;
            m->charsmap_size = f.size;
        }
        if (f.kind != QN__PROTO_VARINT)
            continue;
        switch (f.number) {
        case 3: m->dummy_prefix = f.value != 0; break;
        case 4: m->remove_extra_spaces = f.value != 0; break;
        case 5: m->escape_spaces = f.value != 0; break;
        default: break;
        }
    }
    return p.broken_at ? fail_broken(m, "normalizer_spec", &p, data, err) : QN_OK;
}

/* Only a table of characters would change anything. */
static qn_status read_denormalizer(qn__spm_model *m, const char *data, size_t size, qn_error *err)
{
    qn__proto p = qn__proto_begin(data, size);
    qn__proto_field f;
    while (qn__proto_next(&p, &f))
        if (f.number == 2 && f.kind == QN__PROTO_BYTES && f.size > 0)
            return qn__fail(err, QN_UNSUPPORTED,
                            "%s: denormalizer_spec.precompiled_charsmap is not supported", m->file);
    return p.broken_at ? fail_broken(m, "denormalizer_spec", &p, data, err) : QN_OK;
}

static qn_status read_spm(qn__spm_model *m, const char *data, size_t size, qn_error *err)
{
    qn__proto p = qn__proto_begin(data, size);
    qn__proto_field f;
    qn_status status = QN_OK;
    while (status == QN_OK && qn__proto_next(&p, &f)) {
        if (f.kind != QN__PROTO_BYTES)
            continue;
        switch (f.number) {
        case 1: status = read_piece(m, f.bytes, f.size, err); break;
        case 2: status = read_trainer(m, f.bytes, f.size, err); break;
        case 3: status = read_normalizer(m, f.bytes, f.size, err); break;
        case 5: status = read_denormalizer(m, f.bytes, f.size, err); break;
        default: break; /* self tests, extensions */
        }
    }
    if (status == QN_OK && p.broken_at)
        status = fail_broken(m, "the model", &p, data, err);
    if (status == QN_OK && m->n == 0)
        status = qn__fail(err, QN_FORMAT, "%s: no pieces: not a SentencePiece model", m->file);
    if (status == QN_OK && m->type != QN__SPM_BPE && m->type != QN__SPM_UNIGRAM)
        status = qn__fail(
            err, QN_UNSUPPORTED,
            "%s: trainer_spec.model_type: %s is not supported (supported: BPE, UNIGRAM)", m->file,
            m->type == QN__SPM_WORD   ? "WORD"
            : m->type == QN__SPM_CHAR ? "CHAR"
                                      : "a number that means nothing");
    return status;
}

/* ---- tables --------------------------------------------------------------------------------- */

static qn_status add_piece(qn_tokenizer *t, const qn__spm_model *m, const qn__spm_piece *piece,
                           qn_error *err)
{
    switch (qn__vocab_add(&t->bpe.vocab, piece->text, piece->n, piece->id)) {
    case QN__VOCAB_OK: break;
    case QN__VOCAB_MEMORY: return qn__fail_memory(err, "a vocabulary");
    default:
        return qn__fail(err, QN_FORMAT, "%s: pieces[%d].piece stands twice", m->file,
                        (int)piece->id);
    }
    bool control = piece->type == QN__SPM_CONTROL || piece->type == QN__SPM_UNKNOWN, ok = true;
    if (control) {
        t->bpe.vocab.flags[piece->id] |= QN__TOKEN_SPECIAL | QN__TOKEN_OUTSIDE;
        ok = qn__added_add(&t->raw, piece->text, piece->n, piece->id, QN__ADDED_SPECIAL);
    } else if (piece->type == QN__SPM_UNUSED) {
        t->bpe.vocab.flags[piece->id] |= QN__TOKEN_OUTSIDE;
    } else if (piece->type == QN__SPM_USER) {
        qn__added_set *set = m->type == QN__SPM_UNIGRAM ? &t->unigram.user
                             : m->user_raw              ? &t->raw
                                                        : &t->normalized;
        ok = qn__added_add(set, piece->text, piece->n, piece->id, 0);
    }
    if (piece->type == QN__SPM_UNKNOWN && t->bpe.unk_id >= 0)
        return qn__fail(err, QN_FORMAT, "%s: pieces %d and %d are both UNKNOWN", m->file,
                        (int)t->bpe.unk_id, (int)piece->id);
    if (piece->type == QN__SPM_UNKNOWN)
        t->bpe.unk_id = piece->id;
    if (piece->type == QN__SPM_BYTE &&
        (!m->byte_fallback || qn__byte_of_token(piece->text, piece->n) < 0))
        return qn__fail(err, QN_FORMAT, "%s: pieces[%d]: a BYTE that is none, or no byte_fallback",
                        m->file, (int)piece->id);
    return ok ? QN_OK : qn__fail_memory(err, "a vocabulary");
}

static int compare_scores(const void *a, const void *b)
{
    const qn__spm_piece *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* A way to cut a piece in two, and where the halves would be in the vocabulary. */
typedef struct piece_cut {
    uint16_t left;
    uint32_t tags[2];
} piece_cut;

/* All ways; the look-ups miss the cache, so those of a piece go on side by side. */
static size_t find_cuts_of(const qn__vocab *vocab, const qn__spm_piece *piece, piece_cut *cuts)
{
    size_t n = 0;
    for (size_t left = 1; left < piece->n; left++) {
        if (((unsigned char)piece->text[left] & 0xc0) == 0x80)
            continue;
        uint32_t a = qn__vocab_seek(vocab, piece->text, left);
        uint32_t b = qn__vocab_seek(vocab, piece->text + left, piece->n - left);
        cuts[n++] = (piece_cut){(uint16_t)left, {a, b}};
    }
    for (size_t i = 0; i < n; i++)
        for (int half = 0; half < 2; half++)
            qn__vocab_seek_piece(vocab, cuts[i].tags[half]);
    return n;
}

static int32_t find_normal(const uint8_t *types, const qn__vocab *vocab, uint32_t tag,
                           const char *text, size_t n)
{
    int32_t id = qn__vocab_find_tag(vocab, tag, text, n);
    return id >= 0 && types[id] == QN__SPM_NORMAL ? id : -1;
}

static bool add_merges_of(qn__bpe *bpe, const qn__spm_piece *piece, const uint8_t *types,
                          uint32_t rank)
{
    piece_cut cuts[QN__SPM_MAX_PIECE];
    size_t n = find_cuts_of(&bpe->vocab, piece, cuts);
    for (size_t i = 0; i < n; i++) {
        size_t left = cuts[i].left;
        int32_t a = find_normal(types, &bpe->vocab, cuts[i].tags[0], piece->text, left);
        if (a < 0)
            continue;
        int32_t b =
            find_normal(types, &bpe->vocab, cuts[i].tags[1], piece->text + left, piece->n - left);
        if (b >= 0 && qn__bpe_insert_merge(bpe, a, b, rank, piece->id) != QN__MERGE_OK)
            return false;
    }
    return true;
}

/* Merges for every way to cut a piece between two characters into two others. */
static qn_status add_merges(qn_tokenizer *t, qn__spm_model *m, const uint8_t *types, qn_error *err)
{
    uint32_t rank = 0;
    qsort(m->pieces, m->n, sizeof *m->pieces, compare_scores);
    for (size_t i = 0; i < m->n; i++) {
        const qn__spm_piece *piece = &m->pieces[i];
        if (i > 0 && piece->score != m->pieces[i - 1].score)
            rank = (uint32_t)i;
        if (piece->type == QN__SPM_NORMAL && !add_merges_of(&t->bpe, piece, types, rank))
            return qn__fail_memory(err, "a table of merges");
    }
    return QN_OK;
}

/* The scores of a Unigram model. A user's symbol has one by its length, so that it is nearly always
 * chosen; what is unknown is below all pieces. */
static qn_status add_scores(qn_tokenizer *t, const qn__spm_model *m, qn_error *err)
{
    enum { UNK_PENALTY = 10 };
    float least = FLT_MAX, most = FLT_MIN;
    for (size_t i = 0; i < m->n; i++)
        if (m->pieces[i].type == QN__SPM_NORMAL) {
            least = m->pieces[i].score < least ? m->pieces[i].score : least;
            most = m->pieces[i].score > most ? m->pieces[i].score : most;
        }
    t->unigram.single = true;
    t->unigram.unk_score = (double)(least - UNK_PENALTY);
    for (size_t i = 0; i < m->n; i++) {
        const qn__spm_piece *piece = &m->pieces[i];
        bool user = piece->type == QN__SPM_USER;
        double score = user ? (double)((float)piece->n * most) - 0.1 : (double)piece->score;
        if (!qn__unigram_add(&t->unigram, piece->text, piece->n, score,
                             user || piece->type == QN__SPM_NORMAL))
            return qn__fail_memory(err, "a vocabulary");
    }
    return QN_OK;
}

static int32_t control_id(const uint8_t *types, size_t n, int64_t id)
{
    return id >= 0 && (uint64_t)id < n && types[id] == QN__SPM_CONTROL ? (int32_t)id : -1;
}

static qn_status make_tables(qn_tokenizer *t, qn__spm_model *m, qn_error *err)
{
    qn_status status = QN_OK;
    t->bpe.unk_id = -1;
    t->bpe.fuse_unk = true;
    t->bpe.byte_fallback = m->byte_fallback;
    uint8_t *types = malloc(m->n);
    if (!types)
        return qn__fail_memory(err, "a vocabulary");
    for (size_t i = 0; status == QN_OK && i < m->n; i++) {
        types[i] = (uint8_t)m->pieces[i].type;
        status = add_piece(t, m, &m->pieces[i], err);
    }
    t->bpe.vocab.n_pieces = (int32_t)m->n;
    if (status == QN_OK && t->bpe.unk_id < 0)
        status = qn__fail(err, QN_FORMAT, "%s: pieces: none is UNKNOWN", m->file);
    if (status == QN_OK) {
        t->bos = control_id(types, m->n, m->bos);
        t->eos = control_id(types, m->n, m->eos);
        status = m->type == QN__SPM_UNIGRAM ? add_scores(t, m, err) : add_merges(t, m, types, err);
    }
    free(types);
    if (status == QN_OK && !qn__bpe_finish(&t->bpe))
        status = qn__fail_memory(err, "a vocabulary");
    for (int i = 0; status == QN_OK && m->byte_fallback && i < 256; i++)
        if (t->bpe.fallback_ids[i] < 0)
            status = qn__fail(err, QN_FORMAT, "%s: byte_fallback, but there is no piece <0x%02X>",
                              m->file, (unsigned)i);
    qn__added_finish(&t->raw);
    qn__added_finish(&t->normalized);
    qn__added_finish(&t->unigram.user);
    return status;
}

/* The normalizer, and the decoder that undoes it. */
static qn_status make_steps(qn_tokenizer *t, const qn__spm_model *m, qn_error *err)
{
    t->normalizer.steps[t->normalizer.n++] = (qn__normalize_step){.kind = QN__NORMALIZE_SPM};
    t->normalizer.spm = (qn__spm_normalizer){
        .dummy_prefix = m->dummy_prefix,
        .remove_extra_spaces = m->remove_extra_spaces,
        .escape_spaces = m->escape_spaces,
        .space_is_suffix = m->space_is_suffix,
        .user = m->type == QN__SPM_UNIGRAM ? &t->unigram.user : &t->normalized,
    };
    qn__decode_step *step = &t->decoder.steps[t->decoder.n++];
    *step = (qn__decode_step){
        .kind = QN__DECODE_SPM,
        .strip_first = m->dummy_prefix || m->remove_extra_spaces,
        .strip_more = m->remove_extra_spaces,
    };
    if (!qn__text_append(&step->find, "\xe2\x96\x81", 3))
        return qn__fail_memory(err, "a decoder");
    return qn__spm_charsmap(&t->normalizer.spm, m->file, m->charsmap, m->charsmap_size, err);
}

qn_status qn__spm_build(qn_tokenizer *tokenizer, qn__spm_model *model, qn_error *err)
{
    qn_status status = make_tables(tokenizer, model, err);
    return status == QN_OK ? make_steps(tokenizer, model, err) : status;
}

qn_status qn__spm_parse(qn_tokenizer *tokenizer, const char *file, const char *data, size_t size,
                        qn_error *err)
{
    qn__spm_model m = {
        .file = file,
        .type = QN__SPM_UNIGRAM,
        .bos = 1,
        .eos = 2,
        .dummy_prefix = true,
        .remove_extra_spaces = true,
        .escape_spaces = true,
    };
    qn_status status = read_spm(&m, data, size, err);
    if (status == QN_OK)
        status = qn__spm_build(tokenizer, &m, err);
    free(m.pieces);
    return status;
}
