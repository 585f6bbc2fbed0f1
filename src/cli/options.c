/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of options, and parsing by it.
 */
#include "cli/options.h"
#include "cli/commands.h"
#include "cli/foreign.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(arguments, field)
#define OF_MODEL  (OF_GENERATE | OF_CHAT)
#define OF_SAMPLE (OF_MODEL | OF_BATCH)
#define OF_GUESS  (OF_SAMPLE | OF_SERVE | OF_HTTP)
#define OF_TEXTS  (OF_CLASSIFY | OF_EMBED | OF_INSPECT)
#define OF_CACHE  (OF_SAMPLE | OF_SERVE | OF_EVAL | OF_BENCH | OF_INFO) /* has keys and values */
#define OF_RUN    (OF_SAMPLE | OF_TEXTS) /* runs a model, on texts of people */
#define OF_ALL                                                                                     \
    (OF_RUN | OF_TOKENIZE | OF_TEMPLATE | OF_INFO | OF_CONVERT | OF_EVAL | OF_BENCH | OF_SERVE |   \
     OF_TRAIN)

static const option table[] = {
    {"model", 'm', OPTION_STRING, OF_ALL | OF_BACKENDS, AT(model), 0, 0, "MODEL",
     "a Hugging Face model directory or org/name[@REVISION] in its cache, or a GGUF file; else the "
     "built-in "
     "model"},
    {"adapter", 0, OPTION_STRING, OF_RUN | OF_EVAL | OF_BENCH, AT(adapter), 0, 0, "DIR",
     "a LoRA adapter of that model, as PEFT or mlx-lm writes it"},
    {"adapter", 0, OPTION_WORDS, OF_SERVE | OF_HTTP, AT(adapters), 0, 0, "DIR",
     "a LoRA adapter of that model; may be repeated: requests choose by the directory's name as "
     "their model, and without one have the only adapter, or none of several"},
    {"adapter", 0, OPTION_WORDS, OF_CONVERT, AT(adapters), 0, 0, "DIR",
     "add what this LoRA adapter adds to the weights themselves; may be repeated"},
    {"data", 0, OPTION_STRING, OF_TRAIN, AT(data), 0, 0, "PATH",
     "JSON Lines: a file, or a directory with train.jsonl and maybe valid.jsonl"},
    {"mask-prompt", 0, OPTION_FLAG, OF_TRAIN, AT(mask_prompt), 0, 0, NULL,
     "learn completions, or a chat's last message, alone"},
    {"val-split", 0, OPTION_NUMBER, OF_TRAIN, AT(val_split), 1e-6, 0.999999, "X",
     "without valid.jsonl: validate with the part X of the texts, and do not learn them"},
    {"steps-per-eval", 0, OPTION_INTEGER, OF_TRAIN, AT(steps_per_eval), 1, 1e9, "N",
     "steps between two validations (default 200)"},
    {"patience", 0, OPTION_INTEGER, OF_TRAIN, AT(patience), 1, 1e9, "N",
     "end when N validations in a row were no better than the best"},
    {"val-batches", 0, OPTION_INTEGER, OF_TRAIN, AT(val_batches), -1, 1e9, "N",
     "batches of a validation at most (default 25; -1: all)"},
    {"full", 0, OPTION_FLAG, OF_TRAIN, AT(full), 0, 0, NULL,
     "train all weights of a dense model, in f32, and write a model; norms and biases do not "
     "decay"},
    {"fine-tune-type", 0, OPTION_STRING, OF_TRAIN, AT(fine_tune_type), 0, 0, "KIND",
     "lora (default): an adapter; full: as --full"},
    {"init", 0, OPTION_STRING, OF_TRAIN, AT(init), 0, 0, "FILE",
     "with --full: a model from nothing, as the config.json FILE describes it, drawn by --seed; "
     "the "
     "tokenizer's files lie beside FILE"},
    {"adapter-path", 'o', OPTION_STRING, OF_TRAIN, AT(output), 0, 0, "DIR",
     "write the adapter, or with --full the model, to DIR, with what --resume needs; it must not "
     "be "
     "there yet"},
    {"resume", 0, OPTION_FLAG, OF_TRAIN, AT(resume), 0, 0, NULL,
     "go on from DIR, if it is there, to the bit as if nothing had happened"},
    {"config", 'c', OPTION_STRING, OF_TRAIN, AT(config), 0, 0, "FILE",
     "options as mlx-lm's YAML (or as JSON) says them, where the command line does not"},
    {"log", 0, OPTION_STRING, OF_TRAIN, AT(log), 0, 0, "FILE",
     "append what is reported to FILE, as JSON Lines"},
    {"report", 0, OPTION_STRING, OF_TRAIN, AT(report), 0, 0, "FILE",
     "write a page of HTML with curves, options and samples to FILE"},
    {"sample", 0, OPTION_WORDS, OF_TRAIN, AT(samples), 0, 0, "TEXT",
     "a user's message for --report: what is answered before and after; may be repeated"},
    {"raw", 0, OPTION_FLAG, OF_TRAIN, AT(raw), 0, 0, NULL,
     "samples are continued, without a chat format"},
    {"dry-run", 0, OPTION_FLAG, OF_TRAIN, AT(dry_run), 0, 0, NULL,
     "read the texts, take some steps, print the memory and the time needed, write nothing"},
    {"grad-checkpoint", 0, OPTION_FLAG, OF_TRAIN, AT(grad_checkpoint), 0, 0, NULL,
     "keep less of each layer for its gradients and compute it again: less memory, more time, the "
     "same bytes"},
    {"resume-adapter-file", 0, OPTION_STRING, OF_TRAIN, AT(resume_adapter), 0, 0, "PATH",
     "begin with the matrices of an adapter, PEFT's or mlx-lm's, of the same --rank, --alpha and "
     "--target"},
    {"iters", 0, OPTION_INTEGER, OF_TRAIN, AT(iters), 1, 1e9, "N",
     "steps, each on a batch of texts (default 1000)"},
    {"batch-size", 0, OPTION_INTEGER, OF_TRAIN, AT(batch_size), 1, 4096, "N",
     "texts of a step (default 4)"},
    {"learning-rate", 0, OPTION_NUMBER, OF_TRAIN, AT(learning_rate), 1e-12, 1e3, "X",
     "of the optimizer, at its highest (default 1e-5)"},
    {"lr-schedule", 0, OPTION_STRING, OF_TRAIN, AT(lr_schedule), 0, 0, "KIND",
     "constant (default), or falling as linear or cosine until the last step"},
    {"warmup-steps", 0, OPTION_INTEGER, OF_TRAIN, AT(warmup_steps), 0, 1e9, "N",
     "steps in which the learning rate rises from 0 (default 0)"},
    {"lr-decay-steps", 0, OPTION_INTEGER, OF_TRAIN, AT(lr_decay_steps), 1, 1e9, "N",
     "steps in which it falls, with those of the warm-up (default: --iters)"},
    {"min-learning-rate", 0, OPTION_NUMBER, OF_TRAIN, AT(min_learning_rate), 0, 1e3, "X",
     "what linear and cosine fall to (default 0)"},
    {"optimizer", 0, OPTION_STRING, OF_TRAIN, AT(optimizer), 0, 0, "NAME",
     "adamw (default), adam, sgd (with momentum) or lion"},
    {"beta1", 0, OPTION_NUMBER, OF_TRAIN, AT(beta1), 0, 0.999999, "X",
     "of the optimizer; of sgd it is the momentum (default 0.9)"},
    {"beta2", 0, OPTION_NUMBER, OF_TRAIN, AT(beta2), 1e-9, 0.9999999, "X",
     "of the optimizer (default 0.999; lion: 0.99)"},
    {"eps", 0, OPTION_NUMBER, OF_TRAIN, AT(eps), 1e-30, 1, "X", "of adamw and adam (default 1e-8)"},
    {"loss", 0, OPTION_STRING, OF_TRAIN, AT(loss), 0, 0, "NAME",
     "cross-entropy (default), or dpo: to prefer the chosen one of two answers to the rejected "
     "one"},
    {"beta", 0, OPTION_NUMBER, OF_TRAIN, AT(beta), 1e-6, 1e6, "X",
     "of dpo: higher keeps it nearer to the model that it begins with (default 0.1)"},
    {"label-smoothing", 0, OPTION_NUMBER, OF_TRAIN, AT(label_smoothing), 0, 0.5, "X",
     "of dpo: how many of the preferences are wrong (default 0)"},
    {"grad-accumulation-steps", 0, OPTION_INTEGER, OF_TRAIN, AT(grad_accumulation_steps), 1, 65536,
     "N", "batches of a step (default 1), each token, or pair of answers, alike"},
    {"num-layers", 0, OPTION_INTEGER, OF_TRAIN, AT(num_layers), -1, 1e6, "N",
     "train the last N layers (default -1: all)"},
    {"weight-decay", 0, OPTION_NUMBER, OF_TRAIN, AT(weight_decay), 0, 1e3, "X",
     "of the optimizer (default 0.01 for adamw, else 0); with --full of matrices alone"},
    {"max-grad-norm", 0, OPTION_NUMBER, OF_TRAIN, AT(max_grad_norm), 0, 1e9, "X",
     "longer gradients are made so long (default 0: none are)"},
    {"rank", 0, OPTION_INTEGER, OF_TRAIN, AT(rank), 1, 1024, "N",
     "of the adapter's matrices (default 8)"},
    {"alpha", 0, OPTION_NUMBER, OF_TRAIN, AT(alpha), 1e-6, 1e6, "X",
     "what the adapter adds is multiplied by X / rank (default: twice the rank)"},
    {"lora-dropout", 0, OPTION_NUMBER, OF_TRAIN, AT(lora_dropout), 0, 0.99, "X",
     "in a step this part of what goes into the adapter's matrices is 0 (default 0)"},
    {"adapter-format", 0, OPTION_STRING, OF_TRAIN, AT(adapter_format), 0, 0, "FORMAT",
     "peft (default), or mlx: the files of mlx-lm"},
    {"adapter-dtype", 0, OPTION_STRING, OF_TRAIN, AT(adapter_dtype), 0, 0, "TYPE",
     "of the adapter's matrices, f32 (default) or bf16"},
    {"optimizer-dtype", 0, OPTION_STRING, OF_TRAIN, AT(optimizer_dtype), 0, 0, "TYPE",
     "of what the optimizer remembers of each number, f32 (default) or bf16"},
    {"target", 0, OPTION_WORDS, OF_TRAIN, AT(targets), 0, 0, "NAME",
     "train the linear layers whose names end in NAME, such as q_proj; may be repeated (default: "
     "all in the model's layers)"},
    {"max-seq-length", 0, OPTION_INTEGER, OF_TRAIN, AT(max_seq_length), 2, 1 << 30, "N",
     "a text of more tokens is cut off (default 2048, or the model's context)"},
    {"pack", 0, OPTION_FLAG, OF_TRAIN, AT(pack), 0, 0, NULL,
     "fill rows of --max-seq-length tokens with several texts, which see nothing of each other; "
     "--batch-size is then of rows"},
    {"steps-per-report", 0, OPTION_INTEGER, OF_TRAIN, AT(steps_per_report), 1, 1e9, "N",
     "steps between two lines of progress (default 10)"},
    {"save-every", 0, OPTION_INTEGER, OF_TRAIN, AT(save_every), 1, 1e9, "N",
     "steps between two times that all is written (default 100)"},
    {"seed", 0, OPTION_INTEGER, OF_TRAIN, AT(settings.seed), 0, 9007199254740991, "N",
     "of the order of texts and of what is drawn (default 0); the same seed gives the same "
     "adapter, or model"},
    {"prompt", 'p', OPTION_STRING, OF_GENERATE | OF_BACKENDS, AT(prompt), 0, 0, "TEXT",
     "what to answer or continue; what is piped in follows it; - is standard input alone"},
    {"file", 'f', OPTION_STRING, OF_GENERATE | OF_BACKENDS, AT(prompt_file), 0, 0, "FILE",
     "the prompt is the text of FILE"},
    {"file", 'f', OPTION_STRING, OF_EVAL, AT(prompt_file), 0, 0, "FILE",
     "the text; - is standard input"},
    {"against", 0, OPTION_STRING, OF_EVAL, AT(against), 0, 0, "MODEL",
     "a second model of the same vocabulary: how far is the first one from it?"},
    {"against-products", 0, OPTION_STRING, OF_EVAL, AT(against_products), 0, 0, "KIND",
     "the second model's --products; without --against it is the first one"},
    {"n-prompt", 'p', OPTION_STRING, OF_BENCH, AT(n_prompt), 0, 0, "LIST",
     "tokens of a prompt (default 512; 0: none)"},
    {"n-gen", 'n', OPTION_STRING, OF_BENCH, AT(n_gen), 0, 0, "LIST",
     "tokens generated one by one (default 64; 0: none)"},
    {"n-depth", 'd', OPTION_STRING, OF_BENCH, AT(n_depth), 0, 0, "LIST",
     "tokens in the cache before (default 0)"},
    {"batch", 'b', OPTION_STRING, OF_BENCH, AT(batches), 0, 0, "LIST",
     "sequences generated in lockstep (default 1)"},
    {"threads", 't', OPTION_STRING, OF_BENCH, AT(thread_counts), 0, 0, "LIST",
     "CPU threads (default: the CPUs it may use)"},
    {"repeat", 'r', OPTION_INTEGER, OF_BENCH, AT(repeat), 1, 1000, "N",
     "how often each is timed, behind one run that does not count (default 5)"},
    {"requests", 0, OPTION_INTEGER, OF_BENCH, AT(requests), 1, 100000, "N",
     "time N requests at once to the engine of quern serve, each of -p tokens and -n generated"},
    {"parallel", 0, OPTION_INTEGER, OF_BENCH, AT(parallel), 1, 4096, "N",
     "of --requests so many run side by side, at most; also -np N (default: all)"},
    {"load", 0, OPTION_FLAG, OF_BENCH, AT(load), 0, 0, NULL,
     "time loading, from files in the page cache; a --shape's are written to $TMPDIR before"},
    {"shape", 0, OPTION_STRING, OF_BENCH, AT(shape), 0, 0, "SHAPE",
     "random weights in the place of -m: a config.json, or llama-1b, llama-8b, qwen3-0.6b"},
    {"type", 0, OPTION_STRING, OF_BENCH, AT(type), 0, 0, "TYPE",
     "how --shape's weights are written: bf16 (default), f16, f32, q4_0, q8_0, q4_k, "
     "affine4-g64-bf16 ..."},
    {"head-type", 0, OPTION_STRING, OF_BENCH, AT(head_type), 0, 0, "TYPE",
     "and its embedding and head (default: q6_k where --type has fewer bits, as llama.cpp)"},
    {"output", 'o', OPTION_STRING, OF_BENCH, AT(output), 0, 0, "FORM", "md (default), csv or json"},
    {"no-ceilings", 0, OPTION_FLAG, OF_BENCH, AT(no_ceilings), 0, 0, NULL,
     "do not measure what the machine can do at best"},
    {"prompt", 'p', OPTION_STRING, OF_TOKENIZE, AT(prompt), 0, 0, "TEXT",
     "the text; without it FILE or standard input"},
    {"prompt", 'p', OPTION_STRING, OF_TEXTS, AT(prompt), 0, 0, "TEXT",
     "one text, in the place of FILE"},
    {"split", 0, OPTION_STRING, OF_CLASSIFY | OF_EMBED, AT(split), 0, 0, "KIND",
     "FILE's texts are its lines (default), its words, jsonl (default where it is called that), or "
     "none: it is one"},
    {"chat", 0, OPTION_FLAG, OF_TEXTS, AT(in_chat), 0, 0, NULL,
     "each text is a user's message, in the model's chat format"},
    {"label", 'l', OPTION_LABEL, OF_CLASSIFY, AT(labels), 0, 0, "TEXT",
     "how probable is TEXT behind each text, among all labels? To be repeated"},
    {"top", 0, OPTION_INTEGER, OF_CLASSIFY, AT(top), 1, 1000, "N",
     "without labels: the N most probable next tokens (default 5)"},
    {"pooling", 0, OPTION_STRING, OF_EMBED, AT(pooling), 0, 0, "KIND",
     "mean over a text's tokens (default), or last"},
    {"embd-normalize", 0, OPTION_INTEGER, OF_EMBED, AT(embd_normalize), -1, 2, "N",
     "2: the vector has length 1 (default), 1: sizes sum to 1, 0: the largest is 32760, -1: as it "
     "is"},
    {"embd-output-format", 0, OPTION_STRING, OF_EMBED, AT(embd_form), 0, 0, "FORM",
     "raw: a text's numbers on a line (default); json as OpenAI has it, array, jsonl"},
    {"output", 'o', OPTION_STRING, OF_EMBED, AT(output), 0, 0, "FILE",
     "write all vectors as one array, to a .npy, .npz or .safetensors file"},
    {"output", 'o', OPTION_STRING, OF_INSPECT, AT(output), 0, 0, "FILE",
     "write queries and keys to a .npz or .safetensors file"},
    {"picture", 0, OPTION_STRING, OF_INSPECT, AT(picture), 0, 0, "FILE",
     "write the attention of one head to a .svg file"},
    {"layer", 0, OPTION_INTEGER, OF_INSPECT, AT(layer), 0, 999, "N",
     "the layer, from 0 on (default: -o all, --picture 0)"},
    {"head", 0, OPTION_INTEGER, OF_INSPECT, AT(head), 0, 99999, "N",
     "the query head of --picture, from 0 on (default 0)"},
    {"prompt", 'p', OPTION_STRING, OF_TEMPLATE, AT(prompt), 0, 0, "TEXT",
     "a user's message, in the place of FILE"},
    {"system", 0, OPTION_STRING, OF_RUN | OF_TEMPLATE | OF_BACKENDS, AT(system), 0, 0, "TEXT",
     "the system message"},
    {"max-tokens", 'n', OPTION_INTEGER, OF_SAMPLE | OF_SET | OF_BACKENDS, AT(settings.max_tokens),
     1, 1e9, "N", "stop after this many tokens (default: the model's limit, or when it ends)"},
    {"context", 'c', OPTION_INTEGER, OF_SAMPLE | OF_INFO, AT(context), 1, 1 << 30, "N",
     "positions at most (default: the model's)"},
    {"prompt-lookup-num-tokens", 0, OPTION_INTEGER, OF_GUESS | OF_SET, AT(prompt_lookup), 0, 64,
     "N",
     "guess up to N tokens from what the text repeats and check them in one step: the same "
     "text, sooner (default 0)"},
    {"draft-model", 0, OPTION_STRING, OF_GUESS, AT(draft_model), 0, 0, "MODEL",
     "a smaller model of the same tokens, which guesses what -m will say: the same text, sooner "
     "where it guesses well"},
    {"num-draft-tokens", 0, OPTION_INTEGER, OF_GUESS | OF_SET, AT(draft_tokens), 0, 64, "N",
     "and so many tokens at once, at most (default 8)"},
    {"prompt-cache", 0, OPTION_STRING, OF_GENERATE, AT(prompt_cache), 0, 0, "FILE",
     "keep the prompt's keys and values in FILE; a prompt that begins alike runs the rest alone"},
    {"prompt-cache-all", 0, OPTION_FLAG, OF_GENERATE, AT(prompt_cache_all), 0, 0, NULL,
     "and those of the reply"},
    {"prompt-cache", 0, OPTION_STRING, OF_CHAT, AT(prompt_cache), 0, 0, "FILE",
     "at the end, keep the conversation with its keys and values in FILE; if it is there, go on "
     "from it, "
     "without running it again"},
    {"prompt-cache-ro", 0, OPTION_FLAG, OF_MODEL, AT(prompt_cache_ro), 0, 0, NULL,
     "use the file, but leave it as it is"},
    {"cache-type-k", 0, OPTION_STRING, OF_CACHE, AT(cache_type_k), 0, 0, "TYPE",
     "how keys are kept: f32, bf16, f16, q8_0, q4_0, affine8-g64-bf16 ... (default: bf16; models "
     "in f16 and quantised GGUF: f16 on a GPU; else f32)"},
    {"cache-type-v", 0, OPTION_STRING, OF_CACHE, AT(cache_type_v), 0, 0, "TYPE", "and values"},
    {"kv-bits", 0, OPTION_INTEGER, OF_CACHE, AT(kv_bits), 2, 8, "N",
     "keys and values in affine groups of N bits: 2, 3, 4, 5, 6 or 8"},
    {"kv-group-size", 0, OPTION_INTEGER, OF_CACHE, AT(kv_group_size), 32, 128, "N",
     "numbers of such a group: 32, 64 (default) or 128"},
    {"context", 'c', OPTION_INTEGER, OF_SERVE, AT(context), 1, 1 << 30, "N",
     "positions of a request at most, prompt and reply (default: the model's)"},
    {"stdio", 0, OPTION_FLAG, OF_SERVE, AT(stdio), 0, 0, NULL,
     "not HTTP: JSON Lines on standard input and output, for the program that starts it"},
    {"host", 0, OPTION_STRING, OF_SERVE | OF_HTTP, AT(host), 0, 0, "HOST",
     "where to listen (default 127.0.0.1, for this machine alone)"},
    {"port", 0, OPTION_INTEGER, OF_SERVE | OF_HTTP, AT(port), 0, 65535, "N",
     "the port (default 8080; 0: any that is free)"},
    {"api-key", 0, OPTION_WORDS, OF_SERVE | OF_HTTP, AT(keys), 0, 0, "KEY",
     "clients need a key; may be repeated. Others can see it in the list of processes: "
     "--api-key-file or QUERN_API_KEY hide it"},
    {"api-key-file", 0, OPTION_STRING, OF_SERVE | OF_HTTP, AT(key_file), 0, 0, "FILE",
     "clients need one of the keys in FILE, one a line"},
    {"alias", 'a', OPTION_STRING, OF_SERVE | OF_HTTP, AT(alias), 0, 0, "NAME",
     "the model's name for clients (default: that of -m)"},
    {"allow-host", 0, OPTION_WORDS, OF_SERVE | OF_HTTP, AT(hosts), 0, 0, "NAME",
     "a name that clients use for this machine, beside localhost and addresses; may be repeated"},
    {"allow-origin", 0, OPTION_WORDS, OF_SERVE | OF_HTTP, AT(origins), 0, 0, "ORIGIN",
     "web pages of ORIGIN (https://example.org) may ask, beside those of this machine; may be "
     "repeated"},
    {"insecure", 0, OPTION_FLAG, OF_SERVE | OF_HTTP, AT(insecure), 0, 0, NULL,
     "listen beyond this machine without a key, too"},
    {"context", 'c', OPTION_INTEGER, OF_EVAL, AT(context), 3, 1 << 30, "N",
     "tokens of a chunk (default 512)"},
    {"stride", 0, OPTION_INTEGER, OF_EVAL, AT(stride), 1, 1 << 30, "N",
     "chunks begin N tokens apart and the newest N are scored (default: see above)"},
    {"chunks", 0, OPTION_INTEGER, OF_EVAL, AT(chunks), 1, 1 << 30, "N",
     "stop after this many chunks"},
    {"rotate", 0, OPTION_FLAG, OF_MODEL, AT(rotate), 0, 0, NULL,
     "go on beyond the context: forget the oldest tokens but the first 4"},
    {"output", 'o', OPTION_STRING, OF_CONVERT, AT(output), 0, 0, "OUT",
     "a GGUF file where the name ends in .gguf, else a directory of safetensors"},
    {"type", 0, OPTION_STRING, OF_CONVERT, AT(type), 0, 0, "TYPE",
     "GGUF: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k_s/m/l q4_k_s/m q5_k_s/m q6_k iq4_nl "
     "iq4_xs mxfp4 tq1_0 tq2_0, and of ternary models i2_s (default: weights stay as they are)"},
    {"bits", 0, OPTION_INTEGER, OF_CONVERT, AT(bits), 2, 8, "N",
     "directory: MLX's quantised weights of 2, 3, 4, 5, 6 or 8 bits (default: not quantised)"},
    {"group-size", 0, OPTION_INTEGER, OF_CONVERT, AT(group_size), 32, 128, "N",
     "with --bits: 32, 64 or 128 weights share a scale and a bias (default 64)"},
    {"mode", 0, OPTION_STRING, OF_CONVERT, AT(mode), 0, 0, "MODE",
     "directory: affine, which needs --bits (default), or mxfp4, of 4 bits in groups of 32"},
    {"dtype", 0, OPTION_STRING, OF_CONVERT, AT(dtype), 0, 0, "TYPE",
     "directory: f32, f16 or bf16 of what is not quantised (default: the model's)"},
    {"keep-head", 0, OPTION_FLAG, OF_CONVERT, AT(keep_head), 0, 0, NULL,
     "the head (output, lm_head) and the embedding keep the type that they have in MODEL"},
    {"override", 0, OPTION_OVERRIDE, OF_CONVERT, AT(overrides), 0, 0, "PATTERN=TYPE",
     "matrices whose name in OUT the regular expression PATTERN finds get TYPE (in a directory: "
     "bits, or dense); may be repeated, the first counts"},
    {"shard-size", 0, OPTION_SIZE, OF_CONVERT, AT(shard_size), 0, 0, "SIZE",
     "files of SIZE bytes of weights at most, such as 500M or 2G (default: one file)"},
    {"packed", 0, OPTION_FLAG, OF_CONVERT, AT(packed), 0, 0, NULL,
     "directory for quern alone: weights, as they are or of --type or --bits, lie as in memory, "
     "and "
     "load at once"},
    {"force", 0, OPTION_FLAG, OF_CONVERT | OF_BATCH, AT(force), 0, 0, NULL,
     "replace what is there"},
    {"threads", 't', OPTION_INTEGER, OF_RUN | OF_INFO | OF_CONVERT | OF_EVAL | OF_SERVE | OF_TRAIN,
     AT(threads), 1, 1024, "N", "CPU threads (default: the CPUs it may use)"},
    {"temp", 0, OPTION_NUMBER, OF_SAMPLE | OF_SET | OF_BACKENDS, AT(settings.temperature), 0, 1e6,
     "X", "temperature; 0 always takes the most probable token"},
    {"top-k", 0, OPTION_INTEGER, OF_SAMPLE | OF_SET | OF_BACKENDS, AT(settings.top_k), 0, INT32_MAX,
     "N", "sample from the N most probable tokens; 0: all"},
    {"top-p", 0, OPTION_NUMBER, OF_SAMPLE | OF_SET | OF_BACKENDS, AT(settings.top_p), 0, 1, "X",
     "sample from the most probable tokens that sum to X; 1: all"},
    {"min-p", 0, OPTION_NUMBER, OF_SAMPLE | OF_SET | OF_BACKENDS, AT(settings.min_p), 0, 1, "X",
     "leave out tokens less probable than X times the most probable"},
    {"repeat-penalty", 0, OPTION_NUMBER, OF_SAMPLE | OF_SET, AT(settings.repeat_penalty), 1e-3, 1e3,
     "X", "make the last 64 tokens less probable; 1: off"},
    {"presence-penalty", 0, OPTION_NUMBER, OF_SAMPLE | OF_SET, AT(settings.presence_penalty), -1e3,
     1e3, "X", "take X off the logit of each token of the reply so far; 0: off"},
    {"frequency-penalty", 0, OPTION_NUMBER, OF_SAMPLE | OF_SET, AT(settings.frequency_penalty),
     -1e3, 1e3, "X", "take X off for each time that a token came in the reply; 0: off"},
    {"samplers", 0, OPTION_SAMPLERS, OF_SAMPLE | OF_SET, AT(settings.samplers), 0, 0, "NAMES",
     "steps in their order (default: penalties;top_p;min_p;top_k;temperature)"},
    {"logit-bias", 0, OPTION_BIAS, OF_SAMPLE, AT(settings.biases), 0, 0, "ID(+/-)X",
     "add X to the logit of token ID, or -inf to forbid it; may be repeated"},
    {"stop", 'r', OPTION_STOP, OF_SAMPLE, AT(settings.stops), 0, 0, "TEXT",
     "end before TEXT, in which \\n is a newline and \\\\ a backslash; may be repeated"},
    {"ignore-eos", 0, OPTION_FLAG, OF_SAMPLE, AT(settings.ignore_eos), 0, 0, NULL,
     "never draw the tokens that end a reply"},
    {"seed", 0, OPTION_INTEGER, OF_SAMPLE | OF_SET | OF_BACKENDS, AT(settings.seed), 0,
     9007199254740991, "N", "of the random numbers; the same seed gives the same text"},
    {"logprobs", 0, OPTION_INTEGER, OF_BATCH, AT(settings.logprobs), 0, 1000, "N",
     "log probabilities of each token and of the N most probable ones"},
    {"logprobs", 0, OPTION_INTEGER, OF_GENERATE, AT(settings.logprobs), 0, 1000, "N",
     "with --json: log probabilities of each token and of the N most probable ones"},
    {"raw", 0, OPTION_FLAG, OF_GENERATE | OF_BATCH | OF_BACKENDS, AT(raw), 0, 0, NULL,
     "continue the prompt without a chat format"},
    {"template-var", 0, OPTION_VARIABLE, OF_RUN | OF_TEMPLATE, AT(template_vars), 0, 0,
     "NAME=VALUE", "a variable for the model's chat template, JSON or text; may be repeated"},
    {"template-name", 0, OPTION_STRING, OF_RUN | OF_TEMPLATE | OF_TRAIN, AT(template_name), 0, 0,
     "NAME", "which of the model's chat templates (default: tool_use with tools, else default)"},
    {"tools", 0, OPTION_STRING, OF_TEMPLATE, AT(tools), 0, 0, "FILE",
     "a JSON array of tools for the template"},
    {"no-prompt", 0, OPTION_FLAG, OF_TEMPLATE, AT(no_prompt), 0, 0, NULL,
     "end behind the last message, without the beginning of a reply"},
    {"tokens", 0, OPTION_FLAG, OF_TEMPLATE, AT(tokens), 0, 0, NULL, "print token ids, not text"},
    {"no-special", 0, OPTION_FLAG, OF_TOKENIZE, AT(no_special), 0, 0, NULL,
     "without the tokens that the model wants around a text; with --decode, leave special ones "
     "out"},
    {"parse-special", 0, OPTION_FLAG, OF_RUN | OF_TEMPLATE | OF_TOKENIZE | OF_EVAL | OF_TRAIN,
     AT(parse_special), 0, 0, NULL,
     "special tokens that are written out in a text become those, as in transformers"},
    {"ids", 0, OPTION_FLAG, OF_TOKENIZE, AT(ids), 0, 0, NULL, "print the ids alone, on one line"},
    {"decode", 0, OPTION_FLAG, OF_TOKENIZE, AT(decode), 0, 0, NULL,
     "the input is ids, the output their text"},
    {"products", 0, OPTION_STRING, OF_RUN | OF_EVAL | OF_BENCH | OF_SERVE | OF_TRAIN, AT(products),
     0, 0, "KIND",
     "of linear layers: auto, or f32 for the weights' exact values, slower (default auto)"},
    {"batch-invariant", 0, OPTION_FLAG, OF_RUN | OF_EVAL | OF_BENCH | OF_SERVE, AT(batch_invariant),
     0, 0, NULL,
     "a token's logits have the same bits whatever is computed beside it, as on the CPU always; on "
     "CUDA prompts are slower"},
    {"backend", 0, OPTION_STRING, OF_RUN | OF_SERVE | OF_BACKENDS, AT(backend), 0, 0, "NAME",
     "what runs the model: native (default), or mlx_lm, which is Python's mlx-lm"},
    {"device", 0, OPTION_STRING, OF_RUN | OF_INFO | OF_EVAL | OF_BENCH | OF_SERVE | OF_TRAIN,
     AT(device), 0, 0, "NAME",
     "cpu (default), cuda:0 ..., or auto: the first GPU if there is one with room for the model, "
     "else the CPU"},
    {"gpu-layers", 0, OPTION_LAYERS, OF_RUN | OF_INFO | OF_EVAL | OF_BENCH | OF_SERVE | OF_TRAIN,
     AT(gpu_layers), 0, ALL_LAYERS, "N",
     "above 0, all or -1: the whole model runs on cuda:0, or on --device; auto: as --device auto; "
     "also -ngl N, --n-gpu-layers N"},
    {"memory-limit", 0, OPTION_SIZE, OF_RUN | OF_INFO | OF_EVAL | OF_BENCH | OF_SERVE | OF_TRAIN,
     AT(memory_limit), 0, 0, "SIZE",
     "refuse what would need more than SIZE bytes of the device's memory, such as 500M or 8G "
     "(default: none)"},
    {"wired-limit", 0, OPTION_SIZE, OF_RUN | OF_INFO | OF_EVAL | OF_BENCH | OF_SERVE | OF_TRAIN,
     AT(wired_limit), 0, 0, "SIZE",
     "on a GPU: page-lock SIZE bytes of the host's memory at most, and none where they are less "
     "than 1 MiB (default: 32 MiB)"},
    {"no-history", 0, OPTION_FLAG, OF_CHAT | OF_BACKENDS, AT(no_history), 0, 0, NULL,
     "neither read nor write the file of lines typed before"},
    {"json", 0, OPTION_FLAG, OF_GENERATE | OF_BACKENDS, AT(json), 0, 0, NULL,
     "one JSON object with text and figures"},
    {"json", 0, OPTION_FLAG, OF_TOKENIZE | OF_TEMPLATE | OF_INFO | OF_EVAL, AT(json), 0, 0, NULL,
     "one JSON object"},
    {"output", 'o', OPTION_STRING, OF_BATCH, AT(output), 0, 0, "FILE",
     "write the results to FILE, line by line (default: standard output)"},
    {"resume", 0, OPTION_FLAG, OF_BATCH, AT(resume), 0, 0, NULL,
     "go on behind the last whole line of -o FILE, as one run would have"},
    {"parallel", 0, OPTION_INTEGER, OF_BATCH | OF_SERVE | OF_HTTP, AT(parallel), 1, 4096, "N",
     "replies that are generated side by side, at most; also -np N (default 16)"},
    {"json", 0, OPTION_FLAG, OF_CLASSIFY, AT(json), 0, 0, NULL, "a JSON object on each line"},
    {"verbose", 0, OPTION_FLAG, OF_CLASSIFY | OF_EMBED, AT(verbose), 0, 0, NULL,
     "tokens and speed afterwards"},
    {"verbose", 0, OPTION_FLAG, OF_GENERATE, AT(verbose), 0, 0, NULL,
     "speed, plans and memory afterwards"},
    {"verbose", 0, OPTION_FLAG, OF_CHAT, AT(verbose), 0, 0, NULL,
     "tokens and speed after each reply, as /set stats on"},
};

