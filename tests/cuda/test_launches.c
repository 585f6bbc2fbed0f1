/* SPDX-License-Identifier: Apache-2.0
 *
 * What a layer's step is launched as, without a GPU: the library gets a driver that does nothing
 * (no_driver.c). Launches that do a part of what follows them leave fewer. Exits with 77 where
 * there is a real driver.
 */
#include "quern/model.h"

#include "no_driver.h"
#include "cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_failed;

/* Of a model: the launches of its second layer, which has another one before and behind it; and
 * with what a step begins and ends, NULL: that is not looked at. */
typedef struct expected {
    const char *name, *config, *type;
    int batch;
    const char *layer, *begin, *end;
    int arch, shared;          /* of the GPU; 0: as they are */
    int behind;                /* positions that the sequence has before */
    const char *keys, *values; /* their types; NULL: what the model wants */
} expected;

#define SHAPE(family, hidden, ffn, heads, kv, dim)                                                 \
    SHAPE_IN("bfloat16", family, hidden, ffn, heads, kv, dim)
#define SHAPE_IN(dtype, family, hidden, ffn, heads, kv, dim)                                       \
    "{\"model_type\":\"" family "\",\"hidden_size\":" #hidden ",\"intermediate_size\":" #ffn       \
    ",\"num_hidden_layers\":3,\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv     \
    ",\"head_dim\":" #dim ",\"vocab_size\":512,\"max_position_embeddings\":8192,"                  \
    "\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true,\"torch_dtype\":\"" dtype "\","            \
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"query_pre_attn_scalar\":256,"                   \
    "\"sliding_window\":512,\"hidden_act\":\"silu\"}"

#define BITNET                                                                                     \
    "{\"model_type\":\"bitnet\",\"hidden_size\":512,\"intermediate_size\":1024,"                   \
    "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":512,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"                   \
    "\"tie_word_embeddings\":true,\"hidden_act\":\"relu2\",\"quantization_config\":{"              \
    "\"quant_method\":\"bitnet\",\"linear_class\":\"autobitlinear\"}}"

/* As it is, but for its vocabulary and its depth: where values lie decides what launches join. */
#define BITNET_2B                                                                                  \
    "{\"model_type\":\"bitnet\",\"hidden_size\":2560,\"intermediate_size\":6912,"                  \
    "\"num_hidden_layers\":3,\"num_attention_heads\":20,\"num_key_value_heads\":5,"                \
    "\"vocab_size\":512,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"                   \
    "\"tie_word_embeddings\":true,\"hidden_act\":\"relu2\",\"quantization_config\":{"              \
    "\"quant_method\":\"bitnet\",\"linear_class\":\"autobitlinear\"}}"

