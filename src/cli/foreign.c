/* SPDX-License-Identifier: Apache-2.0
 *
 * What users of other tools type: the commands, options and chat commands of llama.cpp, ollama,
 * mlx-lm and transformers, with what quern has in their place. They are answered, not accepted: one
 * name a thing.
 */
#include "cli/foreign.h"

#include <stdio.h>
#include <string.h>

typedef struct translation {
    const char *theirs, *ours;
} translation;

#define LIST_OF_MODELS                                                                             \
    "hf cache, which lists the models of the Hugging Face cache; quern info -m MODEL describes "   \
    "one"

static const translation commands_of_others[] = {
    {"run", "quern chat, or quern generate -p TEXT; -m names the model"},
    {"cli", "quern chat, or quern generate -p TEXT"},
    {"complete", "quern generate --raw -p TEXT"},
    {"completion", "quern generate --raw -p TEXT"},
    {"gen", "quern generate"},
    {"run-batch", "quern batch"},
    {"embedding", "quern embed"},
    {"embeddings", "quern embed"},
    {"score", "quern classify"},
    {"ls", LIST_OF_MODELS},
    {"list", LIST_OF_MODELS},
    {"models", LIST_OF_MODELS},
    {"show", "quern info -m MODEL"},
    {"attention", "quern inspect"},
    {"pull", "hf download ORG/NAME; quern fetches nothing itself"},
    {"download", "hf download ORG/NAME; quern fetches nothing itself"},
    {"rm", "hf cache, which removes models from the Hugging Face cache"},
    {"encode", "quern tokenize"},
    {"decode", "quern tokenize --decode"},
    {"detokenize", "quern tokenize --decode"},
    {"server", "quern serve -m MODEL"},
    {"api", "quern serve -m MODEL"},
    {"ps", NULL},
    {"stop", NULL},
    {"create", NULL},
    {"push", NULL},
    {"quantize", "quern convert -m MODEL -o OUT.gguf --type TYPE"},
    {"export", "quern convert -m MODEL -o OUT"},
    {"finetune", "quern train"},
    {"lora", "quern train"},
    {"perplexity", "quern eval -m MODEL -f FILE"},
    {"evaluate", "quern eval -m MODEL -f FILE"},
    {"benchmark", "quern bench -m MODEL"},
};

