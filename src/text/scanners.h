/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-written matchers for the pre-tokenizer patterns that most models share: the same matches
 * as the regular expression, without an engine, and with exactly the Unicode tables of training.
 */
#ifndef QN_TEXT_SCANNERS_H
#define QN_TEXT_SCANNERS_H

#include <stddef.h>

/* The end of the match that begins at s[at], at < n, or `at` where none does (the patterns of
 * GPT-2, Llama 3, Qwen and o200k match everywhere). */
typedef size_t (*qn__scanner)(const char *s, size_t n, size_t at);

size_t qn__scan_gpt2(const char *s, size_t n, size_t at);
size_t qn__scan_llama3(const char *s, size_t n, size_t at); /* digits in groups of up to three */
size_t qn__scan_qwen(const char *s, size_t n, size_t at);   /* digits one by one */
size_t qn__scan_o200k(const char *s, size_t n, size_t at);  /* GPT-4o, gpt-oss: words by case */

/* The three patterns of DeepSeek V3, one after the other: numbers; Han and kana; the rest. */
size_t qn__scan_deepseek_numbers(const char *s, size_t n, size_t at);
size_t qn__scan_deepseek_cjk(const char *s, size_t n, size_t at);
size_t qn__scan_deepseek(const char *s, size_t n, size_t at);

/* The scanner for a pattern as a tokenizer.json spells it, or NULL. */
qn__scanner qn__scanner_for(const char *pattern);

#endif
