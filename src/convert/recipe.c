/* SPDX-License-Identifier: Apache-2.0
 *
 * The recipes; see recipe.h. Numbers are llama.cpp's file types.
 */
#include "convert/recipe.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const qn__recipe recipes[] = {
    {"f32", 0, QN__F32},        {"f16", 1, QN__F16},      {"bf16", 32, QN__BF16},
    {"q8_0", 7, QN__Q8_0},      {"q4_0", 2, QN__Q4_0},    {"q4_1", 3, QN__Q4_1},
    {"q5_0", 8, QN__Q5_0},      {"q5_1", 9, QN__Q5_1},    {"q2_k", 10, QN__Q2_K},
    {"q3_k_s", 11, QN__Q3_K},   {"q3_k_m", 12, QN__Q3_K}, {"q3_k_l", 13, QN__Q3_K},
    {"q4_k_s", 14, QN__Q4_K},   {"q4_k_m", 15, QN__Q4_K}, {"q5_k_s", 16, QN__Q5_K},
    {"q5_k_m", 17, QN__Q5_K},   {"q6_k", 18, QN__Q6_K},   {"iq4_nl", 25, QN__IQ4_NL},
    {"iq4_xs", 30, QN__IQ4_XS}, {"mxfp4", 38, QN__MXFP4}, {"tq1_0", 36, QN__TQ1_0},
    {"tq2_0", 37, QN__TQ2_0},   {"i2_s", 40, QN__I2_S},
};

enum { N_RECIPES = sizeof recipes / sizeof *recipes };

/* llama.cpp's short names. */
static const char *const short_names[][2] = {
    {"q3_k", "q3_k_m"}, {"q4_k", "q4_k_m"}, {"q5_k", "q5_k_m"}};

const qn__recipe *qn__recipe_named(const char *name, qn_error *err)
{
    char all[300];
    size_t n = 0;
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if (!strcasecmp(name, short_names[i][0]))
            name = short_names[i][1];
    for (int i = 0; i < N_RECIPES; i++) {
        if (!strcasecmp(name, recipes[i].name))
            return &recipes[i];
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", recipes[i].name);
    }
    qn__fail(err, QN_UNSUPPORTED, "type \"%.40s\" is not known (known: %s)", name, all);
    return NULL;
}

int qn__encoding_to_write(const char *name, qn_error *err)
{
    char all[300];
    size_t n = 0;
    for (int i = 0; i <= QN__MXFP4; i++) {
        if (!strcasecmp(name, qn__encodings[i].name))
            return i;
        n +=
            (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", qn__encodings[i].name);
    }
    qn__fail(err, QN_UNSUPPORTED, "type \"%.40s\" of a tensor is not known (known: %s)", name, all);
    return -1;
}

bool qn__is_head(const char *name)
{
    return !strcmp(name, "output.weight") || !strcmp(name, "token_embd.weight");
}

bool qn__recipe_applies(const char *name, int ndim)
{
    size_t n = strlen(name);
    return ndim >= 2 && n >= 6 && !strcmp(name + n - 6, "weight") &&
           !strstr(name, "_norm.weight") && !strstr(name, "ffn_gate_inp.weight");
}

qn__encoding_id qn__encoding_that_fits(qn__encoding_id e, int64_t columns)
{
    static const qn__encoding_id smaller[QN__ENCODING_COUNT] = {
        [QN__IQ4_XS] = QN__IQ4_NL, [QN__Q2_K] = QN__Q4_0,  [QN__Q3_K] = QN__Q4_0,
        [QN__TQ1_0] = QN__Q4_0,    [QN__TQ2_0] = QN__Q4_0, [QN__Q4_K] = QN__Q5_0,
        [QN__Q5_K] = QN__Q5_1,     [QN__Q6_K] = QN__Q8_0,
    };
    if (columns % qn__encodings[e].block_elements && smaller[e])
        e = smaller[e];
    return columns % qn__encodings[e].block_elements ? QN__F16 : e;
}

/* The first eighth, the last eighth, and of those between one in three. */
static bool gets_more(int64_t layer, int64_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static qn__encoding_id of_values(const qn__recipe *r, int64_t layer, const qn__recipe_model *m)
{
    bool shared = m->heads / m->kv_heads >= 4;
    switch (r->file_type) {
    case 10: return shared ? QN__Q4_K : QN__Q3_K;
    case 12: return layer < 2 ? QN__Q5_K : QN__Q4_K;
    case 13: return QN__Q5_K;
    case 14: return layer < 4 ? QN__Q5_K : QN__Q4_K;
    case 15:
    case 17: return gets_more(layer, m->layers) ? QN__Q6_K : r->plain;
    case 25:
    case 30: return shared ? QN__Q5_K : r->plain;
    default: return r->plain;
    }
}

static qn__encoding_id of_down(const qn__recipe *r, int64_t layer, const qn__recipe_model *m)
{
    switch (r->file_type) {
    case 10: return QN__Q3_K;
    case 12: return layer < m->layers / 16 ? QN__Q5_K : QN__Q4_K;
    case 13: return QN__Q5_K;
    case 14: return layer < m->layers / 8 ? QN__Q5_K : QN__Q4_K;
    case 15:
    case 17: return gets_more(layer, m->layers) ? QN__Q6_K : r->plain;
    case 25:
    case 30: return layer < m->layers / 8 ? QN__Q5_K : r->plain;
    default: return r->plain;
    }
}

static qn__encoding_id of_attention_output(const qn__recipe *r)
{
    switch (r->file_type) {
    case 10: return QN__Q3_K;
    case 12: return QN__Q4_K;
    case 13: return QN__Q5_K;
    default: return r->plain;
    }
}

static qn__encoding_id of_head(const qn__recipe *r, int64_t columns)
{
    bool whole = columns % qn__encodings[r->plain].block_elements == 0;
    if (r->plain == QN__I2_S) /* as bitnet.cpp has it */
        return QN__F16;
    return r->plain == QN__MXFP4 || r->plain == QN__Q8_0 || !whole ? QN__Q8_0 : QN__Q6_K;
}

static qn__encoding_id of_embedding(const qn__recipe *r)
{
    if (r->plain == QN__MXFP4)
        return QN__Q8_0;
    if (r->plain == QN__I2_S)
        return QN__F16;
    return r->plain == QN__TQ1_0 || r->plain == QN__TQ2_0 ? QN__Q4_K : r->plain;
}

static qn__encoding_id wanted(const qn__recipe *r, const qn__recipe_model *m, const char *name,
                              int64_t columns)
{
    int layer = 0;
    bool embedding = !strcmp(name, "token_embd.weight");
    if (sscanf(name, "blk.%d.", &layer) != 1)
        layer = 0;
    if (!strcmp(name, "output.weight") || (embedding && m->tied))
        return of_head(r, columns);
    if (embedding)
        return of_embedding(r);
    if (strstr(name, "attn_v.weight"))
        return of_values(r, layer, m);
    if (strstr(name, "ffn_down"))
        return of_down(r, layer, m);
    return strstr(name, "attn_output.weight") ? of_attention_output(r) : r->plain;
}

qn__encoding_id qn__recipe_encoding(const qn__recipe *r, const qn__recipe_model *m,
                                    const char *name, int64_t columns)
{
    if (r->plain <= QN__BF16)
        return r->plain;
    return qn__encoding_that_fits(wanted(r, m, name, columns), columns);
}
