/* SPDX-License-Identifier: Apache-2.0
 *
 * The quern command: picks the subcommand.
 */
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/foreign.h"
#include "quern/quern.h"

#include <signal.h>
#include <string.h>

const command commands[] = {
    {{"generate", OF_GENERATE, NULL},
     "write text behind a prompt",
     "Writes text behind a prompt. The text goes to standard output, the rest to standard error.",
     "A chat model answers the prompt, through its own chat template where it has one; --raw "
     "continues it. What is piped in, or redirected from a file, follows the prompt of -p or -f, "
     "or is the prompt; where standard input belongs to something else, as in a shell's loop, "
     "</dev/null keeps it. Ctrl-C stops, also in the middle of a long prompt. With --rotate text "
     "goes on beyond the context: each token then sees the first 4 and the newest ones, as many "
     "in all as the context holds.",
     command_generate},
    {{"chat", OF_CHAT, NULL},
     "talk with a model",
     "A conversation: a message a line, and the model's replies. /help lists the commands.",
     "A line that ends in a backslash goes on in the next one; \"\"\" at the beginning of a line "
     "begins a message of several lines, which \"\"\" at the end of one ends. Pasted text may "
     "have several lines, too; Enter sends it. A line that begins with / is a command; Tab "
     "completes it, and the names of files, in which ~ is at home. On a terminal replies are "
     "broken between words, but for what stands between ``` lines. Ctrl-C stops a reply; at the "
     "prompt it drops the line, and a second one, or Ctrl-D, ends the chat. Where standard input "
     "is no terminal there are no prompts: messages and commands are read line by line, and "
     "replies alone go to standard output. /save writes the messages, as JSON; /sleep, and "
     "--prompt-cache at the end, the keys and values, too, so that /wake, or the same option, goes "
     "on without running anything again: with the same model, template and types of cache. Where "
     "they differ, /load takes the messages of either file, which then run anew.",
     command_chat},
    {{"tokenize", OF_TOKENIZE, "FILE"},
     "show a text's tokens, or the text of tokens",
     "Prints the token ids of a text, each with its piece as the tokenizer's file spells it.",
     "Text comes from -p, from FILE, or from standard input; all of its bytes count. With "
     "--decode it is ids, apart by spaces or commas.",
     command_tokenize},
    {{"template", OF_TEMPLATE, "FILE"},
     "show what a chat becomes for the model",
     "Renders a conversation, from a JSON FILE of messages or -p, with the model's chat template.",
     "FILE holds an array of messages, or an object with \"messages\" and maybe \"tools\"; - is "
     "standard input.",
     command_template},
    {{"info", OF_INFO, NULL},
     "describe a model, without loading it",
     "Prints what a model is, what memory it needs and which kernels serve it; reads its "
     "headers, not its weights.",
     "Memory is that of the weights and of a cache of --context positions; a run needs some more "
     "for intermediate values.",
     command_info},
    {{"convert", OF_CONVERT, NULL},
     "write a model in another format or type",
     "Writes MODEL as a GGUF file for llama.cpp and others, or as a directory of safetensors.",
     "The source is whatever -m takes: a directory (safetensors, PyTorch's .bin, npz) or a GGUF "
     "file. In GGUF the types are llama.cpp's recipes: q4_k_m gives some matrices more bits, the "
     "head q6_k, and takes another type where a row is no whole number of blocks. From a GGUF file "
     "everything but the type of the weights is copied. The output appears whole or not at all, "
     "and the same command writes the same bytes again. --keep-head leaves the head, and the "
     "embedding, in the type that they have in MODEL; --override 'output=q8_0' gives the head "
     "another one.",
     command_convert},
    {{"fuse", OF_CONVERT, NULL},
     "write a model with an adapter in its weights",
     "Writes MODEL with what adapters add to its layers added to their weights, for programs that "
     "take no adapters.",
     "As quern convert with --adapter: a GGUF file or a directory, in any type. Quantised weights "
     "are read, added to and quantised again, which costs some of what the adapter learned: where "
     "there is room, --dtype or --type f16 or bf16 keeps it. A model that was trained on quantised "
     "weights fits these best.",
     command_fuse},
    {{"eval", OF_EVAL, NULL},
     "how well a model tells a text, or how far it is from another model",
     "Prints the perplexity of a text; with --against also the KL divergence from another model.",
     "The text's tokens are cut into chunks of --context tokens, each read from its beginning; "
     "what "
     "is left over at the end is left out. Without --stride chunks stand side by side and the "
     "second half of each is scored: context - context / 2 - 1 tokens, as llama-perplexity does. "
     "With it chunks begin so many tokens apart and the newest of each are scored, so that none "
     "counts twice. Where the model wants a token before a text, it stands in the place of each "
     "chunk's first. The divergence is that of the first model from the second, in nats: the "
     "mean of the sum of p log(p / q), where p is what --against says and q what -m says. "
     "--against-products f32 alone compares a model with its own exact values.",
     command_eval},
    {{"bench", OF_BENCH, NULL},
     "time a model, or random weights of its shape",
     "Times prompts (pp) and generation (tg), beside what the machine can do at best.",
     "Every LIST is numbers apart by commas; each combination is a row: pp512 runs a prompt of 512 "
     "tokens, tg64 generates 64 tokens one by one, @ d1024 says that 1024 tokens came before. "
     "Speeds are tokens a second, the median of --repeat runs, with the slowest and the fastest; "
     "with --batch they count the tokens of all sequences. GB/s are the bytes of weights that "
     "generation reads, GOP/s the multiplications and additions of linear layers in a prompt; "
     "behind them is their share of the device's ceiling: of reading, or of the fastest products "
     "that there are for weights in floats or in blocks. "
     "With --requests a row is one run of all of them, added at once: output tokens a second until "
     "the last is done, and in milliseconds the time to a request's first token and from each "
     "token to the next, median and 99th percentile. With --load it is the time from files to the "
     "device, beside the rate at which the host's memory is copied there at best. "
     "Ceilings are measured by small loops before and behind the rows: reading memory, and "
     "multiplying, on a CPU with the instructions of the tier in use, on a GPU in bf16 for as long "
     "as it takes to slow down to what it keeps up.",
     command_bench},
    {{"batch", OF_BATCH, "FILE"},
     "answer a file of prompts or chats, many at a time",
     "Answers each line of a FILE of JSON Lines; results come in the same order, a line each.",
     "A line is an object with \"prompt\", which is what -p is to quern generate (or an array of "
     "token ids), or with \"messages\" and maybe \"tools\"; or a request of OpenAI's batches, "
     "whose \"body\" is such an object (one for /v1/completions is continued without a chat "
     "format). It may have a \"custom_id\", and what it says of max_tokens "
     "(max_completion_tokens, n_predict), temperature, top_k, top_p, min_p, repeat_penalty, "
     "repeat_last_n, presence_penalty, frequency_penalty, samplers, seed, stop, logit_bias, "
     "ignore_eos, logprobs, top_logprobs and chat_template_kwargs counts in the place of the "
     "options; \"model\" is not looked at. Any other field is that line's error. A result has "
     "index, custom_id, text, finish_reason and usage, or error; an error in a line does not stop "
     "the others, and the exit "
     "status is then 1. A line without a seed draws with --seed, or 0, plus its index: the same "
     "lines give the same results, however many run side by side (on CUDA with --batch-invariant). "
     "With -o the results are in a "
     "file that a run that was cut off may be continued in, by the same command with --resume. "
     "Requests that could fill the whole context reserve room for that: -n or -c lets more run at "
     "once.",
     command_batch},
    {{"classify", OF_CLASSIFY, "FILE"},
     "how probable labels or next tokens are behind texts",
     "Prints how probable each --label is behind each text, or the most probable next tokens.",
     "Texts are the lines of FILE, its words, or JSON Lines: a text, an array of token ids, or an "
     "object with \"text\" (also called prompt or input) or \"messages\", and maybe a "
     "\"custom_id\". A label's tokens are those of its text alone, so one that begins a word "
     "begins "
     "with a space; its logprob is the sum of theirs behind the text, and probabilities are among "
     "the labels. Without labels there are the --top most probable tokens with the logarithms of "
     "their probabilities. Texts of any lengths run side by side in full steps; the numbers are "
     "those that each would get alone (on CUDA with --batch-invariant).",
     command_classify},
    {{"embed", OF_EMBED, "FILE"},
     "a vector for each text",
     "Prints the mean or last hidden state of each text, behind the model's last norm.",
     "Texts are those of quern classify. The output is for all texts or none: one that cannot be "
     "read ends the run.",
     command_embed},
    {{"inspect", OF_INSPECT, "FILE"},
     "queries and keys inside attention, and a picture of it",
     "Writes the queries and keys of a text, from FILE or -p, or what one head makes of them.",
     "Arrays are layers.N.q [heads, tokens, head_dim] and layers.N.k [key heads, tokens, "
     "head_dim], f32, as they go into the scores: after their norm and rope, where the model has "
     "them; query head H reads key head H * (key heads) / (heads). ids are the tokens. The picture "
     "has a square a pair of tokens, the darker the more of the column's token goes into what the "
     "row's reads; rows sum to 1.",
     command_inspect},
    {{"serve", OF_SERVE, NULL},
     "answer other programs over HTTP, as OpenAI's servers do",
     "Serves a model at /v1/chat/completions and /v1/completions, to many clients at once.",
     "Further paths are /v1/models, /health (which needs no key) and /metrics (for Prometheus). "
     "Clients are those of OpenAI's API, with http://127.0.0.1:8080/v1 as its base URL; a field of "
     "a request that is not known here is refused by its name. Requests run side by side, each "
     "with the reply that it would get alone (on CUDA with --batch-invariant); beginnings that "
     "they share run once. Sampling that a "
     "request leaves open is the model's own. It listens on this machine alone unless --host says "
     "otherwise, which needs a key. There is no TLS: a proxy in front has it. One line a request "
     "goes to standard error, with counts and times, never with what was asked. SIGTERM and Ctrl-C "
     "end it, with status 0: what was begun may go on for 30 seconds. With --stdio it is there for "
     "the program that starts it, by JSON objects, a line each, on standard input and output: "
     "{\"cmd\":\"load\",\"path\":...} answers ok, model_type and vocab_size; generate, with a "
     "prompt (which is continued), and chat, with messages of role and content, answer token and "
     "token_id for each token (-1 for text that was held back) and then done, with what ended it "
     "as finish; they take the settings of quern batch. info describes the model, cancel ends the "
     "replies that run and wait (or answers done, with finish idle), quit ends all, as does the "
     "end of input when it has been answered. What cannot be is answered by error.",
     command_serve},
    {{"train", OF_TRAIN, NULL},
     "teach a model texts, as an adapter or all of it",
     "Trains a LoRA adapter of MODEL on texts and writes it as PEFT does; --adapter uses it. With "
     "--full it trains MODEL itself, or one from nothing, and writes a Hugging Face directory.",
     "A line of --data is an object with \"text\", which is learned with the token behind it that "
     "ends texts; with \"prompt\" and \"completion\"; or with \"messages\" and maybe \"tools\", "
     "which become what the model's chat template makes of them. --mask-prompt learns completions "
     "and last messages alone. All lines are read before training begins: each that cannot be used "
     "is named, and then nothing is trained. The texts come in an order that --seed shuffles "
     "anew each time that all have come. A line of progress on standard error has the mean loss "
     "of the steps since the one before, in nats a token. Numbers are those of one thread, however "
     "many there are. Ctrl-C ends it behind a step, which is saved, with status 130; a second one "
     "ends it at once. "
     "The same command with --resume goes on from what was saved last, after Ctrl-C or anything "
     "else, and ends with the same bytes as one that was never cut off; it names what is not the "
     "same any more: the model, the texts, an option. "
     "The model's own weights, which may be quantised, stay as they are. With --full they are "
     "trained, as f32, and written in the model's type; then they may not be quantised.",
     command_train},
};

