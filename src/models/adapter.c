/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading adapters. Both kinds of directory have pairs of tensors named after a linear layer; PEFT
 * keeps A [r, K], B [N, r] and the scale as alpha / r, mlx-lm their transposes and the scale
 * itself. What a directory asks for beyond plain LoRA is refused by its name.
 */
#include "models/adapter.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "core/dtype.h"
#include "core/scope.h"
#include "quern/io.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_CONFIG = 4 << 20, NAME = 200 };

/* One layer's pair in an adapter's file. */
typedef struct pair {
    qn__parameter *of;
    const qn_tensor_info *a, *b;
    int64_t rank;
    double scale;
} pair;

typedef struct adapter {
    char *config_path;
    qn_tensors *file;
    cJSON *config;
    bool peft;
    double alpha, scale; /* PEFT's and mlx-lm's */
    bool rank_stabilised;
    pair *pairs;
    size_t n_pairs;
    int64_t rank, first; /* the largest; its columns of all adapters' begin there */
} adapter;

/* ---- configuration --------------------------------------------------------------------------- */

/* Whether a setting says nothing: null, false, an empty list. */
static bool is_off(const cJSON *node)
{
    bool container = cJSON_IsArray(node) || cJSON_IsObject(node);
    return cJSON_IsNull(node) || cJSON_IsFalse(node) || (container && !node->child);
}

/* What must be absent, or what it is anyway. */
static qn_status check_plain(const qn__json_at *config, qn_error *err)
{
    static const char *const beyond[] = {
        "use_dora",          "use_bdlora",        "use_qalora",
        "fan_in_fan_out",    "lora_bias",         "modules_to_save",
        "layer_replication", "arrow_config",      "trainable_token_indices",
        "target_parameters", "monteclora_config", "alora_invocation_tokens"};
    const char *type = "LORA", *bias = "none";
    qn__json_at at;
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        if (qn__json_find(config, beyond[i], &at) && !is_off(at.node))
            return qn__json_fail(&at, QN_UNSUPPORTED, err, "not supported; plain LoRA is");
    if (qn__json_opt_string(config, "peft_type", &type, err) != QN_OK ||
        qn__json_opt_string(config, "bias", &bias, err) != QN_OK)
        return err->code;
    if (strcmp(type, "LORA") != 0 && qn__json_find(config, "peft_type", &at))
        return qn__json_fail(&at, QN_UNSUPPORTED, err, "LORA is supported");
    if (strcmp(bias, "none") != 0 && qn__json_find(config, "bias", &at))
        return qn__json_fail(&at, QN_UNSUPPORTED, err, "none is supported");
    return QN_OK;
}

static qn_status read_peft(adapter *l, const qn__json_at *config, qn_error *err)
{
    if (check_plain(config, err) != QN_OK ||
        qn__json_get_number(config, "lora_alpha", 1e-6, 1e6, &l->alpha, err) != QN_OK)
        return err->code;
    return qn__json_opt_bool(config, "use_rslora", &l->rank_stabilised, err);
}

static qn_status read_mlx_lm(adapter *l, const qn__json_at *config, qn_error *err)
{
    const char *type = "lora";
    qn__json_at parameters, at;
    if (qn__json_opt_string(config, "fine_tune_type", &type, err) != QN_OK)
        return err->code;
    if (strcmp(type, "lora") != 0 && qn__json_find(config, "fine_tune_type", &at))
        return qn__json_fail(&at, QN_UNSUPPORTED, err, "\"lora\" is supported");
    if (qn__json_get_object(config, "lora_parameters", &parameters, err) != QN_OK)
        return err->code;
    return qn__json_get_number(&parameters, "scale", -1e6, 1e6, &l->scale, err);
}

static qn_status read_config(adapter *l, const char *directory, qn_error *err)
{
    l->config_path = qn__path_join(directory, "adapter_config.json");
    if (!l->config_path)
        return qn__fail_memory(err, "an adapter");
    if (qn__json_read(&l->config, l->config_path, LARGEST_CONFIG, err) != QN_OK)
        return err->code;
    qn__json_at config = qn__json_root(l->config_path, l->config);
    return l->peft ? read_peft(l, &config, err) : read_mlx_lm(l, &config, err);
}

