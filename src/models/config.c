/* SPDX-License-Identifier: Apache-2.0
 *
 * What the families' config.json have in common. Every field is checked against a range, so that no
 * later product can wrap and no hostile file can ask for more than it could deliver.
 */
#include "models/family.h"

#include "core/dtype.h"

#include <stdio.h>

enum { MOST_WIDTH = 1 << 20, MOST_HEADS = 1 << 14, MOST_VOCAB = 1 << 24 };

static qn_status read_sizes(const qn__json_at *c, qn__decoder_config *o, qn_error *err)
{
    const struct {
        const char *key;
        int64_t most, *to;
    } required[] = {
        {"num_hidden_layers", QN__MOST_LAYERS, &o->n_layers},
        {"hidden_size", MOST_WIDTH, &o->hidden},
        {"intermediate_size", MOST_WIDTH, &o->ffn},
        {"num_attention_heads", MOST_HEADS, &o->n_heads},
        {"vocab_size", MOST_VOCAB, &o->vocab},
    };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if ((*required[i].to ? qn__json_opt_int : qn__json_get_int)(
                c, required[i].key, 1, required[i].most, required[i].to, err) != QN_OK)
            return err->code;
    o->n_kv_heads = o->n_kv_heads ? o->n_kv_heads : o->n_heads;
    o->max_positions = o->max_positions ? o->max_positions : 2048;
    if (qn__json_opt_int(c, "num_key_value_heads", 1, MOST_HEADS, &o->n_kv_heads, err) != QN_OK ||
        qn__json_opt_int(c, "max_position_embeddings", 1, 1 << 30, &o->max_positions, err) != QN_OK)
        return err->code;
    qn__json_at head_dim;
    bool given = o->head_dim || qn__json_find(c, "head_dim", &head_dim);
    o->head_dim = o->head_dim ? o->head_dim : o->hidden / o->n_heads;
    if (!given && o->hidden % o->n_heads)
        return qn__json_fail(c, QN_FORMAT, err,
                             "hidden_size %lld is not a multiple of num_attention_heads %lld",
                             (long long)o->hidden, (long long)o->n_heads);
    return qn__json_opt_int(c, "head_dim", 1, MOST_WIDTH, &o->head_dim, err);
}

/* transformers 5 says "dtype", 4 "torch_dtype". Weights of other types are converted as loaded. */
void qn__config_dtype(const qn__json_at *c, qn__decoder_config *o)
{
    qn__json_at at;
    const char *name = NULL;
    if (!qn__json_find(c, "dtype", &at) && !qn__json_find(c, "torch_dtype", &at))
        return;
    if (qn__json_as_string(&at, &name, NULL) != QN_OK)
        return;
    o->dtype_given = true;
    o->dtype = QN_F32;
    if (!strcmp(name, "bfloat16"))
        o->dtype = QN_BF16;
    else if (!strcmp(name, "float16"))
        o->dtype = QN_F16;
}

qn_status qn__config_common(const qn__json_at *c, qn__decoder_config *o, qn_error *err)
{
    qn_status status = read_sizes(c, o, err);
    if (status != QN_OK)
        return status;
    if (o->n_heads % o->n_kv_heads)
        return qn__json_fail(c, QN_FORMAT, err,
                             "num_attention_heads %lld is not a multiple of num_key_value_heads "
                             "%lld",
                             (long long)o->n_heads, (long long)o->n_kv_heads);
    if (o->head_dim % 2)
        return qn__json_fail(c, QN_FORMAT, err,
                             "head_dim %lld is odd, rotary embedding needs pairs",
                             (long long)o->head_dim);
    if (o->n_heads * o->head_dim > MOST_WIDTH)
        return qn__json_fail(c, QN_LIMIT, err, "%lld heads of %lld exceed the limit of %d in all",
                             (long long)o->n_heads, (long long)o->head_dim, MOST_WIDTH);
    o->norm_eps = o->norm_eps > 0 ? o->norm_eps : 1e-6;
    qn__config_dtype(c, o);
    status = qn__json_opt_number(c, "rms_norm_eps", 0, 1, &o->norm_eps, err);
    return status == QN_OK ? qn__json_opt_bool(c, "tie_word_embeddings", &o->tied, err) : status;
}

/* original_max_position_embeddings: what *rope has already, from beside the object, counts before
 * the object's own; `positions`, max_position_embeddings, where there is neither. */