enum { N_OPTIONS = sizeof table / sizeof *table };

const option *options_next(unsigned of, size_t *at)
{
    while (*at < N_OPTIONS)
        if (table[(*at)++].of & of)
            return &table[*at - 1];
    return NULL;
}

arguments options_defaults(void)
{
    return (arguments){.gpu_layers = -1,
                       .memory_limit = -1,
                       .wired_limit = -1,
                       .shard_size = -1,
                       .settings = qn__settings_begin(),
                       .context = -1,
                       .threads = -1,
                       .bits = -1,
                       .kv_bits = -1,
                       .prompt_lookup = -1,
                       .draft_tokens = -1,
                       .kv_group_size = -1,
                       .group_size = -1,
                       .stride = -1,
                       .chunks = -1,
                       .repeat = -1,
                       .parallel = -1,
                       .requests = -1,
                       .top = -1,
                       .layer = -1,
                       .head = -1,
                       .embd_normalize = 2,
                       .port = -1,
                       .iters = -1,
                       .batch_size = -1,
                       .steps_per_report = -1,
                       .steps_per_eval = -1,
                       .val_batches = 0,
                       .save_every = -1,
                       .max_seq_length = -1,
                       .rank = -1,
                       .grad_accumulation_steps = -1,
                       .num_layers = -1,
                       .warmup_steps = -1,
                       .lr_decay_steps = -1,
                       .patience = -1,
                       .learning_rate = NAN,
                       .alpha = NAN,
                       .weight_decay = NAN,
                       .max_grad_norm = NAN,
                       .val_split = NAN,
                       .beta1 = NAN,
                       .beta2 = NAN,
                       .eps = NAN,
                       .min_learning_rate = NAN,
                       .beta = NAN,
                       .label_smoothing = NAN,
                       .lora_dropout = NAN};
}