static const expected all[] = {
    {"llama, one row", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 1,
     "linear_8_rounded 48 64\nattend_near_64_of_8 16 256\n"
     "linear_8_rounded 32 64\nrms_norm_few_of_1 1 256\nlinear_8_rounded 128 64\nchain 1 256\n"
     "linear_8_rounded 32 128\n"
     "rms_norm_few_of_1 1 256\n",
     "take_values 1 256\nlinear_8_rounded 48 64\n", "\nsample 128 1024\n"},
    {"llama, one row of long layers", SHAPE("llama", 4096, 4096, 32, 8, 128), "bf16", 1,
     "stream_1 256 288\nattend_near_128_of_8 64 256\nstream_1 128 288\nrms_norm_few_of_4 1 256\n"
     "stream_1_pair 128 288\nstream_1 128 288\nrms_norm_few_of_4 1 256\n"},
    /* a row of so many columns has no room beside the stages of a weight */
    {"llama, one row of very many columns", SHAPE("llama", 256, 131072, 4, 1, 64), "bf16", 1,
     "linear_8_rounded 16 32\nrms_norm_few_of_1 1 256\nstream_1_pair 131 288\nstream_8 16 288\n"
     "rms_norm_few_of_1 1 256\n"},
    {"llama, one row far behind", SHAPE("llama", 2048, 1024, 32, 8, 64), "bf16", 1,
     "stream_1 128 288\nattend_far_64_of_9 72 352\nlinear_8_rounded 128 256\n"
     "rms_norm_few_of_2 1 256\nlinear_8_rounded 64 256\nlinear_8_rounded 128 128\n"
     "rms_norm_few_of_2 1 256\n",
     .behind = 5000},
    {"llama, one row over f16", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 1,
     "linear_8_rounded 48 64\nattend_near_64_of_8_f16 16 256\nlinear_8_rounded 32 64\n",
     .keys = "f16", .values = "f16"},
    {"llama in f16, one row", SHAPE("llama", 512, 1024, 8, 2, 64), "f16", 1,
     "linear_8_rounded_f16 48 64\nattend_near_64_of_8 16 256\n"
     "linear_8_rounded_f16 32 64\nrms_norm_few_of_1 1 256\nlinear_8_rounded_f16 128 64\n"
     "chain 1 256\nlinear_8_rounded_f16 32 128\nrms_norm_few_of_1 1 256\n",
     "take_values 1 256\nlinear_8_rounded_f16 48 64\n", "\nsample 128 1024\n"},
    {"llama of a checkpoint in f16", SHAPE_IN("float16", "llama", 512, 1024, 8, 2, 64), "f16", 1,
     "linear_8_rounded_f16 48 64\nattend_near_64_of_8_f16 16 256\nlinear_8_rounded_f16 32 64\n"},
    {"llama in f16, one row of long layers", SHAPE("llama", 4096, 4096, 32, 8, 128), "f16", 1,
     "stream_1_f16 256 288\nattend_near_128_of_8 64 256\nstream_1_f16 128 288\n"
     "rms_norm_few_of_4 1 256\nstream_1_pair_f16 128 288\nstream_1_f16 128 288\n"
     "rms_norm_few_of_4 1 256\n"},
    {"llama in f16, 20 rows", SHAPE("llama", 512, 1024, 8, 2, 64), "f16", 20,
     "stream_32_f16 48 288\nturn_and_write 28 256\nattend_few_64_of_2 80 256\n"
     "stream_32_f16 32 288\nrms_norm_few_of_1 20 256\nstream_32_pair_f16 64 288\n"
     "stream_32_f16 32 288\nrms_norm_few_of_1 20 256\n",
     "take_values 20 256\nstream_32_f16 48 288\n", "\nsample 120 1024\n"},
    {"llama, one row far behind over f16", SHAPE("llama", 2048, 1024, 32, 8, 64), "bf16", 1,
     "stream_1 128 288\nattend_far_64_of_9_f16 72 352\nlinear_8_rounded 128 256\n", .behind = 5000,
     .keys = "f16", .values = "f16"},
    {"llama, 200 rows over f16", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 200,
     "turn_and_write 45 256\nattend_one_64_f16 400 128\nsplit_192_pair 12 384\n", .keys = "f16",
     .values = "f16"},
    {"llama of small heads, one row over f16", SHAPE("llama", 512, 1024, 8, 2, 32), "bf16", 1,
     "turn_and_write 3 256\nattend_f16 32 128\nattend_join 16 128\n", .keys = "f16",
     .values = "f16"},
    {"llama, one row over f16 and q8_0", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 1,
     "linear_8_rounded 48 64\nattend_step_f16_q8_0_64_of_8 16 256\nlinear_8_rounded 32 64\n",
     .keys = "f16", .values = "q8_0"},
    {"qwen3, one row far behind over bf16 and q8_0", SHAPE("qwen3", 2048, 1024, 16, 8, 128), "bf16",
     1, "stream_1 128 288\nattend_far_step_bf16_q8_0_128_of_9 72 352\nlinear_8_rounded 128 256\n",
     .behind = 5000, .keys = "bf16", .values = "q8_0"},
    {"gemma3 over f16 and q8_0", SHAPE("gemma3_text", 1152, 6912, 4, 1, 256), "affine4-g64-bf16", 1,
     "normed_1_affine4_g64_bf16 96 224\nattend_step_f16_q8_0_256_of_8 8 256\n"
     "normed_1_affine4_g64_bf16 72 192\n",
     .keys = "f16", .values = "q8_0"},
    {"llama, 20 rows over f16 and q8_0", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 20,
     "turn_and_write 25 256\nwrite_blocks_1 5 256\nattend_f16_q8_0_64_of_2 80 256\n", .keys = "f16",
     .values = "q8_0"},
    {"llama, one row over bf16 and f16", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 1,
     "unpack_pages 64 256\nattend_f32 32 128\nattend_join 32 128\n", .keys = "bf16",
     .values = "f16"},
    {"llama, one row over iq4_nl", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 1,
     "unpack_pages 64 256\nattend_few_64_of_8 16 256\n", .keys = "iq4_nl", .values = "iq4_nl"},
    {"llama, 20 rows", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 20,
     "stream_32 48 288\nturn_and_write 28 256\nattend_few_64_of_2 80 256\n"
     "stream_32 32 288\nrms_norm_few_of_1 20 256\nstream_32_pair 64 288\nstream_32 32 288\n"
     "rms_norm_few_of_1 20 256\n",
     "take_values 20 256\nstream_32 48 288\n", "\nsample 120 1024\n"},
    {"gemma3, one row", SHAPE("gemma3_text", 1152, 6912, 4, 1, 256), "affine4-g64-bf16", 1,
     "normed_1_affine4_g64_bf16 96 224\nattend_near_256_of_9 9 256\n"
     "normed_1_affine4_g64_bf16 72 192\nnormed_1_affine4_g64_bf16 432 224\n"
     "normed_1_affine4_g64_bf16 72 512\n",
     "take_affine4_g64_bf16 1 256\nbytes_1_affine4_g64_bf16 96 224\n"},
    {"llama, eight heads of a key head far behind", SHAPE("llama", 512, 512, 64, 8, 128), "bf16", 1,
     "linear_8_rounded 640 64\nattend_far_128_of_8 64 352\nlinear_8_rounded 32 512\n"
     "rms_norm_few_of_1 1 256\nlinear_8_rounded 64 64\nchain 1 256\nlinear_8_rounded 32 64\n"
     "rms_norm_few_of_1 1 256\n",
     .behind = 4000},
    /* attention makes norms of heads, but of heads of 64; its result lies elsewhere than planned */
    {"qwen3-4b, one row", SHAPE("qwen3", 2560, 9728, 32, 8, 128), "q4_k", 1,
     "bytes_1_q4_k 264 384\nattend_near_128_of_8 64 256\nbytes_1_q4_k 132 576\n"
     "rms_norm_few_of_3 1 256\nbytes_1_q4_k 264 384\nbytes_1_q4_k 132 480\n"
     "rms_norm_few_of_3 1 256\n"},
    /* of a pair that puts sums of squares or makes norms each block has all columns */
    {"gemma3 of long rows", SHAPE("gemma3_text", 4096, 16384, 16, 8, 256), "affine4-g64-bf16", 1,
     "normed_1_affine4_g64_bf16 132 576\nnormed_1_affine4_g64_bf16 132 576\n"
     "normed_1_affine4_g64_bf16 132 576\nnormed_1_affine4_g64_bf16 132 576\n"
     "attend_near_256_of_9 72 256\n"},
    /* ... but where these have room in a pair alone */
    {"gemma3 of very long rows", SHAPE("gemma3_text", 128, 98304, 1, 1, 256), "affine4-g64-bf16", 1,
     "normed_1_affine4_g64_bf16 1320 96\npaired_1_affine4_g64_bf16 16 320\n"
     "rms_norm_few_added_of_1 1 256\n"},
    /* pairs of blocks share the columns of a long row */
    {"llama, one row of long layers in units", SHAPE("llama", 4096, 14336, 32, 8, 128),
     "affine4-g64-bf16", 1,
     "paired_1_affine4_g64_bf16 264 320\nattend_near_128_of_8 64 256\n"
     "paired_1_affine4_g64_bf16 264 320\nrms_norm_few_of_4 1 256\n"
     "paired_1_affine4_g64_bf16 264 320\npaired_1_affine4_g64_bf16 132 512\n"
     "rms_norm_few_of_4 1 256\n"},
    {"qwen3, one row of small heads", SHAPE("qwen3", 512, 1024, 8, 2, 64), "bf16", 1,
     "linear_8_rounded 48 64\nrms_norm_pair 8 256\nattend_near_64_of_8 16 256\n"
     "linear_8_rounded 32 64\nrms_norm_few_of_1 1 256\nlinear_8_rounded 128 64\nchain 1 256\n"
     "linear_8_rounded 32 128\nrms_norm_few_of_1 1 256\n"},
    {"qwen3, one row far behind", SHAPE("qwen3", 2048, 1024, 16, 8, 128), "bf16", 1,
     "stream_1 128 288\nattend_far_128_of_9 72 352\nlinear_8_rounded 128 256\n"
     "rms_norm_few_of_2 1 256\nlinear_8_rounded 64 256\nlinear_8_rounded 128 128\n"
     "rms_norm_few_of_2 1 256\n",
     .behind = 5000},
    {"llama, 200 rows", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 200,
     "split_192_pair 20 384\nturn_and_write 45 256\nattend_one_64 400 128\n"
     "split_192_pair 12 384\nrms_norm_short 200 256\nsplit_192_pair 44 384\n"
     "split_192_pair 12 384\nrms_norm_short 200 256\n"},
    {"llama, 300 rows", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 300,
     "deep_128 18 384\nturn_and_write 67 256\nattend_one_64 600 128\n"
     "deep_128 12 384\nrms_norm_short 300 256\ndeep_128 48 384\ndeep_128 12 384\n"
     "rms_norm_short 300 256\n"},
    {"llama, 256 rows in units", SHAPE("llama", 512, 1024, 8, 2, 64), "q4_k", 256,
     "split_2_q4_k 24 640\nturn_and_write 56 256\nattend_one_64 512 128\n"
     "split_2_q4_k 16 640\nrms_norm_short 256 256\nsplit_2_q4_k 64 640\n"
     "split_4_q4_k 32 640\nrms_norm_short 256 256\n",
     "take_q4_k 256 256\nsplit_2_q4_k 24 640\n", "\nsample 256 1024\n"},
    {"llama, 24 rows in units", SHAPE("llama", 512, 1024, 8, 2, 64), "q4_k", 24,
     "few_32_q4_k 96 544 of 2\nturn_and_write 33 256\nattend_few_64_of_2 96 256\n"
     "few_32_q4_k 64 544 of 2\nrms_norm_few_of_1 24 256\nfew_32_q4_k 128 544 of 2\n"
     "few_32_q4_k 64 544 of 4\nrms_norm_few_of_1 24 256\n",
     "take_q4_k 24 256\nfew_32_q4_k 96 544 of 2\n", "\nfew_32_q4_k 64 544 of 2\nsample 120 1024\n"},
    {"llama, 300 rows in units", SHAPE("llama", 512, 1024, 8, 2, 64), "q4_k", 300,

     "unpack_q4_k 32 256\nunpack_q4_k 8 256\nunpack_q4_k 8 256\ndeep_128 18 384\n"
     "turn_and_write 67 256\nattend_one_64 600 128\nunpack_q4_k 32 256\ndeep_128 12 384\n"
     "rms_norm_short 300 256\nunpack_q4_k 64 256\nunpack_q4_k 64 256\ndeep_128 48 384\n"
     "unpack_q4_k 64 256\ndeep_128 12 384\nrms_norm_short 300 256\n",
     "take_q4_k 300 256\nunpack_q4_k 32 256\n", "\nsample 300 1024\n"},
    {"bitnet, one row", BITNET, "i2_s", 1,
     "ternary_1_of_1 48 256\nattend_near_64_of_8 16 256\nternary_1_of_1 32 256\n"
     "ternary_1_of_1 64 256\nternary_1_of_1 32 256\n"},
    {"bitnet-2b, one row", BITNET_2B, "i2_s", 1,
     "ternary_1_of_3 132 256\nattend_near_128_of_8 40 256\nternary_1_of_3 132 256\n"
     "ternary_1_of_3 132 256\nternary_1_of_7 132 256\nternary_1_of_3 132 256\n"},
    {"bitnet, 20 rows", BITNET, "i2_s", 20,
     "ternary_wide_64_by_32 12 384\nturn_and_write 28 256\nattend_few_64_of_2 80 256\n"
     "rms_norm_short_bytes 20 256\nternary_wide_64_by_32 8 384\nrms_norm_short_bytes 20 256\n"
     "ternary_wide_128_by_32 16 384\nrms_norm_short_bytes 20 256\n"
     "ternary_wide_64_by_32 8 384\n"},
    {"bitnet-2b, 200 rows", BITNET_2B, "i2_s", 200,
     "ternary_wide_128_by_96 90 384\nturn_and_write 251 256\nattend_one_128 1000 128\n"
     "rms_norm_many_short_bytes 200 256\nternary_wide_128_by_96 60 384\nrms_norm_many_short_bytes "
     "200 256\n"
     "ternary_wide_256_by_128 108 384\nrms_norm_many_bytes 200 256\nternary_wide_128_by_96 60 384\n"
     "rms_norm_many_short_bytes 200 256\n",
     "take_i2_s 200 256\nrow_bytes 200 256\nternary_wide_128_by_96 90 384\n"},
    {"llama in affine4, 2 rows", SHAPE("llama", 4096, 12288, 32, 8, 128), "affine4-g64-bf16", 2,
     "bytes_4_affine4_g64_bf16 132 576\nturn_and_write 22 256\nattend_few_128_of_8 128 256\n"
     "bytes_4_affine4_g64_bf16 132 576\nrms_norm_few_of_4 2 256\nbytes_4_affine4_g64_bf16 132 576\n"
     "bytes_4_affine4_g64_bf16 132 576\nrms_norm_few_of_4 2 256\n"},
    {"llama in affine4, 8 rows", SHAPE("llama", 4096, 12288, 32, 8, 128), "affine4-g64-bf16", 8,
     "bytes_8_affine4_g64_bf16 132 672\nturn_and_write 88 256\nattend_few_128_of_2 128 256\n"
     "row_bytes 32 256\nbytes_8_affine4_g64_bf16 132 672\nrms_norm_few_bytes_of_4 8 256\n"
     "bytes_8_affine4_g64_bf16 132 672\nrow_bytes 96 256\nbytes_8_affine4_g64_bf16 132 672\n"
     "rms_norm_few_bytes_of_4 8 256\n",
     "take_affine4_g64_bf16 8 256\nrow_bytes 32 256\nbytes_8_affine4_g64_bf16 132 672\n"},
    {"llama in affine4, 7 short rows", SHAPE("llama", 512, 1024, 8, 2, 64), "affine4-g64-bf16", 7,
     "bytes_8_affine4_g64_bf16 48 224\nturn_and_write 10 256\nattend_few_64_of_8 112 256\n"
     "bytes_8_affine4_g64_bf16 32 224\nrms_norm_few_of_1 7 256\nbytes_8_affine4_g64_bf16 64 224\n"
     "bytes_8_affine4_g64_bf16 32 288\nrms_norm_few_of_1 7 256\n"},
    {"llama of a layout without kernels of its own", SHAPE("llama", 512, 1024, 8, 2, 64), "q3_k", 1,
     "bytes_8_any_16 48 64\nattend_near_64_of_8 16 256\n"
     "bytes_8_any_16 32 64\nrms_norm_few_of_1 1 256\nbytes_8_any_16 64 64\nbytes_8_any_16 32 128\n"
     "rms_norm_few_of_1 1 256\n"},
    {"llama far behind in blocks", SHAPE("llama", 2048, 1024, 32, 8, 64), "bf16", 1,
     "stream_1 128 288\nattend_far_step_q8_0_q8_0_64_of_9 72 544\n"
     "linear_8_rounded 128 256\n",
     .behind = 2000, .keys = "q8_0", .values = "q8_0"},
    {"gemma3 in blocks", SHAPE("gemma3_text", 1152, 6912, 4, 1, 256), "affine4-g64-bf16", 1,
     "attend_step_q4_0_q4_0_256_of_8 8 256\n"
     "normed_1_affine4_g64_bf16 72 192\n",
     .keys = "q4_0", .values = "q4_0"},
    {"llama, 20 rows in other blocks", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 20,
     "stream_32 48 288\nturn_blocks_1 30 256\nunpack_pages 1280 256\nattend_few_64_of_2 80 256\n"
     "hadamard 5 256\nstream_32 32 288\n",
     .keys = "q5_0", .values = "q5_0"},
    {"llama, 200 rows in blocks", SHAPE("llama", 512, 1024, 8, 2, 64), "bf16", 200,
     "split_192_pair 20 384\nturn_blocks_1 300 256\nattend_q8_0_q4_0_64_of_1 400 256\n"
     "split_192_pair 12 384\n",
     .keys = "q8_0", .values = "q4_0"},
    /* an RTX 4090: the sums of a pair of layers leave room for fewer warps than one layer's */
    {"llama of sm_89, 40 rows", SHAPE("llama", 2304, 1024, 8, 2, 64), "bf16", 40,
     "rms_norm_few_of_3 40 256\nlinear_64 64 96\nlinear_64 132 128\n", NULL, NULL, 89, 101376},
};

