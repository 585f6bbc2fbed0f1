/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodings: how a file writes the values of a weight's rows.
 *
 * Problem: there are dozens of ways, and everything that reads, writes, converts or packs weights
 * needs them. Approach: a row is a sequence of blocks of equal size, and each block decodes alone;
 * one row of the table in encoding.c says how large a block is and how it decodes and encodes. A
 * file that keeps codes, scales and biases in separate tensors is brought into this form as it is
 * read: codes, then scale, then bias of one group are one block.
 *
 * How a device lays the same blocks out in memory is another matter: quant/layout.h.
 *
 * To add one: a row below, a line in codecs.h, its decoder and encoder (imitate mxfp4.c), and
 * blocks of another maker in tests/golden/make_encodings.py.
 */
#ifndef QN_QUANT_ENCODING_H
#define QN_QUANT_ENCODING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(id, name, GGUF's number of the type, elements of a block, its bytes). Names are GGUF's, in
 * lower case. I2_S: the codes alone, and so are its values; bitnet.cpp keeps one f32 scale behind
 * all rows, in QN__I2_S_TAIL bytes. */
#define QN__BLOCK_ENCODINGS(X)                                                                     \
    X(F32, "f32", 0, 1, 4)                                                                         \
    X(F16, "f16", 1, 1, 2)                                                                         \
    X(BF16, "bf16", 30, 1, 2)                                                                      \
    X(Q4_0, "q4_0", 2, 32, 18)                                                                     \
    X(Q4_1, "q4_1", 3, 32, 20)                                                                     \
    X(Q5_0, "q5_0", 6, 32, 22)                                                                     \
    X(Q5_1, "q5_1", 7, 32, 24)                                                                     \
    X(Q8_0, "q8_0", 8, 32, 34)                                                                     \
    X(Q2_K, "q2_k", 10, 256, 84)                                                                   \
    X(Q3_K, "q3_k", 11, 256, 110)                                                                  \
    X(Q4_K, "q4_k", 12, 256, 144)                                                                  \
    X(Q5_K, "q5_k", 13, 256, 176)                                                                  \
    X(Q6_K, "q6_k", 14, 256, 210)                                                                  \
    X(IQ4_NL, "iq4_nl", 20, 32, 18)                                                                \
    X(IQ4_XS, "iq4_xs", 23, 256, 136)                                                              \
    X(TQ1_0, "tq1_0", 34, 256, 54)                                                                 \
    X(TQ2_0, "tq2_0", 35, 256, 66)                                                                 \
    X(MXFP4, "mxfp4", 39, 32, 17)                                                                  \
    X(I2_S, "i2_s", 36, 128, 32)

/* MLX's affine groups: X(bits, group), each with scales and biases in f32, f16 and bf16. */
#define QN__AFFINE_WIDTHS(X)                                                                       \
    X(2, 32)                                                                                       \
    X(2, 64)                                                                                       \
    X(2, 128)                                                                                      \
    X(3, 32)                                                                                       \
    X(3, 64)                                                                                       \
    X(3, 128)                                                                                      \
    X(4, 32)                                                                                       \
    X(4, 64)                                                                                       \
    X(4, 128) X(5, 32) X(5, 64) X(5, 128) X(6, 32) X(6, 64) X(6, 128) X(8, 32) X(8, 64) X(8, 128)

/* Groups with a zero point, as GPTQ, AWQ and compressed-tensors have them: value = scale * (code -
 * zero). X(bits, group), each with scales and zeros in f32, f16 and bf16: a zero is a whole number
 * up to 256, which all three hold, while the bias of an affine group would be rounded. */
#define QN__ZEROED_WIDTHS(X)                                                                       \
    X(2, 32)                                                                                       \
    X(2, 64)                                                                                       \
    X(2, 128)                                                                                      \
    X(3, 32) X(3, 64) X(3, 128) X(4, 32) X(4, 64) X(4, 128) X(8, 32) X(8, 64) X(8, 128)