static const translation options_of_others[] = {
    {"--main-gpu", "--device cuda:N"},
    {"--temperature", "--temp"},
    {"-temp", "--temp"},
    {"--ctx-size", "--context (-c)"},
    {"--ppl-stride", "--stride"},
    {"--adapter-path", "--adapter"},
    {"--save-path", "--output (-o)"},
    {"--export-gguf", "-o, with a name that ends in .gguf"},
    {"--gguf-path", "-o, with a name that ends in .gguf"},
    {"--dequantize", "--dtype f32, f16 or bf16"},
    {"--de-quantize", "--dtype f32, f16 or bf16"},
    {"--lora", "--adapter DIR, of PEFT's or mlx-lm's files"},
    {"--lora-modules", "--adapter DIR, once for each"},
    {"--model-draft", "--draft-model"},
    {"-md", "--draft-model"},
    {"--draft-max", "--num-draft-tokens"},
    {"--draft-n", "--num-draft-tokens"},
    {"--draft", "--num-draft-tokens"},
    {"--assistant-model", "--draft-model"},
    {"--kl-divergence", "--against MODEL, the model to compare with"},
    {"--repetitions", "--repeat (-r)"},
    {"--ctx", "--context (-c)"},
    {"--num-ctx", "--context (-c)"},
    {"--max-kv-size", "--context (-c) with --rotate"},
    {"--context-length", "--context (-c)"},
    {"--n-predict", "--max-tokens (-n)"},
    {"--predict", "--max-tokens (-n)"},
    {"--num-predict", "--max-tokens (-n)"},
    {"--max-new-tokens", "--max-tokens (-n)"},
    {"--max-length", "--max-tokens (-n)"},
    {"--n-parallel", "--parallel (-np)"},
    {"--embd-separator", "--split KIND"},
    {"--embedding", "the command quern embed"},
    {"--embeddings", "the command quern embed"},
    {"--labels", "--label (-l), once for each"},
    {"--input-file", "FILE, without an option"},
    {"--output-file", "--output (-o)"},
    {"--num-threads", "--threads (-t)"},
    {"--num-thread", "--threads (-t)"},
    {"--repetition-penalty", "--repeat-penalty"},
    {"--reverse-prompt", "--stop (-r)"},
    {"--stop-string", "--stop (-r)"},
    {"--stop-sequence", "--stop (-r)"},
    {"--sampling-seq", "--samplers"},
    {"--sampler-seq", "--samplers"},
    {"--n-probs", "--logprobs N with --json"},
    {"--top-logprobs", "--logprobs N with --json"},
    {"--system-prompt", "--system"},
    {"-sys", "--system"},
    {"-sysf", "--system \"$(cat FILE)\""},
    {"--system-prompt-file", "--system \"$(cat FILE)\""},
    {"--prompt-file", "--file (-f)"},
    {"--model-path", "--model (-m)"},
    {"--hf-repo", "--model (-m) ORG/NAME, of a model in the Hugging Face cache"},
    {"-hf", "--model (-m) ORG/NAME, of a model in the Hugging Face cache"},
    {"--chat-template", "--template-name, which chooses among the model's templates"},
    {"--chat-template-kwargs", "--template-var NAME=VALUE"},
    {"--chat-template-config", "--template-var NAME=VALUE"},
    {"--jinja", "nothing: the model's own template is always used"},
    {"--no-cnv", "generate --raw"},
    {"-no-cnv", "generate --raw"},
    {"-cnv", "the command quern chat"},
    {"--conversation", "the command quern chat"},
    {"--interactive", "the command quern chat"},
    {"-i", "the command quern chat"},
    {"--special", "--parse-special, for special tokens in a text"},
    {"--context-shift", "--rotate"},
    {"--greedy", "--temp 0"},
    {"--flash-attn", "nothing: attention is always computed that way"},
    {"--no-mmap", "nothing: files are read, never mapped"},
    {"--mmap", "nothing: files are read, never mapped"},
    {"--mlock", "nothing: files are read, never mapped"},
    {"--trust-remote-code", "nothing: no code of a model is ever run"},
    {"--format", "--json"},
    {"--log-disable", "nothing: there is no log"},
    {"--no-display-prompt", "nothing: the prompt is never repeated"},
    {"--version", "quern --version, without a command"},
    {"--verbose-prompt", "the command quern template"},
    {"--outfile", "--output (-o)"},
    {"--outtype", "--type"},
    {"--hf-path", "--model (-m)"},
    {"--mlx-path", "--output (-o)"},
    {"--q-bits", "--bits"},
    {"--q-group-size", "--group-size"},
    {"--q-mode", "--mode"},
    {"--split-max-size", "--shard-size SIZE"},
    {"--max-shard-size", "--shard-size SIZE"},
    {"--tensor-type", "--override PATTERN=TYPE"},
    {"--output-tensor-type", "--override '^output.weight=TYPE'"},
    {"--token-embedding-type", "--override token_embd=TYPE"},
    {"--leave-output-tensor", "--keep-head"},
    {"--revision", "-m ORG/NAME@REVISION"},
    {"-np", "--parallel"},
    {"--max-num-seqs", "--parallel"},
    {"--served-model-name", "--alias"},
    {"--api-keys", "--api-key"},
    {"--allowed-origins", "--allow-origin"},
    {"--cors-origins", "--allow-origin"},
    {"--max-model-len", "--context (-c)"},
    {"--cont-batching", "nothing: requests always run side by side"},
    {"--metrics", "nothing: /metrics is always there"},
    {"--train", "nothing: quern train does nothing else"},
    {"--lora-layers", "--num-layers"},
    {"--lora-r", "--rank"},
    {"--lora-rank", "--rank"},
    {"--lora-alpha", "--alpha"},
    {"--lora-target", "--target, once for each"},
    {"--target-modules", "--target, once for each"},
    {"--lr", "--learning-rate"},
    {"--lr-scheduler-type", "--lr-schedule"},
    {"--warmup", "--warmup-steps"},
    {"--optim", "--optimizer"},
    {"--epochs", "--iters, of steps: an epoch has as many as texts / --batch-size"},
    {"--num-train-epochs", "--iters, of steps: an epoch has as many as texts / --batch-size"},
    {"--max-steps", "--iters"},
    {"--per-device-train-batch-size", "--batch-size"},
    {"--gradient-accumulation-steps", "--grad-accumulation-steps"},
    {"--gradient-checkpointing", "--grad-checkpoint"},
    {"--max-seq-len", "--max-seq-length"},
    {"--save-steps", "--save-every"},
    {"--eval-steps", "--steps-per-eval"},
    {"--logging-steps", "--steps-per-report"},
    {"--output-dir", "--adapter-path (-o)"},
    {"--resume-from-checkpoint", "--resume"},
    {"--packing", "--pack"},
    {"--finetuning-type", "--fine-tune-type"},
    {"--full-finetune", "--full"},
    {"--train-on-completions", "--mask-prompt"},
    {"--dataset", "--data PATH"},
};

static const translation chat_commands_of_others[] = {
    {"/clear", "/reset"},
    {"/new", "/reset"},
    {"/bye", "/exit"},
    {"/quit", "/exit"},
    {"/q", "/exit"},
    {"/?", "/help"},
    {"/h", "/help"},
    {"/retry", "/regen"},
    {"/regenerate", "/regen"},
    {"/file", "/read FILE"},
    {"/open", "/load FILE"},
    {"/write", "/save FILE"},
    {"/stats", "/set stats on"},
    {"/params", "/set"},
    {"/parameters", "/set"},
    {"/sys", "/system TEXT"},
    {"/show", "quern info, outside the chat"},
};

static bool find(const translation *table, size_t n, const char *word, size_t length,
                 const char **ours)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].theirs) == length && !strncmp(table[i].theirs, word, length)) {
            *ours = table[i].ours;
            return true;
        }
    return false;
}

#define FIND(table, word, length) find(table, sizeof table / sizeof *table, word, length, ours)

bool foreign_command(const char *word, const char **ours)
{
    return FIND(commands_of_others, word, strlen(word));
}

bool foreign_option(const char *word, const char **ours)
{
    char dashed[40];
    size_t n = strcspn(word, "=");
    if (n >= sizeof dashed)
        return false;
    for (size_t i = 0; i < n; i++) /* --ctx_size */
        dashed[i] = word[i] == '_' ? '-' : word[i];
    return FIND(options_of_others, dashed, n);
}

bool foreign_chat_command(const char *word, const char **ours)
{
    return FIND(chat_commands_of_others, word, strlen(word));
}

void foreign_advise(const char *ours)
{
    static const char nothing[] = "nothing: ";
    if (!ours)
        fprintf(stderr, "quern has nothing like it yet\n");
    else if (!strncmp(ours, nothing, strlen(nothing)))
        fprintf(stderr, "leave it out: %s\n", ours + strlen(nothing));
    else
        fprintf(stderr, "use %s\n", ours);
}
