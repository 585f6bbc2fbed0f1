/* SPDX-License-Identifier: Apache-2.0
 *
 * Training, by AdamW and others: a LoRA adapter (arXiv:2106.09685) of a loaded model, whose own
 * weights, dense or quantised, stay as they are; or all weights of a dense one. Experimental: it
 * will grow.
 *
 *     qn_trainer *trainer;
 *     qn_trainer_options options = QN_INIT(qn_trainer_options);
 *     options.rank = 16;
 *     options.learning_rate = 1e-4;
 *     qn_trainer_open(&trainer, model, &options, &err);
 *     for (int i = 0; i < steps; i++)
 *         qn_trainer_step(trainer, tokens[i], mask[i], rows, length, &loss, &err);
 *     qn_trainer_save(trainer, "my-adapter", &err);
 *     qn_trainer_close(trainer);
 *
 * A trainer belongs to one thread; its model may be used by others at the same time. Losses and
 * matrices are the same to the bit with any number of the device's threads.
 */
#ifndef QUERN_TRAIN_H
#define QUERN_TRAIN_H

#include "quern/model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QN_OPTIMIZER_LIST(X)                                                                       \
    X(ADAMW, "adamw") /* arXiv:1711.05101 */                                                       \
    X(ADAM, "adam")   /* arXiv:1412.6980 */                                                        \
    X(SGD, "sgd")     /* with momentum beta1 */                                                    \
    X(LION, "lion")   /* arXiv:2302.06675 */

typedef enum qn_optimizer {
#define QN_OPTIMIZER_ENUM(name, text) QN_OPTIMIZER_##name,
    QN_OPTIMIZER_LIST(QN_OPTIMIZER_ENUM)
#undef QN_OPTIMIZER_ENUM
        QN_OPTIMIZER_COUNT
} qn_optimizer;

/* Whose files an adapter is saved as. */
#define QN_ADAPTER_FORMAT_LIST(X)                                                                  \
    X(PEFT, "peft") /* adapter_model.safetensors */                                                \
    X(MLX, "mlx")   /* mlx-lm's: adapters.safetensors */

typedef enum qn_adapter_format {
#define QN_ADAPTER_FORMAT_ENUM(name, text) QN_ADAPTER_##name,
    QN_ADAPTER_FORMAT_LIST(QN_ADAPTER_FORMAT_ENUM)
#undef QN_ADAPTER_FORMAT_ENUM
        QN_ADAPTER_FORMAT_COUNT
} qn_adapter_format;

/* What a step makes less. */
#define QN_LOSS_LIST(X)                                                                            \
    X(CROSS_ENTROPY, "cross-entropy") /* of each token that counts, given those before it */       \
    X(DPO, "dpo")                     /* arXiv:2305.18290, of pairs of answers (qn_dpo_loss) */

typedef enum qn_loss {
#define QN_LOSS_ENUM(name, text) QN_LOSS_##name,
    QN_LOSS_LIST(QN_LOSS_ENUM)
#undef QN_LOSS_ENUM
        QN_LOSS_COUNT
} qn_loss;

/* Zero means default. To the products of a layer with weights [N, K] the adapter adds
 * (alpha / rank) (x A^T) B^T, A [rank, K], B [N, rank]. */
typedef struct qn_trainer_options {
    size_t size;  /* sizeof(qn_trainer_options) */
    int64_t rank; /* 0: 8; 1024 at most */
    double alpha; /* 0: twice the rank */
    /* The linear layers, by the end of their names, as PEFT has it: "q_proj" is that of every
     * layer, "layers.0.self_attn.q_proj" one. Borrowed while opening. None: all in the layers. */
    const char *const *targets;
    size_t n_targets;
    double learning_rate; /* 0: 1e-5 */
    double beta1, beta2;  /* 0: 0.9 and 0.999, Lion 0.99; negative: SGD without momentum */
    double eps;           /* 0: 1e-8 */
    double weight_decay;  /* AdamW's and Lion's decoupled; 0: AdamW 0.01, negative: none */
    double clip;          /* the gradients' norm, all of them together, at most; 0: any */
    uint64_t seed;        /* of A, uniform within 1 / sqrt(K) as PEFT draws it; B is 0 */
    const char *adapter;  /* NULL, or a directory of PEFT's or mlx-lm's files to go on from, of this
                             rank and alpha and these targets; the optimiser begins anew */
    qn_optimizer optimizer;
    int64_t num_layers; /* the model's last so many; 0: all */
    const char *resume; /* NULL, or a directory of qn_trainer_save_state to go on from */
    const char *bound;  /* NULL, or a JSON object of what else a step depends on, such as the
                           data's fingerprint: one that goes on must have the same */
    bool checkpoint;    /* keep of each layer what goes into it, and compute the rest again for the
                           gradients: less memory, about a forward pass more, the same bits */
    bool full;          /* no adapter: all weights are trained, in f32. The model, which stays as it
                           was loaded, is a directory of Hugging Face's with dense weights. Norms and
                           biases do not decay. No option of adapters (rank, alpha, targets, adapter,
                           num_layers, dropout, adapter_bf16, adapter_format) may be there */
    qn_loss loss;
    double beta;            /* of QN_LOSS_DPO: how dear it is to leave the model; 0: 0.1 */
    double label_smoothing; /* of QN_LOSS_DPO: 0 to 0.5 */
    /* In a step each number that goes into an adapter's A is 0 with this probability, and the
     * others are as much larger; drawn from seed, step, batch, layer and place. 0: none; below 1.
     */
    double dropout;
    bool adapter_bf16; /* A and B are held and saved in bf16, not f32 */
    bool moments_bf16; /* the optimiser's moments are held in bf16, not f32 */
    qn_adapter_format adapter_format;
} qn_trainer_options;