static qn_status read_original(const qn__json_at *r, int64_t positions, qn__rope_config *rope,
                               qn_error *err)
{
    double own = (double)positions;
    if (qn__json_opt_number(r, "original_max_position_embeddings", 1, 1e9, &own, err) != QN_OK)
        return err->code;
    if (rope->original_positions == 0)
        rope->original_positions = own;
    return QN_OK;
}

static qn_status read_llama3(const qn__json_at *r, int64_t positions, qn__rope_config *rope,
                             qn_error *err)
{
    if (qn__json_get_number(r, "low_freq_factor", 1e-6, 1e6, &rope->low, err) != QN_OK ||
        qn__json_get_number(r, "high_freq_factor", 1e-6, 1e6, &rope->high, err) != QN_OK ||
        read_original(r, positions, rope, err) != QN_OK)
        return err->code;
    if (rope->high <= rope->low)
        return qn__json_fail(r, QN_FORMAT, err,
                             "high_freq_factor %g must exceed low_freq_factor %g", rope->high,
                             rope->low);
    return QN_OK;
}

/* A null factor is what lies between max_position_embeddings and the original ones. transformers
 * does not read attn_factor, which DeepSeek's R1-0528-Qwen3-8B has: nor is it read here, and the
 * log says so. */
static qn_status read_yarn(const qn__json_at *r, int64_t positions, qn__rope_config *rope,
                           qn_error *err)
{
    double mscale = 0, mscale_all = 0;
    bool truncate = true;
    rope->unread_factor = cJSON_HasObjectItem(r->node, "attn_factor");
    if (read_original(r, positions, rope, err) != QN_OK)
        return err->code;
    rope->factor = (double)positions / rope->original_positions;
    if (!cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(r->node, "factor")) &&
        qn__json_get_number(r, "factor", 1e-6, 1e6, &rope->factor, err) != QN_OK)
        return err->code;
    if (qn__json_opt_number(r, "beta_fast", 0, 1e9, &rope->fast, err) != QN_OK ||
        qn__json_opt_number(r, "beta_slow", 0, 1e9, &rope->slow, err) != QN_OK ||
        qn__json_opt_number(r, "attention_factor", 1e-3, 1e3, &rope->attention, err) != QN_OK ||
        qn__json_opt_number(r, "mscale", 0, 1e3, &mscale, err) != QN_OK ||
        qn__json_opt_number(r, "mscale_all_dim", 0, 1e3, &mscale_all, err) != QN_OK ||
        qn__json_opt_bool(r, "truncate", &truncate, err) != QN_OK)
        return err->code;
    if (rope->theta == 1)
        return qn__json_fail(r, QN_FORMAT, err, "yarn needs a rope_theta above 1");
    rope->fast = rope->fast != 0 ? rope->fast : 32;
    rope->slow = rope->slow != 0 ? rope->slow : 1;
    rope->fractional = !truncate;
    if (rope->attention == 0)
        rope->attention = qn__rope_yarn_attention(rope->factor, mscale, mscale_all);
    return QN_OK;
}

static qn_status kind_named(const qn__json_at *r, const char *type, qn__rope_config *rope,
                            qn_error *err)
{
    static const char *const types[] = {[QN__ROPE_DEFAULT] = "default",
                                        [QN__ROPE_LINEAR] = "linear",
                                        [QN__ROPE_LLAMA3] = "llama3",
                                        [QN__ROPE_YARN] = "yarn"};
    for (int kind = 0; kind <= QN__ROPE_YARN; kind++)
        if (!strcmp(type, types[kind])) {
            rope->kind = (qn__rope_kind)kind;
            return QN_OK;
        }
    return qn__json_fail(r, QN_UNSUPPORTED, err,
                         "rope type \"%s\"; supported are default, linear, llama3 and yarn", type);
}

