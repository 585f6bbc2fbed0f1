/* SPDX-License-Identifier: Apache-2.0
 *
 * The pre-tokenizers of GGUF files. A file has a name alone (tokenizer.ggml.pre); what it stands
 * for is what the model's own tokenizer.json has, so patterns are written as those are. Names and
 * models: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf_update.py
 */
#include "text/gguf_patterns.h"

#include <string.h>

/* ---- parts of patterns ----------------------------------------------------------------------- */

#define CONTRACTED          "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD                "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS               " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SIGNS_AND_SLASH     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define LINES               "\\s*[\\r\\n]+"
#define SPACES              "\\s+(?!\\S)|\\s+"
#define UPPER               "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define NO_HAN              "[^\\p{Han}]"
#define LOWER               "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"

/* cl100k's and those who took it over, by how many digits are a word */
#define LIKE_CL100K(digits) CONTRACTED "|" WORD "|" digits "|" SIGNS "|" LINES "|" SPACES
/* o200k's: words begin at capitals; `end` may follow a word */
#define LIKE_O200K(end, digits)                                                                    \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" end "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER          \
    "]+[" LOWER "]*" end "|" digits "|" SIGNS_AND_SLASH "|" LINES "|" SPACES
/* DeepSeek V3's last pattern, behind those of digits and of Chinese and Japanese */
#define LIKE_DEEPSEEK                                                                              \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES "|" SPACES
/* GPT-2's, where it does not come last */
#define CONTRACTED_GPT2                                                                            \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define IDEOGRAPHS_AND_KANA   "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+"
#define IDEOGRAPHS_AND_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* groups of three, counted from the right */
#define THREES                "\\d{1,3}(?=(?:\\d{3})*\\b)"
/* BLOOM's: runs without spaces and the punctuation of some languages */
#define LIKE_BLOOM            " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

/* DeepSeek LLM's letters: those with case, as they were when it was made */
#define CASED                                                                                      \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}"                 \
    "\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}"         \
    "\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}"                           \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}"                 \
    "\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}"          \
    "\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                  \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"         \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}"                  \
    "\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"                 \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"                 \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"         \
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

/* ---- the table ------------------------------------------------------------------------------- */

#define GPT2      .gpt2 = true
#define MERGELESS .ignore_merges = true

static const struct {
    const char *names; /* with spaces between them */
    qn__gguf_pre pre;
} rows[] = {
    {"default", {{"[\\p{P}\\$\\+<=>\\^~\\|]+", CONTRACTED_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}}},
    {"gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
     "jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4",
     {{0}, GPT2}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", {{"\\p{N}"}, GPT2}},
    {"falcon", {{"[\\p{P}\\$\\+<=>\\^~\\|`]+", CONTRACTED_GPT2, "[0-9][0-9][0-9]"}}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {{LIKE_CL100K("\\p{N}{1,3}")}, MERGELESS, .bos = true}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", {{LIKE_CL100K("\\p{N}{1,3}")}}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan grok-2 solar-open",
     {{LIKE_CL100K("\\p{N}")}}},
    {"qwen35",
     {{CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+"
                  "[\\r\\n]*|" LINES "|" SPACES}}},
    {"laguna", {{"[^\\n]+|[\\n]+", LIKE_CL100K("\\p{N}")}}},
    {"minicpm5", {{"\\p{N}{1,3}", LIKE_CL100K("\\p{N}+")}, MERGELESS}},
    {"seed-coder", {{CONTRACTED "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES "|" SPACES}}},
    {"bailingmoe bailingmoe2 llada-moe",
     {{"'(?i:[sdmt]|ll|ve|re)|" WORD "|\\p{N}|" SIGNS "|\\s*[\\r\\n]|" SPACES}}},
    {"exaone-moe",
     {{CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
                  "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|" SPACES}}},
    {"jais-2",
     {{CONTRACTED "|" WORD "|\\p{N}{1,3}|" SIGNS "|" LINES
                  "|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|"
                  "\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|"
                  "\\s{1,2}(?!\\S)|\\s{1}"}}},
    {"deepseek-llm",
     {{"[\\r\\n]", "\\s?[" CASED "]+",
       "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
       "\\s+$", IDEOGRAPHS_AND_HANGUL, "\\p{N}+"}}},
    {"deepseek-coder",
     {{"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", IDEOGRAPHS_AND_HANGUL, "\\p{N}"}}},
    {"deepseek-v3 hunyuan-dense joyai-llm", {{"\\p{N}{1,3}", IDEOGRAPHS_AND_KANA, LIKE_DEEPSEEK}}},
    {"afmoe",
     {{"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
       "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{8c48}-\\x{faff}\\x{3040}-\\x{30ff}"
       "\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{eff}\\x{1780}-\\x{17ff}"
       "\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}"
       "\\x{1100}-\\x{11ff}]+",
       LIKE_DEEPSEEK}}},
    {"tekken", {{LIKE_O200K("", "\\p{N}")}, MERGELESS, .bos = true}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {{LIKE_O200K(CONTRACTED "?", "\\p{N}{1,3}")}}},
    {"granite-embed-multi-97m", {{LIKE_O200K(CONTRACTED "?", "\\p{N}{1,3}")}, MERGELESS}},
    {"tiny_aya cohere2moe", {{THREES, LIKE_O200K(CONTRACTED "?", "\\p{N}{1,3}")}}},
    {"youtu",
     {{"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}"
       "\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|"
       "[\\x{3105}-\\x{312f}]+|" IDEOGRAPHS_AND_KANA,
       LIKE_O200K(CONTRACTED "?", "\\p{N}")},
      MERGELESS}},
    {"kimi-k2",
     {{"\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "&&" NO_HAN "]*[" LOWER "&&" NO_HAN "]+" CONTRACTED
       "?|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "&&" NO_HAN "]+[" LOWER "&&" NO_HAN "]*" CONTRACTED
       "?|\\p{N}{1,3}|" SIGNS "|" LINES "|" SPACES}}},
    {"superbpe", {{"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}}},
    {"bloom gpt3-finnish poro-chat", {{LIKE_BLOOM}}},
    {"viking", {{LIKE_BLOOM, "\\p{N}"}}},
    {"chameleon",
     {{"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
       "[\\p{P}!-/:-@\\[-`{-~]"},
      GPT2,
      .bos = true}},
    {"gemma4 sarvam-moe granite-embed-multi-311m", {{"[^\\n]+|[\\n]+"}, .characters = true}},
};

/* Whether `name` stands in a list of names. */
static bool is_listed(const char *names, const char *name, size_t n)
{
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, " ");
        if (length == n && !memcmp(at, name, n))
            return true;
        at += length + (at[length] != '\0');
    }
    return false;
}

bool qn__gguf_pre_named(const char *name, size_t n, qn__gguf_pre *out)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (is_listed(rows[i].names, name, n)) {
            *out = rows[i].pre;
            return true;
        }
    return false;
}

const char *qn__gguf_pre_names(size_t i)
{
    return i < sizeof rows / sizeof *rows ? rows[i].names : NULL;
}