/* ---- batches --------------------------------------------------------------------------------- */

/* tokens [rows, length], each row a text, or several; mask [rows, length]: not 0 where a token
 * counts. Zero it before use ({0}) where something fills it. */
typedef struct qn_batch {
    int32_t *tokens;
    uint8_t *mask; /* NULL: all count */
    int64_t rows, length;
    int64_t counted; /* tokens that count; for information */
    size_t capacity; /* numbers in each, where qn_batch_free frees them */
    int32_t *begins; /* NULL, or [rows, length]: where in its row the text that a token is of
                        begins. Texts of a row see nothing of each other; the first token of each
                        should not count */
} qn_batch;

QN_API void qn_batch_free(qn_batch *batch);

typedef struct qn_trainer qn_trainer;

/* Keeps the model open. options may be NULL. QN_INVALID: a number out of its range, a target that
 * no layer has, an adapter of other options; QN_STATE: the model has no weights; QN_UNSUPPORTED: it
 * was opened with adapters. */
QN_API qn_status qn_trainer_open(qn_trainer **out, qn_model *model,
                                 const qn_trainer_options *options, qn_error *err);
QN_API void qn_trainer_close(qn_trainer *trainer); /* NULL is accepted */

/* One step on tokens [rows, length], each row a text of its own. *loss, which may be NULL,
 * receives what it was before: the mean of -log p over the tokens that count, each given those
 * before it in its row. mask [rows, length]: not 0 where a token counts; NULL: all do. The first
 * of a row never counts, as nothing is before it. Rows that are shorter are filled behind their end
 * with any tokens that do not count.
 *
 * QN_INVALID: a token outside the vocabulary, none that counts; QN_LIMIT: rows longer than the
 * model's context, or more memory than the device's limit. After these the trainer is as it was.
 * QN_STATE: the loss is no finite number, or a run broke off, then and from then on. */
QN_API qn_status qn_trainer_step(qn_trainer *trainer, const int32_t *tokens, const uint8_t *mask,
                                 int64_t rows, int64_t length, double *loss, qn_error *err);

/* With QN_LOSS_DPO rows 2 i and 2 i + 1 are a prompt with the chosen and with the rejected answer,
 * whose tokens alone count; the loss is the mean over the pairs of -log sigmoid(beta margin), the
 * margin by how much more than the model without what is trained the chosen answer is preferred. */

/* One step on n batches, with the gradient that one batch of all their rows would have: each token
 * that counts, or each pair, counts alike. Memory is that of one of them, and of one more copy of
 * the gradients.
 */
QN_API qn_status qn_trainer_step_batches(qn_trainer *trainer, const qn_batch *batches, size_t n,
                                         double *loss, qn_error *err);

/* The loss alone; nothing is learned. */
QN_API qn_status qn_trainer_loss(qn_trainer *trainer, const int32_t *tokens, const uint8_t *mask,
                                 int64_t rows, int64_t length, double *loss, qn_error *err);

/* Of QN_LOSS_DPO, means over pairs: an answer's reward is beta times what its log-probability has
 * gained over the model's without what is trained. */
typedef struct qn_rewards {
    size_t size; /* sizeof(qn_rewards), set by the caller */
    double chosen, rejected;
    double accuracy; /* the part of the pairs whose chosen answer has the higher one */
    double margin;   /* chosen - rejected */
} qn_rewards;

/* Those of the newest step or loss, before it; QN_STATE: there was none, or the loss is another. */
QN_API qn_status qn_trainer_get_rewards(const qn_trainer *trainer, qn_rewards *rewards);

/* Of the steps from then on; 0 or above, else QN_INVALID. */
QN_API qn_status qn_trainer_set_learning_rate(qn_trainer *trainer, double learning_rate,
                                              qn_error *err);

QN_API int64_t qn_trainer_steps(const qn_trainer *trainer);       /* taken */
QN_API uint64_t qn_trainer_parameters(const qn_trainer *trainer); /* numbers that are trained */

typedef enum qn_schedule_kind {
    QN_SCHEDULE_CONSTANT,
    QN_SCHEDULE_LINEAR,
    QN_SCHEDULE_COSINE
} qn_schedule_kind;

/* A learning rate that rises from 0 in `warmup` steps, then stays, or falls to `end` at `steps`. */
typedef struct qn_schedule {
    size_t size; /* sizeof(qn_schedule) */
    qn_schedule_kind kind;
    double learning_rate, end;
    int64_t warmup, steps; /* warm-up included */
} qn_schedule;