bool options_given(const option *o, const arguments *a)
{
    static const size_t sizes[] = {
        [OPTION_FLAG] = sizeof(bool),     [OPTION_INTEGER] = sizeof(int64_t),
        [OPTION_NUMBER] = sizeof(double), [OPTION_LAYERS] = sizeof(int64_t),
        [OPTION_SIZE] = sizeof(int64_t),  [OPTION_SAMPLERS] = sizeof(qn_sampling)};
    const arguments usual = options_defaults();
    size_t size =
        o->type < sizeof sizes / sizeof *sizes && sizes[o->type] ? sizes[o->type] : sizeof(void *);
    return memcmp((const char *)a + o->offset, (const char *)&usual + o->offset, size) != 0;
}

enum { LONGEST_WORD = 63 };

/* Levenshtein distance of two short words. */
static int distance(const char *a, const char *b)
{
    int row[LONGEST_WORD + 2];
    int n = (int)strlen(b);
    if (n > LONGEST_WORD)
        return LONGEST_WORD;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = replace < best ? replace : best;
        }
    }
    return row[n];
}

const char *options_nearest(const char *word, const char *const *names, size_t n)
{
    const char *nearest = NULL;
    int best = (int)strlen(word) / 3 + 2;
    for (size_t i = 0; i < n; i++)
        if (names[i] && distance(word, names[i]) < best) {
            best = distance(word, names[i]);
            nearest = names[i];
        }
    return nearest;
}