typedef enum qn__encoding_id {
#define QN__ENCODING_ENUM(id, name, ggml, elements, bytes) QN__##id,
    QN__BLOCK_ENCODINGS(QN__ENCODING_ENUM)
#undef QN__ENCODING_ENUM
#define QN__ENCODING_ENUM(bits, group)                                                             \
    QN__AFFINE##bits##_G##group##_F32, QN__AFFINE##bits##_G##group##_F16,                          \
        QN__AFFINE##bits##_G##group##_BF16,
        QN__AFFINE_WIDTHS(QN__ENCODING_ENUM)
#undef QN__ENCODING_ENUM
#define QN__ENCODING_ENUM(bits, group)                                                             \
    QN__ZEROED##bits##_G##group##_F32, QN__ZEROED##bits##_G##group##_F16,                          \
        QN__ZEROED##bits##_G##group##_BF16,
            QN__ZEROED_WIDTHS(QN__ENCODING_ENUM)
#undef QN__ENCODING_ENUM
                QN__ENCODING_COUNT
} qn__encoding_id;

enum { QN__I2_S_TAIL = 32 };

typedef struct qn__encoding qn__encoding;

/* n blocks, one after the other; blocks need no alignment. */
typedef void qn__decode_fn(const qn__encoding *e, const void *blocks, size_t n, float *values);

/* The same back. importance: NULL, or a weight for the error of each of a row's values, n blocks
 * long; encodings that are another library's bits (affine, q8_0, ternary) and
 * zeroed ones do without. values are
 * finite. */
typedef void qn__encode_fn(const qn__encoding *e, const float *values, const float *importance,
                           size_t n, void *blocks);

struct qn__encoding {
    const char *name;  /* "q4_0", "affine4-g64-bf16" */
    int32_t ggml_type; /* GGUF's number of it; -1: it has none */
    uint16_t block_elements, block_bytes;
    /* affine and zeroed alone: bits of a code, values of a group, type of scale and bias or zero */
    uint8_t bits, group;
    uint8_t scale; /* QN__F32, QN__F16 or QN__BF16 */
    bool zeroed;
    qn__decode_fn *decode;
    qn__encode_fn *encode;
};

extern const qn__encoding qn__encodings[QN__ENCODING_COUNT];

/* -1: there is none of that name, or number. */
int qn__encoding_named(const char *name);
int qn__encoding_of_ggml(int64_t type);

/* QN__AFFINE..., QN__ZEROED...; -1: no such width, group or type. */
int qn__encoding_affine(int bits, int group, qn__encoding_id scale);
int qn__encoding_zeroed(int bits, int group, qn__encoding_id scale);

/* The bytes of one row; 0 when columns are no whole blocks, or the product wraps. */
size_t qn__encoding_row_bytes(const qn__encoding *e, int64_t columns);

/* Blocks of `groups` groups from codes in words, scales and biases (or zeros) that lie apart: of an
 * affine or zeroed encoding, or of mxfp4, whose codes stand as neighbours there and which has no
 * biases (NULL). */
void qn__encoding_zip(const qn__encoding *e, size_t groups, const void *codes, const void *scales,
                      const void *biases, void *blocks);

/* Blocks of i2_s from one code a byte, which lies `shift` bits up in it: as transformers packs
 * ternary rows, four of them in one, a quarter of all rows apart. */
void qn__encoding_pick(const uint8_t *codes, int shift, size_t blocks, void *to);

/* The other way: the words of codes, the scale and the bias or zero of one block. */
void qn__encoding_unzip(const qn__encoding *e, const void *block, void *codes, void *scale,
                        void *bias);

/* Their bytes: of the codes, and of each of the others; *bias is 0 where there is none. */
void qn__encoding_parts(const qn__encoding *e, size_t *codes, size_t *scale, size_t *bias);

/* Mxfp4 as mx.quantize writes it (mode "mxfp4") of values in f32 or bf16, and of values in f16:
 * another choice of the scale than GGUF's, which is the encoding's own. Of groups below 2^-125 MLX
 * writes scales that wrap around; these are the least there is. */
qn__encode_fn qn__encode_mxfp4_as_mlx, qn__encode_mxfp4_as_mlx_f16;

#endif