/* The rate of a step, 0 the first, as transformers has it: with a warm-up the first is 0. */
QN_API double qn_schedule_rate(const qn_schedule *schedule, int64_t step);

/* Writes the adapter as options.adapter_format has it, adapter_config.json and its matrices, into
 * a directory that appears whole or not at all. One that exists is replaced where it holds these
 * files alone (and a README.md), else it is QN_INVALID. qn_model_options.adapters reads it. After
 * full training it is a model: model.safetensors in its type, config.json and the tokenizer's
 * files. */
QN_API qn_status qn_trainer_save(qn_trainer *trainer, const char *directory, qn_error *err);

/* The same with what going on needs, moments and steps, in two files more, optimizer.safetensors
 * and trainer.json; all are on the disk when it returns. options.resume reads it: the steps that
 * follow are, to the bit, those that this trainer would have taken. That is QN_STATE, with the name
 * of what differs, where the model or an option (but for learning_rate, which is as it was saved)
 * is another; QN_INVALID where a file was changed. note: a text for whoever goes on; NULL: none. */
QN_API qn_status qn_trainer_save_state(qn_trainer *trainer, const char *directory, const char *note,
                                       qn_error *err);
QN_API const char *qn_trainer_note(const qn_trainer *trainer); /* read; "": none */

/* ---- data ------------------------------------------------------------------------------------ */

/* Texts of a file of JSON Lines, larger than memory if need be. A line is an object with
 *
 *     "text": learned as it is, with the token behind it that ends texts;
 *     "prompt" and "completion", maybe "tools": a user's message and the reply, or, where the model
 *     knows no chats, one behind the other, as a text;
 *     "messages", maybe "tools" and "chat_template_kwargs": what the model's template makes of
 *     them;
 *     "prompt", "chosen" and "rejected": two answers, of which one is preferred
 * (options.preferences alone). Texts are as above; or all three are lists of messages, maybe with
 * "tools" and "chat_template_kwargs", and without a prompt it is what both lists begin with.
 *
 * A dataset belongs to one thread. */
typedef struct qn_dataset qn_dataset;

/* Zero means default. */
typedef struct qn_dataset_options {
    size_t size;        /* sizeof(qn_dataset_options) */
    int64_t max_length; /* tokens of a text; what is behind them is left out; 0: 2048 */
    bool mask_prompt;   /* learn a completion, or the last message, alone; not of "text" */
    bool parse_special; /* special tokens that are written out in a text become those */
    bool in_order;      /* the file's, not one that is drawn */
    uint64_t seed;      /* of the order */
    /* Called for each line that cannot be used, with "FILE: line N: ..." */
    void (*bad)(void *user, const char *message);
    void *user;
    const qn_flag *cancel; /* polled while opening: true gives QN_CANCELLED */
    bool pack; /* rows of a batch are filled with texts, up to max_length tokens: the longest first,
                  each where least is left behind it, as TRL's "bfd" does */
    bool preferences; /* lines for QN_LOSS_DPO, and no others; not packed */
} qn_dataset_options;

typedef struct qn_dataset_info {
    size_t size;             /* sizeof(qn_dataset_info), set by the caller */
    uint64_t texts, tokens;  /* that are learned from, prompts included */
    uint64_t longest;        /* tokens of the longest text */
    uint64_t cut, left_out;  /* texts cut off, and with no token left to learn */
    uint64_t bad;            /* lines that cannot be used */
    uint64_t fingerprint;    /* of all tokens and prompts, in their order */
    const char *passed_over; /* members of lines that are not looked at: "id, source"; lives as
                                long as the dataset */
    uint64_t rows;           /* of an epoch: its texts, or what they were packed into */
} qn_dataset_info;

/* Reads and encodes all lines once. The chat, which may be one without templates, is borrowed, and
 * must outlive it. QN_INVALID: lines cannot be used, of which all are told, or nothing is there to
 * learn. options may be NULL. */
QN_API qn_status qn_dataset_open(qn_dataset **out, const qn_chat *chat, const char *path,
                                 const qn_dataset_options *options, qn_error *err);
QN_API void qn_dataset_close(qn_dataset *dataset); /* NULL is accepted */
QN_API qn_status qn_dataset_get_info(const qn_dataset *dataset, qn_dataset_info *info);

/* Takes a part of the texts, 0 < part < 1, out into a dataset of their own, which is in order and
 * not packed: for validation. Which ones the seed says. */
QN_API qn_status qn_dataset_split(qn_dataset *dataset, double part, qn_dataset **out,
                                  qn_error *err);

/* Batch `index`, from 0 on, of `rows` rows (preferences: twice as many), in an order of the whole
 * dataset that is drawn anew each time that all have come; the last before that may have fewer. It
 * depends on nothing else: no state is left behind. QN_STATE: the file has changed since it was
 * opened. */
QN_API qn_status qn_dataset_batch(qn_dataset *dataset, int64_t rows, int64_t index, qn_batch *batch,
                                  qn_error *err);
QN_API int64_t qn_dataset_batches(const qn_dataset *dataset, int64_t rows); /* until then */

#ifdef __cplusplus
}
#endif
#endif