const size_t n_commands = sizeof commands / sizeof *commands;

enum { MOST_COMMANDS = sizeof commands / sizeof *commands };

static int run_command(const command *c, int argc, char **argv)
{
    arguments a = options_defaults();
    bool help;
    int code = 0;
    if (!options_parse(&c->user, argc, argv, &a, &help))
        code = 2;
    else if (help)
        help_command(c);
    else if (!backend_fits(&c->user, &a))
        code = 2;
    else
        code = c->run(&a);
    qn__settings_free(&a.settings);
    return code;
}

static int print_page(const char *name)
{
    if (name && help_page(name))
        return 0;
    fprintf(stderr, "quern: --man: there is no page \"%s\"\n", name ? name : "");
    return 2;
}

static int print_completions(const char *shell)
{
    if (shell && help_completions(shell))
        return 0;
    fprintf(stderr, "quern: --completions: it is bash, zsh or fish, not \"%s\"\n",
            shell ? shell : "");
    return 2;
}

static const command *find_command(const char *name)
{
    const char *names[MOST_COMMANDS];
    for (size_t i = 0; i < n_commands; i++) {
        names[i] = commands[i].user.name;
        if (!strcmp(name, names[i]))
            return &commands[i];
    }
    const char *ours;
    if (foreign_command(name, &ours)) {
        fprintf(stderr, "quern: unknown command \"%s\"; ", name);
        foreign_advise(ours);
        return NULL;
    }
    const char *nearest = options_nearest(name, names, n_commands);
    fprintf(stderr, "quern: unknown command \"%s\"%s%s%s\n", name,
            nearest ? "; did you mean " : "; see quern --help", nearest ? nearest : "",
            nearest ? "?" : "");
    return NULL;
}

/* `quern help`, with or without a command. */
static int print_help(const char *name)
{
    if (!name) {
        help_overview(stdout);
        return 0;
    }
    const command *c = find_command(name);
    if (c)
        help_command(c);
    return c ? 0 : 2;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        help_overview(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("quern %s\n", qn_version());
        return 0;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return print_help(argv[2]);
    if (!strcmp(argv[1], "--man"))
        return print_page(argv[2]);
    if (!strcmp(argv[1], "--completions"))
        return print_completions(argv[2]);
    const command *c = find_command(argv[1]);
    return c ? run_command(c, argc - 1, argv + 1) : 2;
}

/* What was printed must have arrived: a full disk is a failure, whatever the command thought. */
int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_DFL); /* where nobody reads any more, this ends, too, and quietly */
    int status = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        fprintf(stderr, "quern: standard output cannot be written\n");
        return 1;
    }
    return status;
}