/* The families that images have code for. */
static const int families[] = {GPU_FAMILIES};

static bool has_code(int arch)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i] / 10 == arch / 10)
            return true;
    return arch >= 90; /* by PTX */
}

static qn_status load_all(qn__cuda *cuda, qn_error *err)
{
    int result = 0;
    for (int i = 0; i < QN__CUDA_KERNEL_COUNT && result == 0; i++) {
        qn__cu_function function = cuda->kernels[i];
        result = qn__cuda_load_kernel(cuda, &function);
    }
    return result == 0 ? QN_OK : qn__cuda_fail(cuda, err, result, "loading all kernels");
}

/* Images have what their kernels need on a GPU of this kind, by code of their own or compiled. That
 * kernels may have all shared memory that they ask for is checked with it, and that few are
 * loaded before they are wanted. */
static void check_images(no_driver *state, int arch, int shared, bool compiled)
{
    const no_driver usual = *state;
    qn_device *device = NULL;
    qn_error err = {0};
    state->arch = arch;
    state->shared = shared;
    state->compiled = state->images = 0;
    qn_status status = qn_device_open(&device, "cuda:0", NULL, &err);
    const int few = state->images;
    if (status == QN_OK)
        status = load_all(device->state, &err);
    if (status != QN_OK || (state->compiled != 0) != compiled || few > 3 || state->images < 9) {
        printf("FAILED  images on sm_%d: %s; %d of %d are to be compiled, %d loaded at once\n",
               arch, status == QN_OK ? "they load" : err.message, state->compiled, state->images,
               few);
        n_failed++;
    }
    qn_device_close(device);
    state->arch = usual.arch;
    state->shared = usual.shared;
}

