/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens and their log probabilities as JSON.
 */
#include "cli/logprobs.h"
#include "base/utf8.h"
#include "cli/shared.h"

void print_token(FILE *out, const qn_tokenizer *t, int32_t id)
{
    qn_text bytes = {0};
    qn_tokenizer_token_bytes(t, id, &bytes, NULL);
    fprintf(out, "\"id\":%d,\"token\":", id);
    size_t whole = bytes.data ? qn__utf8_check(bytes.data, bytes.n) : 0;
    print_json_string(out, whole == bytes.n && whole ? bytes.data : "",
                      whole == bytes.n ? whole : 0);
    fprintf(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.n; i++)
        fprintf(out, "%s%d", i ? "," : "", (unsigned char)bytes.data[i]);
    fputc(']', out);
    qn_text_free(&bytes);
}

void print_logprob(FILE *out, double logprob)
{
    fprintf(out, "%.7g", logprob > -9999 ? logprob : -9999.0);
}

static void print_one(FILE *out, const qn_tokenizer *t, const qn_logprob *p)
{
    print_token(out, t, p->id);
    fprintf(out, ",\"logprob\":");
    print_logprob(out, (double)p->logprob);
}

void print_logprobs(FILE *out, const qn_tokenizer *t, const qn_logprob *all, size_t n, size_t each)
{
    fprintf(out, ",\"logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        const qn_logprob *p = all + i * each;
        fprintf(out, i ? ",{" : "{");
        print_one(out, t, p);
        fprintf(out, ",\"top_logprobs\":[");
        for (size_t k = 1; k < each && p[k].id >= 0; k++) {
            fprintf(out, k > 1 ? ",{" : "{");
            print_one(out, t, &p[k]);
            fputc('}', out);
        }
        fprintf(out, "]}");
    }
    fputc(']', out);
}
