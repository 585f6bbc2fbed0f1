/* SPDX-License-Identifier: Apache-2.0
 *
 * Converting models: from any that qn_model_open reads to one file or directory for other programs,
 * in another type of weights.
 *
 *     qn_convert_options options = QN_INIT(qn_convert_options);
 *     options.type = "q4_k_m";
 *     if (qn_convert(device, "SmolLM2-135M", "smollm2-q4_k_m.gguf", &options, &err) != QN_OK)
 *         fprintf(stderr, "%s\n", err.message);
 */
#ifndef QUERN_CONVERT_H
#define QUERN_CONVERT_H

#include "quern/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_convert_options {
    size_t size; /* sizeof(qn_convert_options) */
    /* Called as weights are written, with their bytes in the output; returning false cancels. */
    bool (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_user;
    /* GGUF: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s
     * q5_k_m q6_k iq4_nl iq4_xs mxfp4 tq1_0 tq2_0, in either case, which are llama.cpp's recipes:
     * some tensors get another type, as there. Of models whose layers are ternary also i2_s, which
     * is bitnet.cpp's. NULL: weights stay as they are. */
    const char *type;
    /* A list of "PATTERN=TYPE": the type of the matrices whose name in the output has a match of
     * PATTERN, a POSIX extended regular expression; the first that matches counts. In an MLX
     * directory TYPE is the number of bits, or "dense". */
    const char *const *overrides;
    size_t n_overrides;
    /* Directories: "f32", "f16" or "bf16", of what is not quantised; NULL: as it is, and f16 from a
     * GGUF file. */
    const char *dtype;
    int64_t bits;       /* of MLX's affine groups: 2, 3, 4, 5, 6, 8; 0: dense */
    int64_t group_size; /* 32, 64, 128; 0: 64 */
    /* The head, and the embedding, are not quantised: they stay as they are. */
    bool keep_head;
    bool replace; /* an existing output */
    int threads;  /* that quantise; 0: the CPUs this process may use. Does not change a bit. */
    /* Directories: MLX's mode, "affine" (NULL) or "mxfp4", which has 4 bits in groups of 32. */
    const char *mode;
    /* At most so many bytes of weights in a file, but for a tensor that takes more; 0: one file.
     * Directories get model-00001-of-00003.safetensors ... and an index, OUT.gguf becomes
     * OUT-00001-of-00003.gguf ..., as in llama.cpp. */
    uint64_t shard_bytes;
    /* Directories: matrices lie in the file as the CPU has them in memory, so that loading is
     * reading. They stay as they are, GGUF's blocks, too, or become what `type` or `bits` say; no
     * other program reads them, and a later version may want them converted again. */
    bool packed;
    /* Added to the weights of their layers, all of them, each times its scale: fused. Quantised
     * weights are quantised anew, in f32 before that; ternary ones are QN_UNSUPPORTED. Borrowed. */
    const qn_adapter *adapters;
    size_t n_adapters;
} qn_convert_options;

/* Converts the model at `source` (what qn_model_open takes) into `out`: a GGUF file where the name
 * ends in .gguf, else a directory with model.safetensors, config.json and the tokenizer's files, in
 * Hugging Face's layout, or with `bits` MLX's. The output appears whole or not at all (of a split
 * GGUF file the first part comes last); what exists there already is QN_INVALID without `replace`.
 * Tensors are read and written one by one. The log of the device, which does nothing else here, has
 * warnings. options may be NULL.
 *
 * Formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md,
 * https://github.com/huggingface/safetensors#format, and for the groups
 * https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html */
QN_API qn_status qn_convert(qn_device *device, const char *source, const char *out,
                            const qn_convert_options *options, qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