qn_status qn__config_rope_object(const qn__json_at *r, int64_t positions, qn__rope_config *rope,
                                 qn_error *err)
{
    if (!cJSON_IsObject(r->node))
        return qn__json_fail(r, QN_FORMAT, err, "is not an object");
    if (cJSON_HasObjectItem(r->node, "full_attention") ||
        cJSON_HasObjectItem(r->node, "sliding_attention"))
        return qn__json_fail(r, QN_UNSUPPORTED, err,
                             "an object for each kind of layer; this family has one "
                             "for all of them");
    const char *type = NULL;
    double part = 1;
    if (qn__json_opt_number(r, "rope_theta", 1, 1e12, &rope->theta, err) != QN_OK ||
        qn__json_opt_number(r, "partial_rotary_factor", 0, 1, &part, err) != QN_OK ||
        qn__json_opt_string(r, "type", &type, err) != QN_OK ||
        qn__json_opt_string(r, "rope_type", &type, err) != QN_OK)
        return err->code;
    if (part != 1)
        return qn__json_fail(r, QN_UNSUPPORTED, err, "partial_rotary_factor %g; supported is 1",
                             part);
    if (type && kind_named(r, type, rope, err) != QN_OK)
        return err->code;
    if (rope->kind == QN__ROPE_DEFAULT)
        return QN_OK;
    if (rope->kind == QN__ROPE_YARN)
        return read_yarn(r, positions, rope, err);
    if (qn__json_get_number(r, "factor", 1e-6, 1e6, &rope->factor, err) != QN_OK)
        return err->code;
    return rope->kind == QN__ROPE_LLAMA3 ? read_llama3(r, positions, rope, err) : QN_OK;
}

/* Whether `key` is there and says anything: an empty object does not. */
static bool find_filled(const qn__json_at *c, const char *key, qn__json_at *at)
{
    return qn__json_find(c, key, at) && !(cJSON_IsObject(at->node) && !at->node->child);
}

/* Where there are both, rope_scaling counts and all of rope_parameters is left out, as in
 * transformers. */
qn_status qn__config_rope(const qn__json_at *c, double default_theta, int64_t positions,
                          qn__rope_config *rope, qn_error *err)
{
    *rope = (qn__rope_config){.theta = default_theta, .factor = 1};
    double part = 1;
    if (qn__json_opt_number(c, "rope_theta", 1, 1e12, &rope->theta, err) != QN_OK ||
        qn__json_opt_number(c, "partial_rotary_factor", 0, 1, &part, err) != QN_OK ||
        qn__json_opt_number(c, "original_max_position_embeddings", 1, 1e9,
                            &rope->original_positions, err) != QN_OK)
        return err->code;
    if (part != 1)
        return qn__json_fail(c, QN_UNSUPPORTED, err, "partial_rotary_factor %g; supported is 1",
                             part);
    qn__json_at r;
    if (!find_filled(c, "rope_scaling", &r) && !find_filled(c, "rope_parameters", &r))
        return QN_OK;
    return qn__config_rope_object(&r, positions, rope, err);
}

qn_status qn__config_nullable(const qn__json_at *c, const char *key, double least, double most,
                              double *out, qn_error *err)
{
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(c->node, key)))
        *out = 0;
    return qn__json_opt_number(c, key, least, most, out, err);
}

/* ---- sliding layers
 * ---------------------------------------------------------------------------------------- */

static qn_status read_layer_type(const qn__json_at *at, qn__decoder_config *o, qn_error *err)
{
    const char *type = NULL;
    if ((int64_t)at->index >= o->n_layers)
        return qn__json_fail(at, QN_FORMAT, err, "there are %lld layers", (long long)o->n_layers);
    if (qn__json_as_string(at, &type, err) != QN_OK)
        return err->code;
    bool sliding = !strcmp(type, "sliding_attention");
    if (!sliding && strcmp(type, "full_attention"))
        return qn__json_fail(at, QN_UNSUPPORTED, err,
                             "\"%s\"; supported are full_attention and sliding_attention", type);
    if (sliding && !o->window)
        return qn__json_fail(at, QN_FORMAT, err, "a sliding layer needs a sliding_window");
    o->layer[at->index].sliding = sliding;
    return QN_OK;
}

/* One entry for each layer. */
static qn_status read_layer_types(const qn__json_at *list, qn__decoder_config *o, qn_error *err)
{
    int64_t n = 0;
    qn__json_at at;
    if (!cJSON_IsArray(list->node))
        return qn__json_fail(list, QN_FORMAT, err, "is not an array");
    if (qn__json_first(list, &at))
        do {
            if (read_layer_type(&at, o, err) != QN_OK)
                return err->code;
            n++;
        } while (qn__json_next(&at));
    return n == o->n_layers
               ? QN_OK
               : qn__json_fail(list, QN_FORMAT, err, "has %lld entries for %lld layers",
                               (long long)n, (long long)o->n_layers);
}

qn_status qn__config_sliding(const qn__json_at *c, int64_t absent, qn__decoder_config *o,
                             qn_error *err)
{
    qn__json_at types;
    o->window = cJSON_HasObjectItem(c->node, "sliding_window") ? 0 : absent;
    if (qn__json_opt_int(c, "sliding_window", 1, 1 << 30, &o->window, err) != QN_OK)
        return err->code;
    if (!o->window)
        for (int i = 0; i < o->n_layers; i++)
            o->layer[i].sliding = false;
    return qn__json_find(c, "layer_types", &types) ? read_layer_types(&types, o, err) : QN_OK;
}