static void check(const expected *e, no_driver *state)
{
    const no_driver usual = *state;
    const char *launches = state->launches;
    qn_device *device = NULL;
    qn_error err = {0};
    state->arch = e->arch ? e->arch : usual.arch;
    state->shared = e->shared ? e->shared : usual.shared;
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_session_options o = {
        .size = sizeof o, .batch = e->batch, .cache_type_k = e->keys, .cache_type_v = e->values};
    int32_t ids[300] = {0}, next[300] = {0};
    static int32_t before[5000];
    bool ran = qn_device_open(&device, "cuda:0", NULL, &err) == QN_OK &&
               qn_model_open_random(&model, device, e->config, strlen(e->config), e->type, e->type,
                                    NULL, &err) == QN_OK &&
               qn_session_open(&session, model, &o, &err) == QN_OK;
    if (ran && e->behind)
        ran = qn_session_append(session, before, (size_t)e->behind, &err) == QN_OK;
    for (int i = 0; ran && i < 3; i++)
        ran = qn_session_step_greedy_batch(session, ids, next, &err) == QN_OK;
    const char *found = ran ? strstr(launches, e->layer) : NULL;
    bool twice = found && strstr(found + 1, e->layer);
    size_t length = strlen(launches), end = e->end ? strlen(e->end) : 0;
    bool begins = !e->begin || !strncmp(launches, e->begin, strlen(e->begin));
    bool ends = !e->end || (length >= end && !strcmp(launches + length - end, e->end));
    if (!ran || !twice || !begins || !ends) {
        printf("FAILED  %s: %s; launches:\n%s", e->name, ran ? "other launches" : err.message,
               launches);
        n_failed++;
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
    state->arch = usual.arch;
    state->shared = usual.shared;
}

/* A step of so many rows, on a GPU: whatever the shape, each launch is one that the driver takes
 * (threads, shared memory) and each tensor one that the copy engine does. */
static void check_shape(no_driver *state, const char *config, const char *type, int batch)
{
    qn_device *device = NULL;
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_session_options o = {
        .size = sizeof o, .batch = batch, .cache_type_k = "bf16", .cache_type_v = "bf16"};
    qn_error err = {0};
    int32_t ids[200] = {0}, prompt[200 * 3] = {0};
    if (qn_device_open(&device, "cuda:0", NULL, &err) == QN_OK &&
        qn_model_open_random(&model, device, config, strlen(config), type, type, NULL, &err) ==
            QN_OK &&
        qn_session_open(&session, model, &o, &err) == QN_OK &&
        qn_session_append(session, prompt, 3, &err) == QN_OK)
        qn_session_step_greedy_batch(session, ids, ids, &err);
    if (err.code != QN_OK && (err.code != QN_UNSUPPORTED || !device)) {
        printf("FAILED  %s, %d rows, sm_%d, %.150s: %s; launches:\n%s", type, batch, state->arch,
               config, err.message, state->launches);
        n_failed++;
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

/* Columns that spans, boxes, pieces and vectors do not divide; a tile for each processor and far
 * more; one key head for all, or one each; heads that have kernels of their own and others. */
static void check_shapes(no_driver *state)
{
    static const struct {
        int hidden, ffn, heads, kv, dim;
    } shapes[] = {{72, 200, 8, 1, 64},     {1152, 6912, 4, 1, 256}, {1088, 2112, 8, 8, 128},
                  {2304, 264, 8, 1, 256},  {10472, 96, 1, 1, 80},   {128, 34000, 2, 2, 64},
                  {4096, 1024, 32, 8, 128}};
    static const struct {
        int arch, shared;
    } gpus[] = {{80, 166912}, {89, 101376}, {90, 232448}, {120, 101376}};
    static const int batches[] = {1, 9, 33, 64, 70, 200};
    static const char *const types[] = {"bf16", "q8_0"};
    const no_driver usual = *state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++)
            for (size_t b = 0; has_code(gpus[g].arch) && b < sizeof batches / sizeof *batches; b++)
                for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                    char config[800];
                    snprintf(config, sizeof config,
                             "{\"hidden_size\":%d,\"intermediate_size\":%d,"
                             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
                             "\"head_dim\":%d,\"model_type\":\"llama\",\"num_hidden_layers\":2,"
                             "\"vocab_size\":72,\"max_position_embeddings\":4096,"
                             "\"rms_norm_eps\":1e-6,\"hidden_act\":\"silu\","
                             "\"tie_word_embeddings\":true}",
                             shapes[i].hidden, shapes[i].ffn, shapes[i].heads, shapes[i].kv,
                             shapes[i].dim);
                    state->arch = gpus[g].arch;
                    state->shared = gpus[g].shared;
                    check_shape(state, config, types[t], batches[b]);
                }
    state->arch = usual.arch;
    state->shared = usual.shared;
}

/* A GPU that images have no code for is told so, not that its driver is old. */
static void check_other_gpu(no_driver *state)
{
    const no_driver usual = *state;
    qn_device *device = NULL;
    qn_error err = {0};
    state->arch = 86;
    qn_status status = qn_device_open(&device, "cuda:0", NULL, &err);
    if (status != QN_UNSUPPORTED || !strstr(err.message, "sm_86") ||
        !strstr(err.message, "-Dgpu_families=80")) {
        printf("FAILED  sm_86 without code for it: \"%s\"\n", err.message);
        n_failed++;
    }
    if (status == QN_OK)
        qn_device_close(device);
    state->arch = usual.arch;
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    no_driver *state = driver ? dlsym(driver, "no_driver_state") : NULL;
    if (!state) {
        printf("skipped: no_driver.c is not in the driver's place\n");
        return 77;
    }
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        check_images(state, families[i], families[i] == 80 ? 166912 : 232448, false);
    check_images(state, 120, 101376, true);
    if (!has_code(86))
        check_other_gpu(state);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (has_code(all[i].arch ? all[i].arch : state->arch))
            check(&all[i], state);
    check_shapes(state);
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
