/* SPDX-License-Identifier: Apache-2.0
 *
 * npy: the magic, a version, a length and a Python dictionary of three literals:
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 * read by a parser that knows just that. Fortran order becomes strides.
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
 */
#include "io/npy.h"

#include "base/utf8.h"
#include "io/safetensors_dtype.h"

#include <stdio.h>
#include <stdlib.h>

enum { LONGEST_HEADER = 65536 };

static const char *const npy_names[] = {
    [QN_BOOL] = "|b1", [QN_U8] = "|u1",  [QN_U16] = "<u2", [QN_U32] = "<u4", [QN_U64] = "<u8",
    [QN_I8] = "|i1",   [QN_I16] = "<i2", [QN_I32] = "<i4", [QN_I64] = "<i8", [QN_F16] = "<f2",
    [QN_BF16] = NULL,  [QN_F32] = "<f4", [QN_F64] = "<f8"};

/* ---- the dictionary -------------------------------------------------------------------------- */

typedef struct literal {
    const char *at, *end;
    const char *where;
    qn_error *err;
} literal;

static bool literal_fail(literal *l, const char *expected)
{
    char quoted[40];
    size_t n = (size_t)(l->end - l->at);
    qn__fail(l->err, QN_FORMAT, "%s: the header has %s where %s is expected", l->where,
             n ? qn__utf8_quote(quoted, sizeof quoted, l->at, n < 12 ? n : 12) : "its end",
             expected);
    return false;
}

static char peek_char(literal *l)
{
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\n' || *l->at == '\t'))
        l->at++;
    return l->at < l->end ? *l->at : '\0';
}

static bool take_char(literal *l, char c, const char *expected)
{
    if (peek_char(l) != c)
        return literal_fail(l, expected);
    l->at++;
    return true;
}

static bool take_word(literal *l, const char *word)
{
    size_t n = strlen(word);
    peek_char(l);
    if ((size_t)(l->end - l->at) < n || memcmp(l->at, word, n) != 0)
        return false;
    l->at += n;
    return true;
}

/* 'text' or "text", without escapes. */
static bool take_quoted(literal *l, const char **text, size_t *n)
{
    char quote = peek_char(l);
    if (quote != '\'' && quote != '"')
        return literal_fail(l, "a string");
    const char *end = memchr(l->at + 1, quote, (size_t)(l->end - l->at) - 1);
    if (!end || memchr(l->at + 1, '\\', (size_t)(end - l->at) - 1))
        return literal_fail(l, "a string without escapes");
    *text = l->at + 1;
    *n = (size_t)(end - *text);
    l->at = end + 1;
    return true;
}

static bool take_descr(literal *l, qn_tensor_info *info)
{
    const char *text;
    size_t n;
    char quoted[40];
    if (peek_char(l) == '[') {
        qn__fail(l->err, QN_UNSUPPORTED, "%s: descr is a structure; one type is supported",
                 l->where);
        return false;
    }
    if (!take_quoted(l, &text, &n))
        return false;
    for (int i = 0; i < QN_DTYPE_COUNT; i++)
        if (npy_names[i] && n == 3 && !memcmp(text + 1, npy_names[i] + 1, 2) &&
            (text[0] == npy_names[i][0] || text[0] == '=' || (text[2] == '1' && text[0] != '\0'))) {
            info->dtype = (qn_dtype)i;
            return true;
        }
    qn__utf8_quote(quoted, sizeof quoted, text, n);
    if (n > 1 && text[0] == '>')
        qn__fail(l->err, QN_UNSUPPORTED, "%s: descr '%s' is big-endian; little-endian is supported",
                 l->where, quoted);
    else if (n > 1 && text[1] == 'O')
        qn__fail(l->err, QN_UNSUPPORTED,
                 "%s: descr '%s': object arrays are pickles and are not read", l->where, quoted);
    else
        qn__fail(l->err, QN_UNSUPPORTED,
                 "%s: descr '%s' is not supported (supported: bool, u1 to u8, "
                 "i1 to i8, f2, f4, f8)",
                 l->where, quoted);
    return false;
}