qn_status qn__config_qwen_sliding(const qn__json_at *c, qn__decoder_config *o, qn_error *err)
{
    bool use = false;
    int64_t first = 28;
    if (qn__json_opt_bool(c, "use_sliding_window", &use, err) != QN_OK ||
        qn__json_opt_int(c, "max_window_layers", 0, QN__MOST_LAYERS, &first, err) != QN_OK)
        return err->code;
    for (int64_t i = first; use && i < o->n_layers; i++)
        o->layer[i].sliding = true;
    if (use)
        return qn__config_sliding(c, 4096, o, err);
    qn__json_at types; /* without the window they may only say that every layer is full */
    return qn__json_find(c, "layer_types", &types) ? read_layer_types(&types, o, err) : QN_OK;
}

/* ---- ternary weights
 * --------------------------------------------------------------------------------------- */

/* Which layers are as they were: the head, by its name or by default, and no others. */
static qn_status check_unconverted(const qn__json_at *q, qn_error *err)
{
    qn__json_at list, at;
    if (!qn__json_find(q, "modules_to_not_convert", &list))
        return QN_OK;
    bool head = false, others = !cJSON_IsArray(list.node);
    if (!others && qn__json_first(&list, &at))
        do {
            bool named = cJSON_IsString(at.node) && !strcmp(at.node->valuestring, "lm_head");
            head = head || named;
            others = others || !named;
        } while (qn__json_next(&at));
    return head && !others ? QN_OK
                           : qn__json_fail(&list, QN_UNSUPPORTED, err,
                                           "other layers than lm_head; supported is "
                                           "[\"lm_head\"], or null");
}

qn_status qn__config_ternary(const qn__json_at *q, qn__decoder_config *out, qn_error *err)
{
    static const char *const classes[] = {"bitlinear", "autobitlinear", NULL};
    static const char *const modes[] = {"offline", "online", NULL};
    const char *linear = classes[0], *mode = modes[0];
    bool norm = false;
    if (qn__config_one_of(q, "linear_class", classes, err) != QN_OK ||
        qn__config_one_of(q, "quantization_mode", modes, err) != QN_OK ||
        qn__json_opt_string(q, "linear_class", &linear, err) != QN_OK ||
        qn__json_opt_string(q, "quantization_mode", &mode, err) != QN_OK ||
        qn__json_opt_bool(q, "use_rms_norm", &norm, err) != QN_OK)
        return err->code;
    if (norm)
        return qn__json_fail(q, QN_UNSUPPORTED, err,
                             "use_rms_norm true: a norm in each layer is not supported; "
                             "supported is false");
    out->byte_rows = true;
    out->ternary = !strcmp(linear, classes[0]) ? QN__TERNARY_OVER
                   : !strcmp(mode, modes[0])   ? QN__TERNARY_TIMES
                                               : QN__TERNARY_MASTER;
    return check_unconverted(q, err);
}

/* ---- what is not supported
 * ------------------------------------------------------------------------------- */

const char *const qn__names_of_silu[] = {"silu", "swish", NULL};

qn_status qn__config_absent(const qn__json_at *c, const char *key, qn_error *err)
{
    qn__json_at at;
    if (!qn__json_find(c, key, &at) || cJSON_IsFalse(at.node))
        return QN_OK;
    return qn__json_fail(&at, QN_UNSUPPORTED, err, "is not supported for this family");
}

qn_status qn__config_one_of(const qn__json_at *c, const char *key, const char *const *names,
                            qn_error *err)
{
    const char *value = NULL;
    char known[200] = "";
    size_t n = 0;
    if (qn__json_opt_string(c, key, &value, err) != QN_OK)
        return err->code;
    for (int i = 0; value && names[i]; i++) {
        if (!strcmp(value, names[i]))
            return QN_OK;
        n += (size_t)snprintf(known + n, n < sizeof known ? sizeof known - n : 0, "%s\"%s\"",
                              i ? " or " : "", names[i]);
        n = n < sizeof known ? n : sizeof known - 1;
    }
    return value ? qn__json_fail(c, QN_UNSUPPORTED, err, "%s \"%s\"; supported is %s", key, value,
                                 known)
                 : QN_OK;
}