static const option *find_option(unsigned of, const char *name, size_t length)
{
    size_t at = 0;
    for (const option *o; (o = options_next(of, &at));)
        if (strlen(o->name) == length && !strncmp(o->name, name, length))
            return o;
    return NULL;
}

static const option *find_letter(unsigned of, char c)
{
    size_t at = 0;
    for (const option *o; (o = options_next(of, &at));)
        if (o->letter && o->letter == c)
            return o;
    return NULL;
}

/* Which other command has the option; NULL: none. */
static const char *other_user(const char *word)
{
    size_t n = word[1] == '-' ? strcspn(word + 2, "=") : 0;
    for (size_t i = 0; i < n_commands; i++)
        if (n ? find_option(commands[i].user.of, word + 2, n)
              : find_letter(commands[i].user.of, word[1]))
            return commands[i].user.name;
    return NULL;
}

static bool unknown(const option_user *user, const char *word)
{
    const char *ours, *other = other_user(word);
    if (foreign_option(word, &ours)) {
        fprintf(stderr, "quern %s: unknown option %s; ", user->name, word);
        foreign_advise(ours);
        return false;
    }
    if (other) {
        fprintf(stderr, "quern %s: %s is an option of quern %s\n", user->name, word, other);
        return false;
    }
    const char *names[N_OPTIONS + 1];
    size_t at = 0, n = 0;
    for (const option *o; (o = options_next(user->of, &at));)
        names[n++] = o->name;
    names[n++] = "help";
    char bare[64];
    snprintf(bare, sizeof bare, "%s", word + strspn(word, "-"));
    bare[strcspn(bare, "=")] = 0;
    const char *nearest = options_nearest(bare, names, n);
    fprintf(stderr, "quern %s: unknown option %s%s%s%s\n", user->name, word,
            nearest ? "; did you mean --" : "; see quern ", nearest ? nearest : user->name,
            nearest ? "?" : " --help");
    return false;
}