static bool take_dimension(literal *l, int64_t *out)
{
    int64_t v = 0;
    const char *begin = (peek_char(l), l->at);
    for (; l->at < l->end && *l->at >= '0' && *l->at <= '9'; l->at++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *l->at - '0', &v)) {
            l->at = begin;
            return literal_fail(l, "a dimension below 2^63");
        }
    *out = v;
    return l->at > begin || literal_fail(l, "a dimension");
}

static bool take_shape(literal *l, qn_tensor_info *info)
{
    if (!take_char(l, '(', "a tuple"))
        return false;
    int n = 0;
    while (peek_char(l) != ')') {
        if (n == QN_MAX_NDIM) {
            qn__fail(l->err, QN_UNSUPPORTED, "%s: more than %d dimensions", l->where, QN_MAX_NDIM);
            return false;
        }
        if (!take_dimension(l, &info->shape[n++]))
            return false;
        if (peek_char(l) != ')' && !take_char(l, ',', "a comma"))
            return false;
    }
    l->at++;
    info->ndim = n;
    return true;
}

static bool take_dictionary(literal *l, qn_tensor_info *info, bool *fortran)
{
    static const char *const fields[] = {"descr", "fortran_order", "shape"};
    unsigned seen = 0;
    if (!take_char(l, '{', "a dictionary"))
        return false;
    while (peek_char(l) != '}') {
        const char *key, *begin = l->at;
        size_t n;
        unsigned i = 0;
        if (!take_quoted(l, &key, &n) || !take_char(l, ':', "a colon"))
            return false;
        while (i < 3 && (strlen(fields[i]) != n || memcmp(fields[i], key, n) != 0))
            i++;
        if (i == 3 || seen & 1u << i) {
            l->at = begin;
            return literal_fail(l, "one each of descr, fortran_order and shape");
        }
        seen |= 1u << i;
        bool ok = i == 0 ? take_descr(l, info) : i == 2 ? take_shape(l, info) : true;
        if (i == 1) {
            *fortran = take_word(l, "True");
            ok = *fortran || take_word(l, "False") || literal_fail(l, "True or False");
        }
        if (!ok || (peek_char(l) != '}' && !take_char(l, ',', "a comma")))
            return false;
    }
    l->at++;
    peek_char(l);
    if (seen == 7 && l->at == l->end)
        return true;
    return literal_fail(l, seen == 7 ? "its end" : "descr, fortran_order and shape");
}

/* ---- the header ------------------------------------------------------------------------------ */

/* Fortran order: the first axis is the fastest. Told apart only where it differs. */
static qn_status set_fortran(qn_tensors *t, qn_tensor_info *info, qn_error *err)
{
    if (info->ndim < 2 || info->bytes == 0)
        return QN_OK;
    qn__element_order *layout = qn__arena_zalloc(&t->names, sizeof *layout);
    if (!layout)
        return qn__fail_memory(err, "a tensor's layout");
    int64_t stride = 1;
    for (int i = 0; i < info->ndim; i++) {
        layout->stride[i] = stride;
        stride *= info->shape[i];
    }
    layout->span = info->bytes;
    info->layout = layout;
    return QN_OK;
}

