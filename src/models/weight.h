/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the values of a parameter come from. Most are one tensor of elements or blocks; a quantised
 * one of Hugging Face's may be several tensors side by side (models/quantized.h): codes, scales,
 * biases or zeros. Either way its rows are read in one encoding's form (quant/encoding.h), which is
 * all that packing needs.
 *
 * Ternary weights (models/ternary.c) are read as i2_s, whose values are -1, 0 and 1; the number
 * that belongs to all of them multiplies the products, once, and so stays in the type it has.
 *
 * Or the tensor is bytes: the units of quant/layout.h as they lie in memory (`quern convert
 * --packed`). The metadata of such a file have "units", the version of the layouts, and for each of
 * its matrices under its name what it is: "q4_k 2048 8192".
 */
#ifndef QN_MODELS_WEIGHT_H
#define QN_MODELS_WEIGHT_H

#include "models/decoder.h"
#include "quant/encoding.h"
#include "quern/io.h"

typedef struct qn__weight_kind qn__weight_kind;
struct qn__quantization;

typedef struct qn__weight {
    const qn__encoding *encoding;          /* of the rows as they are read */
    const qn_tensor_info *tensor;          /* of the values, or of the codes */
    const qn_tensor_info *scales, *biases; /* beside codes; biases NULL: there are none */
    const qn_tensor_info *factor_of;       /* one number; NULL: there is none beside */
    int64_t paired_rows;                   /* see qn__parameter */
    bool packed;                           /* the tensor is units */
    uint64_t bytes;                        /* of all tensors */
    /* of ternary ones alone */
    qn__ternary ternary;        /* see qn__parameter */
    const qn__encoding *floats; /* that become ternary; NULL: none do */
    float inverse;              /* of what they are multiples of; qn__weight_factor finds it */
    /* of codes alone, columns of units, too */
    const qn__weight_kind *kind; /* NULL: values */
    int64_t columns, group_size; /* of the tensors: the encoding's group may be smaller */
    int zero_added;              /* to the file's zeros */
    const qn_tensor_info *order; /* the group of each column; NULL: they are in order */
    const int32_t
        *columns_order; /* as qn__weight_order gave it: column i is the file's i-th here */
} qn__weight;

/* Finds the tensors of a parameter and checks types and shapes. `quantization` is what config.json
 * says of it (NULL: nothing), `asker` what asks for them, in messages: "config.json". */
qn_status qn__weight_find(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                          const struct qn__quantization *quantization, const char *family,
                          const char *asker, qn_error *err);

/* The order in which columns stand in groups, where it is not the file's: *order, which the caller
 * frees, has for each column of the encoded rows that of the parameter. Else NULL. */
qn_status qn__weight_order(const qn__weight *w, const qn_tensors *file, int32_t **order,
                           qn_error *err);

/* What all products with the weight are multiplied by: 1 where it has no such number. Comes before
 * the rows: where there are floats to be made ternary, it is from all of them. */
qn_status qn__weight_factor(qn__weight *w, const qn_tensors *file, float *factor, qn_error *err);

/* Rows first .. first + n - 1, encoded, one behind the other. From several threads. */
qn_status qn__weight_read(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                          void *to, qn_error *err);

/* Whether a tensor of this name holds codes, scales, a factor or such of a known parameter; if so,
 * *stem gets the length of what it shares with that parameter's name. */
bool qn__weight_beside(const char *name, const struct qn__quantization *quantization, size_t *stem);

#endif