static bool bad_value(const option_user *user, const option *o, const char *text)
{
    fprintf(stderr, "quern %s: --%s: \"%s\" is not %s from %.16g to %.16g\n", user->name, o->name,
            text, o->type == OPTION_INTEGER ? "a whole number" : "a number", o->least, o->most);
    return false;
}

/* NAME=VALUE, where NAME is one that a template can say. */
static bool store_variable(const option_user *user, const option *o, const char *text, arguments *a)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    static const char *const ours[] = {"messages", "tools"};
    size_t n = strspn(text, letters), length = strcspn(text, "=");
    n = n ? n + strspn(text + n, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")
          : 0;
    bool fits = n && text[n] == '=';
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        fits = fits && !(strlen(ours[i]) == n && !strncmp(text, ours[i], n));
    for (size_t i = 0; fits && i < a->n_template_vars; i++)
        if (!strncmp(a->template_vars[i], text, n + 1)) { /* the last one counts */
            a->template_vars[i] = text;
            return true;
        }
    if (fits && a->n_template_vars == MOST_TEMPLATE_VARS)
        fprintf(stderr, "quern %s: --%s: more than %d of them\n", user->name, o->name,
                MOST_TEMPLATE_VARS);
    else if (!fits)
        fprintf(stderr, "quern %s: --%s: \"%.*s\" is not NAME=VALUE with a variable's NAME\n",
                user->name, o->name,
                (int)(length < 40 ? strlen(text) < 60 ? strlen(text) : 60 : 40), text);
    else
        a->template_vars[a->n_template_vars++] = text;
    return fits && a->template_vars[a->n_template_vars - 1] == text;
}