static qn_status open_files(adapter *l, const char *directory, qn_error *err)
{
    static const struct {
        const char *name;
        bool peft;
    } files[] = {{"adapter_model.safetensors", true},
                 {"adapter_model.bin", true},
                 {"adapters.safetensors", false}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = qn__path_join(directory, files[i].name);
        if (!path)
            return qn__fail_memory(err, "an adapter");
        bool is_directory, exists = qn__path_is_directory(path, &is_directory, NULL) == QN_OK;
        if (exists)
            qn_tensors_open(&l->file, path, err);
        free(path);
        l->peft = files[i].peft;
        if (exists)
            return l->file ? read_config(l, directory, err) : err->code;
    }
    return qn__fail(err, QN_NOT_FOUND,
                    "%s: no adapter; there is neither adapter_model.safetensors (PEFT) nor "
                    "adapters.safetensors (mlx-lm)",
                    directory);
}

/* alpha_pattern's value for a layer: the key is its name, or the name ends in ".key". */
static double alpha_of(const adapter *l, const char *layer)
{
    qn__json_at config = qn__json_root(l->config_path, l->config), patterns, at;
    if (!qn__json_find(&config, "alpha_pattern", &patterns) || !qn__json_first(&patterns, &at))
        return l->alpha;
    do {
        size_t n = strlen(layer), k = strlen(at.key);
        bool fits = n >= k && !strcmp(layer + n - k, at.key) && (n == k || layer[n - k - 1] == '.');
        if (fits && cJSON_IsNumber(at.node))
            return at.node->valuedouble;
    } while (qn__json_next(&at));
    return l->alpha;
}

