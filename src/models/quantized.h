/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of quantisation: how a directory says that its matrices are codes, which tensors beside
 * each other are one matrix, and how their rows are read.
 *
 * Problem: GPTQ, AWQ, compressed-tensors and MLX have the same thing, codes with a scale and a zero
 * or bias a group of columns, in tensors of other names, shapes and orders. Approach: a method is
 * one qn__weight_kind, in a file of its own: it reads its fields of config.json, finds a matrix's
 * tensors, and brings rows of them into one form, codes as a stream of bits, scales and zeros by
 * group. What follows (other groups, columns in another order, blocks) is weight.c's, once for all.
 *
 * To add one: a file like awq.c, a line in quantized.c.
 */
#ifndef QN_MODELS_QUANTIZED_H
#define QN_MODELS_QUANTIZED_H

#include "base/json.h"
#include "models/weight.h"

enum { QN__MOST_SCHEMES = 32, QN__WHOLE_ROWS = -1 };

/* Some matrices of compressed-tensors. */
typedef struct qn__scheme {
    int bits;
    int64_t group_size; /* QN__WHOLE_ROWS: a scale a row */
    bool symmetric;
    bool bytes;   /* int-quantized: codes are signed bytes */
    bool ordered; /* columns were grouped in another order, which is in the file */
} qn__scheme;

/* What config.json says. */
typedef struct qn__quantization {
    const qn__weight_kind *kind; /* NULL: plain weights, and MLX's, whose tensors say all */
    int bits;
    int64_t group_size;
    int zero_added; /* to the zeros of the file */
    bool ordered;
    bool activations; /* it would round what is multiplied, too */
    qn__scheme scheme[QN__MOST_SCHEMES];
    int n_schemes;
} qn__quantization;

/* What asks for a matrix, and of which file. */
typedef struct qn__weight_query {
    const qn_tensors *file;
    const qn__parameter *parameter;
    const qn__quantization *quantization;
    const char *asker; /* "config.json" */
} qn__weight_query;

struct qn__weight_kind {
    const char *method; /* of quant_method; NULL: MLX, which has none */
    /* What stands in the place of "weight" in the names of a matrix's tensors, ended by NULL; the
     * first is that of the codes. */
    const char *const *parts;
    qn_status (*configure)(const qn__json_at *config, qn__quantization *out, qn_error *err);
    /* Fills *w of a matrix, but for kind and bytes, or leaves w->tensor NULL: it is not quantised.
     */
    qn_status (*find)(qn__weight *w, const qn__weight_query *query, qn_error *err);
    /* Of n rows: their codes as words, scales and zeros or biases, each row behind the last. */
    qn_status (*read)(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                      uint32_t *codes, uint8_t *scales, uint8_t *zeros, qn_error *err);
    bool across; /* the tensors have columns first: pieces of rows are strided */
};

extern const qn__weight_kind qn__gptq_kind, qn__awq_kind, qn__compressed_kind;

/* The methods with a name, ended by NULL. */
extern const qn__weight_kind *const qn__weight_kinds[];

/* Whether a quantization_config is BitNet's, which is the decoder's: it says what multiplies what
 * (qn__config_ternary). */
bool qn__is_ternary(const qn__json_at *at);

/* Reads quantization_config, wherever it stands, with what each method demands of it. */
qn_status qn__quantization_read(const qn__json_at *config, qn__quantization *out, qn_error *err);

/* ---- ternary weights: models/ternary.c ------------------------------------------------------- */

/* Finds codes or floats, as the configuration says that they are. */
qn_status qn__ternary_find(qn__weight *w, const qn__weight_query *query, const char *family,
                           qn_error *err);

/* Whether t is one number, which belongs to all values of `of`. */
qn_status qn__ternary_check(const qn_tensors *file, const qn_tensor_info *t,
                            const qn_tensor_info *of, qn_error *err);

/* n rows as i2_s. */
qn_status qn__ternary_read(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                           void *to, qn_error *err);

/* n rows of a tensor from `first` on, as they lie; the bytes behind all of them. */
qn_status qn__weight_stream(const qn_tensors *file, const qn_tensor_info *t, int64_t first,
                            int64_t n, void *rows, qn_error *err);
uint64_t qn__weight_tail(const qn_tensor_info *t);

/* ---- for the methods ------------------------------------------------------------------------- */

/* NAME.part beside the parameter NAME.weight; NULL: there is none. */
const qn_tensor_info *qn__weight_part(const qn__weight_query *query, const char *part);

/* The same, of which that type and shape is asked: columns 0: of one axis. */
qn_status qn__weight_demand(const qn__weight_query *query, const char *part, qn_dtype dtype,
                            int64_t rows, int64_t columns, const qn_tensor_info **out,
                            qn_error *err);

/* Scales, in any type of floats. */
qn_status qn__weight_demand_scales(const qn__weight_query *query, const char *part, int64_t rows,
                                   int64_t columns, const qn_tensor_info **out, qn_error *err);

/* Numbers of columns that share a scale, of K columns; how many such groups. */
int64_t qn__weight_groups(int64_t group_size, int64_t columns);

/* Chooses w->encoding from bits, w->group_size, w->columns and the scales' type: a group of more
 * columns than any encoding has is several with one scale. */
qn_status qn__weight_encode(qn__weight *w, const qn__weight_query *query, int bits, qn_error *err);

/* "bits", checked against those supported: digits. */
qn_status qn__quantization_bits(const qn__json_at *config, const char *key, const char *supported,
                                int *out, qn_error *err);

/* "group_size": -1, or what groups of 32 columns divide. */
qn_status qn__quantization_group(const qn__json_at *config, int64_t *out, qn_error *err);

/* One of the words, which are separated by spaces; absent: the first. *out is its place. */
qn_status qn__quantization_word(const qn__json_at *config, const char *key, const char *words,
                                int *out, qn_error *err);

/* Columns first_byte .. + n_bytes of every row of a matrix. */
qn_status qn__read_strip(const qn_tensors *file, const qn_tensor_info *t, uint64_t first_byte,
                         size_t n_bytes, void *to, qn_error *err);

/* A whole number up to 256 in a type of scales. */
void qn__store_zero(uint8_t *to, qn_dtype type, int zero);

/* Turns [groups, n] scales into [n, groups]. */
void qn__turn_scales(const uint8_t *from, size_t groups, size_t n, size_t size, uint8_t *to);

#endif
