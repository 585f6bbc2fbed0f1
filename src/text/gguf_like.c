/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of GGUF's names for pre-tokenizers fits a tokenizer.json.
 *
 * Problem: the file has patterns, GGUF has a name, and the same rule is written in several ways.
 * Approach: both cut a text that has what the rules differ in, and the first name whose cuts are
 * the same is it. (llama.cpp's converter does so too, with hashes of ids, for the models it knows.)
 */
#include "text/gguf_patterns.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* Runs of letters of both cases, of digits of every length, contractions in both cases, signs of
 * several kinds before and behind letters, line ends with spaces around, and scripts that some
 * patterns name. */
static const char probe[] =
    "Hello world  and   more\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\r\n\r\n x\n"
    "3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 1,234,567.89 \xd9\xa3\xd9\xa4 x1y22z333\n"
    "I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D you like tea? We'Ve "
    "a'lL "
    "don\xe2\x80\x99t O'Neill 's's ''''''```````\"\"\"\"......!!!!!!??????\n"
    "CamelCase HTTPServer iPhone snake_case __init__ fooBarBAZ \xc3\x89t\xc3\xa9 na\xc3\xafve "
    "Stra\xc3\x9f"
    "e \xce\xa9mega e\xcc\x81 \xd0\xbd\xd0\xb5\xd1\x89\xd0\xbe \xd0\x9d\xd0\x90 #tag "
    "@me $5 <|x|> a+b=c x^2 ~y~ a|b `q` {\"k\": [1, 2]} /path/to/f.c//\n//\n\n http://a.b/c?d=e&f\n"
    "\xe6\x88\x91\xe6\x83\xb3\xe5\x9c\xa8"
    "apple\xe5\xb7\xa5\xe4\xbd\x9c"
    "1314151\xe5\xa4\xa9\xef\xbd\x9e "
    "\xe3\x81\xb2\xe3\x82\x89\xe3\x82\xab\xe3\x82\xbf\xef\xbc\x8c\xe3\x80\x82\xef\xbc\x81 "
    "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 \xe0\xb8\xa0\xe0\xb8\xb2\xe0\xb8\xa9\xe0\xb8\xb2 "
    "\xe1\x9e\x80\xe1\x9e\xb6\xe1\x9e\x93\xe1\x9f\x8b "
    "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d "
    "\xf0\x9f\x9a\x80 (normal) "
    "\xf0\x9f\x98\xb6\xe2\x80\x8d\xf0\x9f\x8c\xab\xef\xb8\x8f\xe2\x9c\x85 ------======= "
    "\xc2\xa0\xe2\x80\x83 \xc2\xbd\xe2\x85\xa3\xe2\x91\xa0 end \t tab\t\tx \n\n\n  indent\n\tx  ";

static qn_status note_word(void *user, const char *word, size_t n, qn_error *err)
{
    uint32_t size = (uint32_t)n;
    bool ok =
        qn__text_append(user, (const char *)&size, sizeof size) && qn__text_append(user, word, n);
    return ok ? QN_OK : qn__fail_memory(err, "a pre-tokenizer");
}

static qn_status cut(const qn__pretokenizer *p, qn_text *words, qn_error *err)
{
    qn__pretokenize_work work = {0};
    qn_status status =
        qn__pretokenize(p, &work, probe, sizeof probe - 1, true, note_word, words, err);
    qn__pretokenize_work_free(&work);
    return status;
}

static bool cuts_alike(const qn__gguf_pre *pre, const qn_text *words, qn_error *err)
{
    qn__pretokenizer own = {0};
    qn_text got = {0};
    qn_status status = qn__gguf_pre_tokenizer(&own, "a GGUF pre-tokenizer", pre, err);
    if (status == QN_OK)
        status = cut(&own, &got, err);
    bool same = status == QN_OK && got.n == words->n && !memcmp(got.data, words->data, got.n);
    qn__pretokenizer_clear(&own);
    qn_text_free(&got);
    return same;
}

const char *qn__gguf_pre_like(const qn_tokenizer *t, char name[40], qn_error *err)
{
    qn_error own = {0};
    qn_text words = {0};
    bool found = false, exact = false;
    cut(&t->pretokenizer, &words, &own);
    const char *names;
    for (size_t i = 0; !exact && own.code == QN_OK && (names = qn__gguf_pre_names(i)); i++) {
        qn__gguf_pre pre;
        size_t n = strcspn(names, " ");
        qn__gguf_pre_named(names, n, &pre);
        bool flags = pre.ignore_merges == t->bpe.ignore_merges;
        if (pre.characters || (found && !flags) || !cuts_alike(&pre, &words, &own))
            continue;
        snprintf(name, 40, "%.*s", (int)n, names);
        found = true;
        exact = flags;
    }
    qn_text_free(&words);
    if (own.code != QN_OK)
        qn__fail(err, own.code, "%s", own.message);
    return found && own.code == QN_OK ? name : NULL;
}