static double scale_of(const adapter *l, const char *layer, int64_t rank)
{
    if (!l->peft)
        return l->scale;
    return alpha_of(l, layer) / (l->rank_stabilised ? sqrt((double)rank) : (double)rank);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

/* The layer that a tensor's name is made of, and whether it is B; false: it is named like none. */
static bool split_name(const adapter *l, const char *name, char layer[NAME], bool *is_b)
{
    static const char prefix[] = "base_model.model.";
    static const char *const ends[2][2] = {{".lora_a", ".lora_b"},
                                           {".lora_A.weight", ".lora_B.weight"}};
    if (l->peft && !strncmp(name, prefix, sizeof prefix - 1))
        name += sizeof prefix - 1;
    size_t n = strlen(name);
    for (int b = 0; b < 2; b++) {
        const char *end = ends[l->peft][b];
        size_t k = strlen(end);
        if (n <= k || n - k >= NAME || strcmp(name + n - k, end) != 0)
            continue;
        memcpy(layer, name, n - k);
        layer[n - k] = 0;
        *is_b = b;
        return true;
    }
    return false;
}

/* The linear layer of that name; NULL: there is none. */
static qn__parameter *find_layer(const qn__decoder *m, const char *layer)
{
    size_t n = strlen(layer);
    for (int i = 0; i < m->n_parameters; i++) {
        qn__parameter *p = &m->parameters[i];
        if (p->linear && !strncmp(p->name, layer, n) && !strcmp(p->name + n, ".weight"))
            return p;
    }
    return NULL;
}

static qn_status fail_tensor(const adapter *l, const qn_tensor_info *t, qn_status code,
                             qn_error *err, const char *what)
{
    return qn__fail(err, code, "%s: tensor %s: %s", qn_tensors_path(l->file, t->file), t->name,
                    what);
}

static pair *pair_of(adapter *l, qn__parameter *of)
{
    for (size_t i = 0; i < l->n_pairs; i++)
        if (l->pairs[i].of == of)
            return &l->pairs[i];
    l->pairs[l->n_pairs] = (pair){.of = of};
    return &l->pairs[l->n_pairs++];
}

static qn_status check_pair(adapter *l, pair *p, qn_error *err)
{
    const qn_tensor_info *a = p->a, *b = p->b;
    char layer[NAME];
    bool is_b;
    if (!a || !b)
        return fail_tensor(l, a ? a : b, QN_FORMAT, err, "its other half is not there");
    int in = l->peft, out = !l->peft; /* axes: A is [r, K] or [K, r], B [N, r] or [r, N] */
    p->rank = a->ndim == 2 ? a->shape[!in] : 0;
    bool fits = a->ndim == 2 && b->ndim == 2 && a->shape[in] == p->of->shape[1] &&
                b->shape[out] == p->of->shape[0] && b->shape[!out] == p->rank;
    if (!fits)
        return qn__fail(
            err, QN_FORMAT,
            "%s: tensor %s: its pair does not fit the model's %s [%lld, %lld]: it is of "
            "another model",
            qn_tensors_path(l->file, a->file), a->name, p->of->name, (long long)p->of->shape[0],
            (long long)p->of->shape[1]);
    if (p->rank < 1 || p->rank > QN__MOST_RANK)
        return fail_tensor(l, a, QN_LIMIT, err, "a rank is 1 to 1024");
    for (int i = 0; i < 2; i++)
        if (!qn__is_float((i ? b : a)->dtype) || (i ? b : a)->encoding)
            return fail_tensor(l, i ? b : a, QN_UNSUPPORTED, err, "its numbers must be floats");
    split_name(l, a->name, layer, &is_b);
    p->scale = scale_of(l, layer, p->rank);
    l->rank = p->rank > l->rank ? p->rank : l->rank;
    return QN_OK;
}

static qn_status find_pairs(adapter *l, const qn__decoder *m, qn_error *err)
{
    size_t n = qn_tensors_count(l->file);
    l->pairs = calloc(n + 1, sizeof *l->pairs);
    if (!l->pairs)
        return qn__fail_memory(err, "an adapter");
    for (size_t i = 0; i < n; i++) {
        const qn_tensor_info *t = qn_tensors_get(l->file, i);
        char layer[NAME];
        bool is_b;
        if (!split_name(l, t->name, layer, &is_b))
            return fail_tensor(l, t, QN_UNSUPPORTED, err,
                               "not of a linear layer's LoRA pair, which is all that is supported");
        qn__parameter *of = find_layer(m, layer);
        if (!of)
            return fail_tensor(l, t, QN_UNSUPPORTED, err,
                               "the model has no linear layer of that name in its blocks");
        *(is_b ? &pair_of(l, of)->b : &pair_of(l, of)->a) = t;
    }
    for (size_t i = 0; i < l->n_pairs; i++)
        if (check_pair(l, &l->pairs[i], err) != QN_OK)
            return err->code;
    if (!l->n_pairs)
        return qn__fail(err, QN_FORMAT, "%s: the adapter is empty", qn_tensors_path(l->file, 0));
    return QN_OK;
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* The tensor's element [i, j], or [j, i], goes to out[i * ld + j], times a factor. */
static qn_status read_matrix(const adapter *l, const qn_tensor_info *t, bool turned, double factor,
                             float *out, int64_t ld, qn_error *err)
{
    size_t size = qn__dtype_size(t->dtype);
    char *raw = malloc((size_t)t->bytes + 1);
    if (!raw)
        return qn__fail_memory(err, "an adapter");
    qn_status status = qn_tensors_read_bytes(l->file, t, 0, (size_t)t->bytes, raw, err);
    for (int64_t k = 0; status == QN_OK && k < t->shape[0] * t->shape[1]; k++) {
        int64_t i = k / t->shape[1], j = k % t->shape[1];
        double v = qn__element_to_f64(raw + (size_t)k * size, t->dtype) * factor;
        if (!isfinite(v))
            status = fail_tensor(l, t, QN_FORMAT, err, "it has numbers that are not finite");
        out[turned ? j * ld + i : i * ld + j] = (float)v;
    }
    free(raw);
    return status;
}

struct qn__adapters {
    adapter *all;
    const qn__adapter_place *places;
    int n;
    int64_t ranks;
};

int64_t qn__adapters_ranks(const qn__adapters *l)
{
    return l->ranks;
}

/* Adapter i's pair of that layer; NULL: it has none. */
static const pair *find_pair(const qn__adapters *l, int i, const qn__parameter *of)
{
    for (size_t k = 0; k < l->all[i].n_pairs; k++)
        if (l->all[i].pairs[k].of == of)
            return &l->all[i].pairs[k];
    return NULL;
}

bool qn__adapters_have(const qn__adapters *l, const qn__parameter *of)
{
    for (int i = 0; i < l->n; i++)
        if (find_pair(l, i, of))
            return true;
    return false;
}

static qn_status read_pair(const qn__adapters *l, int i, const pair *p, bool placed, float *a,
                           float *b, qn_error *err)
{
    const adapter *from = &l->all[i];
    double scale = p->scale * (placed ? l->places[i].scale : 1);
    qn_status status = read_matrix(from, p->a, !from->peft, 1, a + from->first * p->of->shape[1],
                                   p->of->shape[1], err);
    if (status == QN_OK)
        status = read_matrix(from, p->b, !from->peft, scale, b + from->first, l->ranks, err);
    return status;
}

qn_status qn__adapters_read(const qn__adapters *l, const qn__parameter *of, bool placed,
                            float **out_a, float **out_b, qn_error *err)
{
    float *a = NULL, *b = NULL;
    qn_status status = QN_OK;
    for (int i = 0; status == QN_OK && i < l->n; i++) {
        const pair *p = find_pair(l, i, of);
        if (!p)
            continue;
        a = a ? a : calloc((size_t)(l->ranks * of->shape[1]) + 1, sizeof *a);
        b = b ? b : calloc((size_t)(l->ranks * of->shape[0]) + 1, sizeof *b);
        status =
            a && b ? read_pair(l, i, p, placed, a, b, err) : qn__fail_memory(err, "an adapter");
    }
    if (status != QN_OK) {
        free(a);
        free(b);
        a = b = NULL;
    }
    *out_a = a;
    *out_b = b;
    return status;
}

void qn__adapters_close(qn__adapters *l)
{
    for (int i = 0; l && l->all && i < l->n; i++) {
        qn_tensors_close(l->all[i].file);
        cJSON_Delete(l->all[i].config);
        free(l->all[i].config_path);
        free(l->all[i].pairs);
    }
    if (l)
        free(l->all);
    free(l);
}

qn_status qn__adapters_open(qn__adapters **out, const qn__decoder *m,
                            const qn__adapter_place *places, int n, qn_error *err)
{
    *out = NULL;
    if (n > QN__MOST_ADAPTERS)
        return qn__fail(err, QN_LIMIT, "%d adapters; a model has %d at most", n, QN__MOST_ADAPTERS);
    qn__adapters *l = calloc(1, sizeof *l);
    if (!l || !(l->all = calloc((size_t)n + 1, sizeof *l->all))) {
        free(l);
        return qn__fail_memory(err, "adapters");
    }
    l->places = places;
    l->n = n;
    qn_status status = QN_OK;
    for (int i = 0; status == QN_OK && i < n; i++) {
        status = open_files(&l->all[i], places[i].path, err);
        if (status == QN_OK)
            status = find_pairs(&l->all[i], m, err);
        l->all[i].first = l->ranks;
        l->ranks += l->all[i].rank;
    }
    if (status == QN_OK)
        *out = l;
    else
        qn__adapters_close(l);
    return status;
}

/* ---- into a decoder -------------------------------------------------------------------------- */

static qn_array *pack(qn_scope *s, const float *values, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    return qn_pack(s, qn_reshape(s, qn_from_f32(s, values, rows * columns), 2, shape));
}

static qn_status fill_layer(qn_scope *s, const qn__adapters *l, const qn__parameter *of,
                            qn_error *err)
{
    float *a, *b;
    qn_status status = qn__adapters_read(l, of, false, &a, &b, err);
    if (a) {
        of->linear->lora_a = pack(s, a, l->ranks, of->shape[1]);
        of->linear->lora_b = pack(s, b, of->shape[0], l->ranks);
        if (qn_scope_status(s) != QN_OK)
            status = qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    }
    free(a);
    free(b);
    return status;
}

/* [n + 1, ranks]: of each adapter its scale in its columns, 0 elsewhere; first none. */
static qn_status fill_scales(qn__decoder *m, qn_scope *s, const qn__adapters *l, qn_error *err)
{
    const int64_t shape[] = {l->n + 1, l->ranks};
    float *scales = calloc((size_t)((l->n + 1) * l->ranks), sizeof *scales);
    if (!scales)
        return qn__fail_memory(err, "an adapter");
    for (int i = 0; i < l->n; i++)
        for (int64_t k = 0; k < l->all[i].rank; k++)
            scales[(i + 1) * l->ranks + l->all[i].first + k] = (float)l->places[i].scale;
    qn_array *flat = qn_from_f32(s, scales, (l->n + 1) * l->ranks);
    m->adapter_scales = qn_retain(qn_reshape(s, flat, 2, shape));
    free(scales);
    return m->adapter_scales ? QN_OK : qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
}

static qn_status fill_all(qn__decoder *m, qn_device *device, const qn__adapters *l, qn_error *err)
{
    qn_scope *s = qn_scope_begin(device);
    if (!s)
        return qn__fail_memory(err, "an adapter");
    qn_status status = fill_scales(m, s, l, err);
    for (int i = 0; status == QN_OK && i < m->n_parameters; i++)
        if (m->parameters[i].linear)
            status = fill_layer(s, l, &m->parameters[i], err);
    qn_scope_end(s);
    m->n_adapters = status == QN_OK ? l->n : 0;
    return status;
}

qn_status qn__adapters_load(qn__decoder *m, qn_device *device, const qn__adapter_place *places,
                            int n, qn_error *err)
{
    qn__adapters *l;
    if (!n)
        return QN_OK;
    qn_status status = qn__adapters_open(&l, m, places, n, err);
    if (status == QN_OK)
        status = fill_all(m, device, l, err);
    qn__adapters_close(l);
    return status;
}
