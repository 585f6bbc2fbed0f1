/* SPDX-License-Identifier: Apache-2.0
 *
 * Models and generation: load a model directory, run tokens through it, sample text from it.
 *
 *     qn_model *model;
 *     qn_model_open(&model, device, "path/to/model", NULL, &err);
 *     qn_session *session;
 *     qn_session_open(&session, model, NULL, &err);
 *     qn_generation *g;
 *     qn_generation_begin(&g, session, ids, n, NULL, &err);
 *     while (qn_generation_next(g, &id, &err) == QN_OK && id >= 0)
 *         ...
 *
 * A model is immutable and may be shared by threads; a session, and generations on it, belong to
 * one.
 */
#ifndef QUERN_MODEL_H
#define QUERN_MODEL_H

#include "quern/ops.h"
#include "quern/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct qn_model qn_model;

/* A LoRA adapter: a directory as PEFT or mlx-lm writes it (adapter_config.json and
 * adapter_model.safetensors, .bin, or adapters.safetensors), of a model of these shapes. */
typedef struct qn_adapter {
    const char *path;
    const char *name; /* NULL: the last part of the path */
    float scale;      /* multiplies what it adds, besides its own scale; 0: 1 */
} qn_adapter;

typedef struct qn_model_options {
    size_t size; /* sizeof(qn_model_options) */
    /* Called on the caller's thread while weights are read, by as many threads as the device has;
     * returning false cancels the load. */
    bool (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_user;
    bool no_tokenizer; /* do not open tokenizer.json: qn_model_tokenizer is then NULL */
    bool no_weights;   /* read config.json and the weights' headers alone, for qn_model_get_info and
                          qn_model_cache_bytes: sessions cannot be opened, parameters are NULL */
    qn_products products; /* of the linear layers: AUTO, or F32: of the weights' values, exact and
                             slower; the cache is then f32, too. Others are QN_INVALID. What goes
                             into BitNet's layers is bytes with AUTO, what it is with F32 */
    const qn_adapter *adapters; /* borrowed; known as 1 to n_adapters, 64 at most */
    size_t n_adapters;
    bool batch_invariant; /* a token's logits have the same bits whatever else their steps compute:
                             alone, in a batch, in a prompt in steps of any length. On the CPU they
                             always have. On CUDA AUTO is otherwise QN_PRODUCTS_BY_ROWS: faster
                             prompts and batches, whose logits differ from those of single tokens by
                             about what rounding activations to bf16 does, 1e-5 in NMSE */
} qn_model_options;

/* Loads a Hugging Face model directory (config.json, tokenizer.json, weights as safetensors,
 * PyTorch's .bin or npz: see quern/io.h; or params.json with weights by Meta's names) or a GGUF
 * file (llama, qwen2, qwen3, gemma2, gemma3, smollm3, bitnet, bitnet-25, bitnet-b1.58; of a split
 * model the first part; or a directory whose one model that is) onto the device. options may be
 * NULL. Families: bitnet, gemma2, gemma3, gemma3_text, llama, mistral, qwen2, qwen3, smollm3. */
QN_API qn_status qn_model_open(qn_model **out, qn_device *device, const char *path,
                               const qn_model_options *options, qn_error *err);

/* A model of random weights, for timing: config[0..n) is the text of a config.json. type, of the
 * linear layers, and head_type, of the embedding and the head, are encodings by GGUF's names in
 * lower case ("bf16", "q4_0", "q6_k") or MLX's ("affine4-g64-bf16"); there is no tokenizer. Where
 * the text has no torch_dtype it is that of a bf16 checkpoint, or with type "f32" of an f32 one. Of
 * options, which may be NULL, products and batch_invariant count. QN_UNSUPPORTED: a type whose
 * blocks do not divide a row, or an unknown one. */
QN_API qn_status qn_model_open_random(qn_model **out, qn_device *device, const char *config,
                                      size_t n, const char *type, const char *head_type,
                                      const qn_model_options *options, qn_error *err);

/* A model as it begins that is to be trained from nothing (qn_trainer_options.full): `path` is a
 * config.json, or its directory, where the tokenizer's files lie, too. Weights are f32, drawn as
 * transformers draws them: normal with the configuration's initializer_range, norms 1, biases 0,
 * the embedding of pad_token_id 0. The same seed gives the same model. */
QN_API qn_status qn_model_open_initial(qn_model **out, qn_device *device, const char *path,
                                       uint64_t seed, const qn_model_options *options,
                                       qn_error *err);

/* Frees every weight once the last session is closed. NULL is accepted. */
QN_API void qn_model_close(qn_model *model);

typedef struct qn_model_info {
    size_t size; /* sizeof(qn_model_info) */
    char family[32];
    int64_t n_layers, hidden_size, intermediate_size, n_heads, n_kv_heads, head_dim;
    int64_t vocab_size, max_positions;
    uint64_t parameters;   /* their number */
    uint64_t weight_bytes; /* on the device */
    uint64_t file_bytes;   /* of these weights in their files */
    qn_dtype dtype;        /* of the checkpoint's floats; of a GGUF file f32 */
    /* How the files encode the weights, and each one's share of their bytes, the largest first:
     * "q4_k 61 %, q6_k 38 %, f32 1 %". The smallest are left out where there is no room. */
    char types[128];
} qn_model_info;

/* QN_INVALID: info->size was not set. */
QN_API qn_status qn_model_get_info(const qn_model *model, qn_model_info *info);
QN_API const qn_tokenizer *qn_model_tokenizer(const qn_model *model);

/* The adapters that the model was opened with. The name is NULL where i is not 1 to their number.
 */
QN_API int qn_model_n_adapters(const qn_model *model);
QN_API const char *qn_model_adapter_name(const qn_model *model, int i);

/* What sessions and requests may ask for instead of a number: the only adapter, or none where there
 * are several; and none. */
enum { QN_ADAPTER_DEFAULT = 0, QN_ADAPTER_NONE = -1 };

/* Weights by name, sorted. The array is borrowed; packed ones are read by qn_linear and qn_take
 * alone. */
QN_API int qn_model_n_parameters(const qn_model *model);
QN_API const char *qn_model_parameter_name(const qn_model *model, int i);
QN_API qn_array *qn_model_parameter(const qn_model *model, const char *name); /* NULL: none */

/* Gives a dense parameter other values, a retained array of floats of its shape, which are rounded
 * to the type that it has. Nothing may run on the model meanwhile, and what its sessions and
 * engines know of texts is of the old ones: open them anew. QN_NOT_FOUND: there is no such
 * parameter; QN_UNSUPPORTED: it is quantised; QN_INVALID: the shape is another. */
QN_API qn_status qn_model_set_parameter(qn_model *model, const char *name, qn_array *value,
                                        qn_error *err);

/* ---- sessions -------------------------------------------------------------------------------- */

typedef struct qn_session qn_session;

typedef struct qn_session_options {
    size_t size;           /* sizeof(qn_session_options) */
    int64_t context;       /* positions at most; 0: the model's, more: the log warns */
    int64_t prefill_chunk; /* tokens evaluated at once; 0: 512, on a GPU 2,048. Does not change a
                              bit of the result where the model is batch_invariant, or on the CPU */
    int batch;             /* sequences in lockstep; 0: 1 */
    const qn_flag *cancel; /* polled while running: true makes calls fail with QN_CANCELLED */
    /* Called while qn_session_append runs more tokens than one chunk: before each, and at the end
     * (done = total, also when it failed). */
    void (*progress)(void *user, int64_t done, int64_t total);
    void *progress_user;
    bool rotate;  /* take tokens beyond `context`: each sees the newest `context` ones, its own
                     included */
    int64_t keep; /* rotating: of these `context` ones this many are the first ones, 64 at most;
                     positions stay what they were. Layers with a narrower window of their own keep
                     none. */
    const char *cache_type_k, *cache_type_v; /* types of keys and values: "f32", "bf16", "f16" or
        one whose blocks divide a head's length, "q8_0", "q4_0", "affine8-g64-bf16" ...; NULL: bf16
        where the model's own numbers are, f16 where they are, or a GGUF file has blocks, and the
        device is a GPU; else f32. QN_UNSUPPORTED: the device keeps none in that type; the error
        names those that it does. */
    qn_model *draft; /* a smaller model of the same tokens, which guesses for generations that have
                        draft_tokens; kept open. NULL: none. Tokens that differ: QN_INVALID. */
    int adapter;     /* QN_ADAPTER_DEFAULT, QN_ADAPTER_NONE, or one of the model's */
} qn_session_options;
QN_API qn_status qn_session_open(qn_session **out, qn_model *model,
                                 const qn_session_options *options, qn_error *err);
QN_API void qn_session_close(qn_session *session); /* NULL is accepted */

/* The session's tokens, [batch, a length of its own for each row: of one sequence the first
 * qn_session_length count]. Valid until the next call on the session; NULL: there were none yet. */
QN_API const int32_t *qn_session_tokens(const qn_session *session);

/* Writes the session's tokens, keys and values into a file, which appears whole or not at all, and
 * brings them back into an empty session without running a token: of the same model, types of cache
 * and windows, else QN_STATE, with what differs. A file that was changed is QN_INVALID, one of more
 * tokens than the context QN_LIMIT; the session then stays empty. The next call must append a token
 * before there are logits. Sessions of several sequences are QN_UNSUPPORTED. */
QN_API qn_status qn_session_save(qn_session *session, const char *path, qn_error *err);
QN_API qn_status qn_session_restore(qn_session *session, const char *path, qn_error *err);

/* Bytes of the keys and values of one sequence of such a session that is full; options may be NULL.
 * 0: the options are wrong, or memory is out. */
QN_API uint64_t qn_model_cache_bytes(const qn_model *model, const qn_session_options *options);

/* Runs n tokens behind those already in the session (of each sequence: ids is [batch, n]). More
 * than the context holds: QN_LIMIT, with both counts; a token outside the vocabulary: QN_INVALID. A
 * call that fails, also one that is cancelled, leaves the session with the tokens that it had. */
QN_API qn_status qn_session_append(qn_session *session, const int32_t *ids, size_t n,
                                   qn_error *err);

/* Logits of the last appended token, [batch, vocab_size]; NULL when there are none. Valid until the
 * next call on the session. */
QN_API const float *qn_session_logits(const qn_session *session);

/* Logits of every one of n tokens, [batch, n, vocab_size], into out: for scoring. */
QN_API qn_status qn_session_score(qn_session *session, const int32_t *ids, size_t n, float *out,
                                  qn_error *err);

/* Runs one token and gives the most probable next one, which is chosen on the device. For sessions
 * of batch 1. */
QN_API qn_status qn_session_step_greedy(qn_session *session, int32_t token, int32_t *next,
                                        qn_error *err);
/* The same of each sequence: tokens and next are [batch], and may be one array. */
QN_API qn_status qn_session_step_greedy_batch(qn_session *session, const int32_t *tokens,
                                              int32_t *next, qn_error *err);

QN_API int64_t qn_session_length(const qn_session *session);
QN_API int64_t qn_session_context(const qn_session *session); /* tokens at most; rotating: 2^30 */
/* Forgets all tokens from `length` on. Layers with a sliding window keep only what the window
 * needs: when going back further than that the next call runs the tokens that are left once more.
 */
QN_API void qn_session_rewind(qn_session *session, int64_t length);

/* Rewinds a session of one sequence to what its tokens and ids[0..n) begin with, all of ids but the
 * last at most, which must run to give logits. Returns how many tokens the session then has: none
 * where windows would have to run them once more. */
QN_API int64_t qn_session_rewind_to(qn_session *session, const int32_t *ids, size_t n);
QN_API size_t qn_session_cache_bytes(const qn_session *session);

/* ---- sampling -------------------------------------------------------------------------------- */

/* The steps of a chain, and their names, which are llama.cpp's. */
#define QN_SAMPLER_LIST(X)                                                                         \
    X(PENALTIES, "penalties")                                                                      \
    X(TOP_K, "top_k")                                                                              \
    X(TOP_P, "top_p")                                                                              \
    X(MIN_P, "min_p")                                                                              \
    X(TEMPERATURE, "temperature")

typedef enum qn_sampler {
    QN_SAMPLER_END, /* closes a chain */
#define QN_SAMPLER_ENUM(name, text) QN_SAMPLER_##name,
    QN_SAMPLER_LIST(QN_SAMPLER_ENUM)
#undef QN_SAMPLER_ENUM
        QN_SAMPLER_COUNT
} qn_sampler;

/* Added to the logit of a token; -INFINITY: it is never drawn. */
typedef struct qn_token_bias {
    int32_t id;
    float bias;
} qn_token_bias;

/* At most this many steps. */
#define QN_MAX_SAMPLERS 15

/* How one sequence is sampled. Zero but for size: greedy, no filter. Biases come first, then the
 * steps of `chain`, each on what the one before left, and the draw. */
typedef struct qn_sampling {
    size_t size;       /* sizeof(qn_sampling) */
    float temperature; /* 0: the most probable token */
    int32_t top_k;     /* 0: all */
    float top_p;       /* of what is left, 0 or 1: all */
    float min_p;       /* keeps tokens at least this fraction as probable as the most probable */
    float
        repeat_penalty; /* 0 or 1: none; divides positive, multiplies negative logits of repeats */
    int32_t
        repeat_last; /* how many newest tokens count as repeats, the prompt's too; 0: 64, -1: all */
    float presence_penalty;  /* taken off the logit of each token that has been generated */
    float frequency_penalty; /* ... times how often. The prompt counts for neither, as in vLLM. */
    uint64_t seed;
    qn_sampler chain[QN_MAX_SAMPLERS +
                     1]; /* in this order up to QN_SAMPLER_END, each once: what is not in it does
                            not count. Zero: penalties, top_p, min_p, top_k, temperature. */
    const qn_token_bias *bias; /* borrowed; generations copy them */
    size_t n_bias;
} qn_sampling;

/* Fills sampling->chain, in a struct whose size is set, from names, "top_k;temperature" (also
 * spelled top-k, nucleus, temp ...). Unknown ones, and one that stands twice, are QN_INVALID, with
 * the known ones named; the chain is then as it was. */
QN_API qn_status qn_sampling_set_chain(qn_sampling *sampling, const char *names, qn_error *err);

/* Draws from logits[0..vocab), which are on the host, as a generation's steps do on the device; all
 * tiers of the CPU draw alike. history holds the n_history tokens so far, of which the newest
 * n_generated are no prompt; the draw's random number depends on seed and n_history alone. Returns
 * the id; -1 with err filled when the parameters are out of range or no logit is a number. */
QN_API int32_t qn_sample(qn_device *device, const float *logits, size_t vocab,
                         const qn_sampling *sampling, const int32_t *history, size_t n_history,
                         size_t n_generated, qn_error *err);

/* The natural logarithm of a token's probability. */
typedef struct qn_logprob {
    int32_t id; /* -1: there are no more tokens */
    float logprob;
} qn_logprob;

/* Those of token `id` and of the n most probable ones, best first, into out[0..n]. Of the logits as
 * they are: no bias, no chain. n is at most 1000. */
QN_API qn_status qn_logprobs(const qn_device *device, const float *logits, size_t vocab, int32_t id,
                             size_t n, qn_logprob *out, qn_error *err);

/* ---- generation ------------------------------------------------------------------------------ */

typedef struct qn_generation qn_generation;

typedef struct qn_generation_options {
    size_t size;                 /* sizeof(qn_generation_options) */
    const qn_sampling *sampling; /* borrowed until begin returns; NULL: greedy */
    int64_t max_tokens;          /* 0: the model's own limit, else as many as the context holds */
    bool ignore_stop;            /* go on behind stop tokens and stop strings */
    bool ban_stop;               /* stop tokens are never drawn */
    const int32_t *stop;         /* further stop tokens, borrowed */
    size_t n_stop;
    const int32_t
        *before; /* the tokens in the session, for sampling: borrowed until begin returns */
    size_t n_before;
    const char *const
        *stop_strings; /* further texts that end the generation: copied; they need the model's
                          tokenizer. The name of a special token means that token, too. */
    size_t n_stop_strings;
    bool logprobs;         /* keep them for qn_generation_logprobs */
    int32_t top_logprobs;  /* and those of so many of the most probable tokens, 1000 at most */
    int32_t prompt_lookup; /* guess up to so many tokens, 64 at most, from what stood behind the
                              same tokens before, and check them in one step: the same reply, in
                              less time where it repeats its prompt. 0: none. While the generation
                              goes on its session may hold tokens that are not said yet. */
    int32_t draft_tokens;  /* where that finds nothing, guess up to so many, 64 at most, with the
                              session's draft model; without one QN_INVALID */
} qn_generation_options;

/* Begins generating behind ids, which are run by the first qn_generation_next. options may be NULL.
 * Sessions of several sequences are QN_UNSUPPORTED. */
QN_API qn_status qn_generation_begin(qn_generation **out, qn_session *session, const int32_t *ids,
                                     size_t n, const qn_generation_options *options, qn_error *err);

/* The next token; -1 at the end (a stop token or string, max_tokens, or the context is full). The
 * token that completes a stop string is still given. */
QN_API qn_status qn_generation_next(qn_generation *generation, int32_t *id, qn_error *err);

/* Appends the text that is certain by now and was not given before: whole characters, no special
 * tokens, and nothing that may yet become a stop string, of which no byte is ever given. After the
 * end, and with `all`, for a generation that is given up, also what was held back. QN_STATE without
 * a tokenizer. */
QN_API qn_status qn_generation_text(qn_generation *generation, bool all, qn_text *out,
                                    qn_error *err);

/* Of the newest token, then of the most probable ones: 1 + top_logprobs, in *n. Of the model's own
 * distribution, before biases, penalties and temperature. NULL where they are not kept; valid until
 * the next call. */
QN_API const qn_logprob *qn_generation_logprobs(const qn_generation *generation, size_t *n);

typedef enum qn_finish { QN_FINISH_NONE, QN_FINISH_STOP, QN_FINISH_LENGTH } qn_finish;

typedef struct qn_metrics {
    size_t size; /* sizeof(qn_metrics) */
    uint64_t prompt_tokens, generated_tokens;
    double prefill_seconds, decode_seconds; /* decode: from the second token on */
    size_t peak_bytes;                      /* of the device's memory */
    qn_finish finish;
    uint64_t guessed_tokens, right_tokens; /* guesses that were checked, and those of them said */
} qn_metrics;

/* QN_INVALID: metrics->size was not set. */
QN_API qn_status qn_generation_get_metrics(const qn_generation *generation, qn_metrics *metrics);
QN_API void qn_generation_end(qn_generation *generation); /* NULL is accepted */

/* What a model's files say about generating. */
typedef struct qn_generation_defaults {
    size_t size;                 /* sizeof(qn_generation_defaults) */
    const qn_sampling *sampling; /* of generation_config.json; greedy where it says nothing */
    int64_t max_tokens;          /* its max_new_tokens; 0: none */
    const int32_t *stop; /* its eos_token_id, else config.json's; with a tokenizer also its eos and
                            what ends a reply in its chat format or the model's chat templates */
    size_t n_stop;
    const char *const *stop_strings;
    size_t n_stop_strings;
} qn_generation_defaults;

/* Stop tokens, stop strings and max_tokens count in every generation; the sampling is for the
 * caller to take. All of it lives as long as the model. Values of generation_config.json that make
 * no sense are left out, with a warning in the log. QN_INVALID: out->size was not set. */
QN_API qn_status qn_model_get_defaults(const qn_model *model, qn_generation_defaults *out);

/* ---- evaluation ------------------------------------------------------------------------------ */

typedef struct qn_evaluation_options {
    size_t size;     /* sizeof(qn_evaluation_options) */
    int64_t context; /* tokens of a chunk; 0: 512 */
    int64_t stride;  /* chunks begin so many tokens apart, and of each its newest `stride` ones are
                        scored. 0: chunks stand side by side, and of each the second half is scored,
                        context - context / 2 - 1 tokens, as llama-perplexity does */
    int64_t chunks;  /* at most; 0: all. A rest that fills no chunk is left out. */
    const int32_t *begin;  /* stands in the place of each chunk's first token: bos, for models that
                              want it before a text; NULL: nothing does */
    qn_model *against;     /* a second model of the same vocabulary, to compare with; NULL: none */
    const qn_flag *cancel; /* as in qn_session_options */
    void (*progress)(void *user, int64_t done, int64_t total); /* chunks; before each, at the end */
    void *progress_user;
    const char *cache_type_k, *cache_type_v; /* as qn_session_options'; not of the second model */
} qn_evaluation_options;

/* Over all scored tokens, in nats. What follows against_loss is 0 without a second model. */
typedef struct qn_evaluation {
    size_t size; /* sizeof(qn_evaluation) */
    uint64_t chunks, tokens;
    double loss, loss_error; /* the mean of -log p(token), and the standard error of that mean */
    double perplexity;       /* exp(loss) */
    double against_loss, against_perplexity; /* the second model's */
    double kl, kl_error; /* KL(second model || model): mean, standard error of the mean */
    double kl_median, kl_99, kl_max; /* median, 99th percentile, largest */
    double same_top; /* the fraction of tokens whose most probable one is the same in both */
} qn_evaluation;

/* How well the model tells the tokens of a text: each chunk of them is run from its beginning.
 * options may be NULL. QN_INVALID: fewer tokens than one chunk, vocabularies that differ; otherwise
 * what qn_session_score says, also QN_CANCELLED, and *out is as it was. */
QN_API qn_status qn_evaluate(qn_model *model, const int32_t *ids, size_t n,
                             const qn_evaluation_options *options, qn_evaluation *out,
                             qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