static bool too_many(const option_user *user, const option *o, size_t most)
{
    fprintf(stderr, "quern %s: --%s: more than %zu of them\n", user->name, o->name, most);
    return false;
}

/* \n, \t, \r and \\ become what they stand for, in place. */
static void unescape(char *text)
{
    static const char letters[] = "ntr\\", meant[] = "\n\t\r\\";
    char *to = text;
    for (; *text; text++) {
        const char *at = *text == '\\' && text[1] ? strchr(letters, text[1]) : NULL;
        *to++ = at ? meant[at - letters] : *text;
        text += at != NULL;
    }
    *to = 0;
}

static bool stored(const option_user *user, const option *o, const qn_error *err)
{
    if (err->code != QN_OK)
        fprintf(stderr, "quern %s: --%s: %s\n", user->name, o->name, err->message);
    return err->code == QN_OK;
}

/* The text is the program's own, which may be written to. */
static bool store_stop(const option_user *user, const option *o, const char *text, arguments *a)
{
    qn_error err = {0};
    unescape((char *)text);
    qn__settings_stop(&a->settings, text, &err);
    return stored(user, o, &err);
}

static bool store_samplers(const option_user *user, const option *o, const char *text, arguments *a)
{
    qn_error err = {0};
    qn_sampling_set_chain(&a->settings.samplers, text, &err);
    return stored(user, o, &err);
}