qn_status qn__npy_parse(qn_tensors *t, qn_tensor_info *info, const char *where, uint64_t size,
                        qn__npy_source *source, void *user, qn_error *err)
{
    unsigned char head[12];
    uint64_t prefix = 10, n;
    if (size < prefix)
        return qn__fail(err, QN_FORMAT, "%s: %llu bytes, too short for an npy header", where,
                        (unsigned long long)size);
    if (source(user, 0, 10, head, err) != QN_OK)
        return err->code;
    if (memcmp(head, "\x93NUMPY", 6) != 0)
        return qn__fail(err, QN_FORMAT, "%s: is no npy array (its magic is missing)", where);
    if (head[6] < 1 || head[6] > 3 || head[7] != 0)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: npy version %d.%d; 1.0, 2.0 and 3.0 are supported", where, head[6],
                        head[7]);
    n = head[8] | (uint64_t)head[9] << 8;
    if (head[6] > 1) {
        prefix = 12;
        if (size < prefix)
            return qn__fail(err, QN_FORMAT, "%s: too short for an npy header", where);
        if (source(user, 10, 2, head + 10, err) != QN_OK)
            return err->code;
        n |= (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
    }
    if (n > LONGEST_HEADER || n > size - prefix)
        return qn__fail(err, n > LONGEST_HEADER ? QN_LIMIT : QN_FORMAT,
                        "%s: header length %llu, expected at most %llu", where,
                        (unsigned long long)n,
                        (unsigned long long)(n > LONGEST_HEADER ? LONGEST_HEADER : size - prefix));
    char *text = malloc((size_t)n + 1);
    if (!text)
        return qn__fail_memory(err, "an npy header");
    bool fortran = false;
    literal l = {text, text + n, where, err};
    qn_status status = source(user, prefix, (size_t)n, text, err);
    if (status == QN_OK && !take_dictionary(&l, info, &fortran))
        status = err->code;
    free(text);
    if (status != QN_OK)
        return status;
    if (!qn__tensor_bytes(info->dtype, info->ndim, info->shape, &info->bytes))
        return qn__fail(err, QN_FORMAT, "%s: the shape's product overflows 64 bits", where);
    info->offset = prefix + n;
    if (info->bytes != size - info->offset)
        return qn__fail(err, QN_FORMAT, "%s: the shape needs %llu bytes, %llu are there", where,
                        (unsigned long long)info->bytes, (unsigned long long)(size - info->offset));
    return fortran ? set_fortran(t, info, err) : QN_OK;
}

size_t qn__npy_format(char out[QN__NPY_HEADER], qn_dtype dtype, int ndim, const int64_t *shape)
{
    if (!npy_names[dtype])
        return 0;
    int n = snprintf(out, QN__NPY_HEADER,
                     "%c%s%c%c..{'descr': '%s', 'fortran_order': False, "
                     "'shape': (",
                     0x93, "NUMPY", 1, 0, npy_names[dtype]);
    for (int i = 0; i < ndim; i++)
        n += snprintf(out + n, QN__NPY_HEADER - (size_t)n, "%lld%s", (long long)shape[i],
                      ndim == 1 || i + 1 < ndim ? ", " : "");
    n += snprintf(out + n, QN__NPY_HEADER - (size_t)n, "), }");
    while ((n + 1) % 64)
        out[n++] = ' ';
    out[n++] = '\n';
    out[8] = (char)((n - 10) & 255);
    out[9] = (char)((n - 10) >> 8);
    return (size_t)n;
}

/* ---- a file of its own ----------------------------------------------------------------------- */

static qn_status read_npy(void *user, uint64_t offset, size_t n, void *dst, qn_error *err)
{
    return qn__file_pread(user, offset, dst, n, err);
}

static qn_status load_npy(qn_tensors *t, uint32_t i, qn_error *err)
{
    qn__file *f = &t->files[i].file;
    const char *slash = strrchr(f->path, '/'), *name = slash ? slash + 1 : f->path;
    size_t n = strlen(name);
    if (n > 4 && !strcmp(name + n - 4, ".npy"))
        n -= 4;
    qn_tensor_info *info = qn__tensors_add(t);
    char *copy = info ? qn__arena_strndup(&t->names, name, n) : NULL;
    if (!copy)
        return qn__fail_memory(err, "a tensor table");
    info->name = copy;
    info->file = i;
    if (qn__npy_parse(t, info, f->path, f->size, read_npy, f, err) != QN_OK)
        return err->code;
    t->n_tensors++;
    return QN_OK;
}

const qn__file_kind qn__npy_kind = {.load = load_npy};