/* 15043+1, 15043-0.5, 2-inf */
static bool store_bias(const option_user *user, const option *o, const char *text, arguments *a)
{
    char *sign, *end;
    qn_error err = {0};
    long long id = strtoll(text, &sign, 10);
    bool fits = sign > text && *text != '-' && *text != '+' && id <= INT32_MAX &&
                (*sign == '+' || *sign == '-');
    double bias = fits ? strtod(sign, &end) : NAN;
    if (!fits || end == sign || *end || !(bias <= 1e6)) {
        fprintf(
            stderr,
            "quern %s: --%s: \"%.60s\" is not a token's number and what to add, as in 15043+1 or "
            "2-inf\n",
            user->name, o->name, text);
        return false;
    }
    qn__settings_bias(&a->settings, id, bias, &err);
    return stored(user, o, &err);
}

static bool store_override(const option_user *user, const option *o, const char *text, arguments *a)
{
    if (a->n_overrides == MOST_OVERRIDES)
        return too_many(user, o, MOST_OVERRIDES);
    a->overrides[a->n_overrides++] = text;
    return true;
}

static bool store_word(const option_user *user, const option *o, const char *text, arguments *a)
{
    words *w = (words *)((char *)a + o->offset);
    if (w->n == MOST_WORDS)
        return too_many(user, o, MOST_WORDS);
    if (!*text) {
        fprintf(stderr, "quern %s: --%s: the text is empty\n", user->name, o->name);
        return false;
    }
    if (o->type == OPTION_LABEL)
        unescape((char *)text);
    w->word[w->n++] = text;
    return true;
}

/* As users of llama.cpp say it; -1 is all there, too. */
static bool store_layers(const option_user *user, const option *o, const char *text, arguments *a)
{
    char *end;
    long long n = strtoll(text, &end, 10);
    if (!strcmp(text, "auto"))
        n = AUTO_LAYERS;
    else if (!strcmp(text, "all") || !strcmp(text, "-1"))
        n = ALL_LAYERS;
    else if (end == text || *end || n < 0 || n > ALL_LAYERS) {
        fprintf(stderr, "quern %s: --%s: \"%s\" is not a whole number from 0 to %d, all or auto\n",
                user->name, o->name, text, ALL_LAYERS);
        return false;
    }
    a->gpu_layers = n;
    return true;
}

/* "500M", "2G", "5GB"; thousands are 1000. 0: no size. */
static int64_t read_size(const char *text)
{
    static const char units[] = "KMG";
    char *end;
    unsigned long long n = *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0, scale = 1;
    const char *unit = n && *end ? strchr(units, *end & ~32) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        scale *= 1000;
    end += n && unit;
    if (n && (*end == 'B' || *end == 'b'))
        end++;
    return n && !*end && n <= INT64_MAX / scale ? (int64_t)(n * scale) : 0;
}

static bool store_size(const option_user *user, const option *o, const char *text, arguments *a)
{
    int64_t bytes = read_size(text);
    if (bytes)
        *(int64_t *)((char *)a + o->offset) = bytes;
    else
        fprintf(stderr,
                "quern %s: --%s: \"%.60s\" is not bytes, maybe with K, M or G behind them, such as "
                "500M\n",
                user->name, o->name, text);
    return bytes != 0;
}

static bool store(const option_user *user, const option *o, const char *text, arguments *a)
{
    char *end;
    void *place = (char *)a + o->offset;
    errno = 0;
    if (o->type == OPTION_VARIABLE)
        return store_variable(user, o, text, a);
    if (o->type == OPTION_LAYERS)
        return store_layers(user, o, text, a);
    if (o->type == OPTION_SIZE)
        return store_size(user, o, text, a);
    if (o->type == OPTION_SAMPLERS)
        return store_samplers(user, o, text, a);
    if (o->type == OPTION_STOP)
        return store_stop(user, o, text, a);
    if (o->type == OPTION_BIAS)
        return store_bias(user, o, text, a);
    if (o->type == OPTION_OVERRIDE)
        return store_override(user, o, text, a);
    if (o->type == OPTION_WORDS || o->type == OPTION_LABEL)
        return store_word(user, o, text, a);
    if (o->type == OPTION_STRING) {
        *(const char **)place = text;
        return true;
    }
    if (o->type == OPTION_INTEGER) {
        long long v = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)v < o->least || (double)v > o->most)
            return bad_value(user, o, text);
        *(int64_t *)place = v;
        return true;
    }
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v < o->least || v > o->most)
        return bad_value(user, o, text);
    *(double *)place = v;
    return true;
}

static bool take_operand(const option_user *user, const char *word, arguments *a)
{
    if (user->operand && !a->file) {
        a->file = word;
        return true;
    }
    if (user->operand)
        fprintf(stderr, "quern %s: \"%s\" is a second %s\n", user->name, word, user->operand);
    else
        fprintf(stderr, "quern %s: \"%s\" is no option%s\n", user->name, word,
                user->of & OF_GENERATE ? "; the prompt goes behind -p" : "");
    return false;
}

/* What users of llama.cpp may say, in the place of our own name. */
static const char *whole_name(const char *word)
{
    static const char *const names[][2] = {
        {"-np", "--parallel"}, {"-ngl", "--gpu-layers"}, {"--n-gpu-layers", "--gpu-layers"}};
    size_t n = strcspn(word, "=");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i][0]) == n && !strncmp(names[i][0], word, n))
            return names[i][1];
    return word;
}

/* argv[*i], and where it has a value of its own, also the next one. */
static bool parse_option(const option_user *user, int argc, char **argv, int *i, arguments *a)
{
    const char *word = whole_name(argv[*i]), *text = NULL, *ours;
    const option *o;
    if (word[1] != '-' && word[2] && foreign_option(word, &ours)) /* -ngl is not -n gl */
        return unknown(user, word);
    if (word[1] == '-') {
        const char *equals = strchr(argv[*i], '=');
        o = find_option(user->of, word + 2, strcspn(word + 2, "="));
        text = equals ? equals + 1 : NULL;
    } else { /* -n 5 or -n5 */
        o = find_letter(user->of, word[1]);
        text = word[2] ? word + 2 : NULL;
    }
    if (!o)
        return unknown(user, word);
    if (o->type == OPTION_FLAG) {
        if (text)
            fprintf(stderr, "quern %s: --%s takes no value, unlike %s\n", user->name, o->name,
                    word);
        else
            *(bool *)((char *)a + o->offset) = true;
        return !text;
    }
    if (!text && ++*i == argc) {
        fprintf(stderr, "quern %s: --%s needs a value\n", user->name, o->name);
        return false;
    }
    return store(user, o, text ? text : argv[*i], a);
}

bool options_parse(const option_user *user, int argc, char **argv, arguments *a, bool *help)
{
    *help = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            *help = true;
            return true;
        }
        bool is_option = word[0] == '-' && word[1];
        if (!(is_option ? parse_option(user, argc, argv, &i, a) : take_operand(user, word, a)))
            return false;
    }
    return true;
}

bool options_set(const option_user *user, const char *name, const char *value, arguments *a)
{
    const option *o = find_option(user->of, name, strlen(name));
    if (o)
        return store(user, o, value, a);
    const char *names[N_OPTIONS + 1];
    size_t at = 0, n = 0;
    for (const option *each; (each = options_next(user->of, &at));)
        names[n++] = each->name;
    names[n++] = "stats";
    const char *nearest = options_nearest(name, names, n);
    fprintf(stderr, "quern %s: there is no \"%s\" to set; %s%s%s\n", user->name, name,
            nearest ? "did you mean " : "/set lists the names", nearest ? nearest : "",
            nearest ? "?" : "");
    return false;
}

static void print_chain(const qn_sampler *chain, char *text, size_t room)
{
    static const char *const names[] = {"",
#define SAMPLER_TEXT(name, text) text,
                                        QN_SAMPLER_LIST(SAMPLER_TEXT)
#undef SAMPLER_TEXT
    };
    size_t n = 0;
    for (int i = 0; chain[i] != QN_SAMPLER_END && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%s", i ? ";" : "", names[chain[i]]);
}

const char *options_value(const option *o, const arguments *a, char *text, size_t room)
{
    const void *place = (const char *)a + o->offset;
    snprintf(text, room, "default");
    if (o->type == OPTION_SAMPLERS && a->settings.samplers.chain[0] != QN_SAMPLER_END)
        print_chain(a->settings.samplers.chain, text, room);
    if (o->type == OPTION_LAYERS && a->gpu_layers >= ALL_LAYERS)
        snprintf(text, room, a->gpu_layers == ALL_LAYERS ? "all" : "auto");
    else if ((o->type == OPTION_INTEGER || o->type == OPTION_LAYERS || o->type == OPTION_SIZE) &&
             *(const int64_t *)place >= 0)
        snprintf(text, room, "%lld", (long long)*(const int64_t *)place);
    else if (o->type == OPTION_NUMBER && !isnan(*(const double *)place))
        snprintf(text, room, "%g", *(const double *)place);
    return text;
}
