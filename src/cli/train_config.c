/* SPDX-License-Identifier: Apache-2.0
 *
 * mlx-lm's configurations. A key is an option, with _ for -; some of mlx-lm's say several options,
 * or what is so anyway. What is asked for and is not there is refused.
 */
#include "cli/train.h"

#include "base/error.h"
#include "cli/commands.h"
#include "cli/yaml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_TEXT = 4096 };

typedef struct config_reader {
    train_config *kept;
    arguments *a;
    const option_user *user;
    qn_error *err;
} config_reader;

void train_config_free(train_config *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->texts[i]);
    free(c->texts);
    *c = (train_config){0};
}

/* A copy that lives as long as the arguments. */
static char *keep_text(config_reader *r, const char *text)
{
    char **more = realloc(r->kept->texts, (r->kept->n + 1) * sizeof *more);
    if (more)
        r->kept->texts = more;
    char *copy = more ? strdup(text) : NULL;
    if (copy)
        r->kept->texts[r->kept->n++] = copy;
    else
        qn__fail_memory(r->err, "a configuration");
    return copy;
}

static const option *option_of(const config_reader *r, const char *name)
{
    size_t at = 0;
    for (const option *o; (o = options_next(r->user->of, &at));)
        if (!strcmp(o->name, name))
            return o;
    return NULL;
}

/* As if --name=value stood on the command line, unless there is one. */
static qn_status set_option(config_reader *r, const qn__json_at *at, const char *name,
                            const char *value)
{
    char text[OPTION_TEXT];
    bool help, flag = option_of(r, name)->type == OPTION_FLAG;
    snprintf(text, sizeof text, flag ? "--%s" : "--%s=%s", name, value);
    char *word = keep_text(r, text), *argv[] = {NULL, word};
    if (!word || options_parse(r->user, 2, argv, r->a, &help))
        return r->err->code;
    return qn__json_fail(at, QN_INVALID, r->err, "see above");
}

static qn_status set_number(config_reader *r, const qn__json_at *at, const char *name, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return options_given(option_of(r, name), r->a) ? QN_OK : set_option(r, at, name, text);
}

/* One value of an option, or the only one. */
static qn_status set_value(config_reader *r, const qn__json_at *at, const char *name)
{
    const cJSON *v = at->node;
    bool flag = option_of(r, name)->type == OPTION_FLAG;
    if (flag != (cJSON_IsBool(v) != 0) || cJSON_IsObject(v) || cJSON_IsArray(v))
        return qn__json_fail(at, QN_FORMAT, r->err, flag ? "true or false" : "a number or a text");
    if (flag)
        return cJSON_IsTrue(v) ? set_option(r, at, name, "") : QN_OK;
    if (cJSON_IsString(v))
        return set_option(r, at, name, v->valuestring);
    char text[40];
    snprintf(text, sizeof text, "%.17g", v->valuedouble);
    return set_option(r, at, name, text);
}

static qn_status set_values(config_reader *r, const qn__json_at *at, const char *name)
{
    const option *o = option_of(r, name);
    qn__json_at item;
    if (options_given(o, r->a))
        return QN_OK;
    if (o->type != OPTION_WORDS || !cJSON_IsArray(at->node))
        return set_value(r, at, name);
    for (bool any = qn__json_first(at, &item); any && r->err->code == QN_OK;
         any = qn__json_next(&item))
        set_value(r, &item, name);
    return r->err->code;
}

/* ---- what mlx-lm puts together --------------------------------------------------------------- */

/* Whether at is the member `key`, and wants what `text` says. */
static qn_status only(config_reader *r, const qn__json_at *at, bool fits, const char *what)
{
    return fits ? QN_OK : qn__json_fail(at, QN_UNSUPPORTED, r->err, "not supported; %s is", what);
}

static qn_status read_lora(config_reader *r, const qn__json_at *lora)
{
    double rank = 8, scale = NAN, dropout = 0;
    qn__json_at at, keys;
    for (bool any = qn__json_first(lora, &at); any; any = qn__json_next(&at))
        if (strcmp(at.key, "rank") != 0 && strcmp(at.key, "scale") != 0 &&
            strcmp(at.key, "dropout") != 0 && strcmp(at.key, "keys") != 0)
            return qn__json_fail(&at, QN_UNSUPPORTED, r->err,
                                 "not supported; keys, rank, scale and dropout are");
    if (qn__json_opt_number(lora, "rank", 1, 1024, &rank, r->err) != QN_OK ||
        qn__json_opt_number(lora, "scale", 1e-6, 1e6, &scale, r->err) != QN_OK ||
        qn__json_opt_number(lora, "dropout", 0, 1, &dropout, r->err) != QN_OK)
        return r->err->code;
    if (dropout > 0 && set_number(r, lora, "lora-dropout", dropout) != QN_OK)
        return r->err->code;
    if (!isnan(scale) && set_number(r, lora, "alpha", scale * rank) != QN_OK)
        return r->err->code;
    if (set_number(r, lora, "rank", rank) != QN_OK)
        return r->err->code;
    return qn__json_find(lora, "keys", &keys) ? set_values(r, &keys, "target") : QN_OK;
}

/* name, arguments [first, steps, last] (cosine_decay) or [first, last, steps] (linear_schedule),
 * warmup, warmup_init. */
static qn_status read_schedule(config_reader *r, const qn__json_at *schedule)
{
    const char *name = "";
    double numbers[3] = {NAN, NAN, 0}, warmup = 0, from = 0;
    int n = 0;
    qn__json_at list, at;
    if (qn__json_get_string(schedule, "name", &name, r->err) != QN_OK ||
        qn__json_get_array(schedule, "arguments", &list, r->err) != QN_OK ||
        qn__json_opt_number(schedule, "warmup", 0, 1e9, &warmup, r->err) != QN_OK ||
        qn__json_opt_number(schedule, "warmup_init", 0, 1e3, &from, r->err) != QN_OK)
        return r->err->code;
    bool cosine = !strcmp(name, "cosine_decay"), linear = !strcmp(name, "linear_schedule");
    for (bool any = qn__json_first(&list, &at); any && n < 3; any = qn__json_next(&at))
        if (qn__json_as_number(&at, 0, 1e9, &numbers[n++], r->err) != QN_OK)
            return r->err->code;
    if (only(r, schedule, cosine || linear, "cosine_decay or linear_schedule") != QN_OK ||
        only(r, schedule, n >= (linear ? 3 : 2), "arguments as mlx-lm has them") != QN_OK ||
        only(r, schedule, from == 0, "a warm-up from 0") != QN_OK)
        return r->err->code;
    double steps = numbers[linear ? 2 : 1], end = numbers[linear ? 1 : 2];
    return set_number(r, &list, "learning-rate", numbers[0]) != QN_OK ||
                   set_number(r, &list, "min-learning-rate", end) != QN_OK ||
                   set_number(r, &list, "warmup-steps", warmup) != QN_OK ||
                   set_number(r, &list, "lr-decay-steps", warmup + steps) != QN_OK ||
                   (!r->a->lr_schedule &&
                    set_option(r, schedule, "lr-schedule", cosine ? "cosine" : "linear") != QN_OK)
               ? r->err->code
               : QN_OK;
}

/* {adamw: {betas: [b1, b2], eps: e, weight_decay: w}}, of the optimiser that is chosen. */
static qn_status read_optimizer(config_reader *r, const qn__json_at *all)
{
    qn__json_at of, at, beta;
    const char *chosen = r->a->optimizer ? r->a->optimizer : "adamw";
    if (!qn__json_find(all, chosen, &of))
        return QN_OK;
    for (bool any = qn__json_first(&of, &at); any && r->err->code == QN_OK;
         any = qn__json_next(&at)) {
        bool betas = !strcmp(at.key, "betas"), momentum = !strcmp(at.key, "momentum");
        const char *name = betas                                ? "beta1"
                           : momentum                           ? "beta1"
                           : !strcmp(at.key, "weight_decay")    ? "weight-decay"
                           : !strcmp(at.key, "eps")             ? "eps"
                           : !strcmp(at.key, "bias_correction") ? ""
                                                                : NULL;
        if (!name)
            qn__json_fail(&at, QN_UNSUPPORTED, r->err,
                          "not supported; betas, eps, weight_decay and momentum are");
        else if (!*name)
            only(r, &at, cJSON_IsTrue(at.node), "true");
        else if (!betas)
            set_values(r, &at, name);
        else if (qn__json_first(&at, &beta) && set_values(r, &beta, "beta1") == QN_OK &&
                 qn__json_next(&beta))
            set_values(r, &beta, "beta2");
    }
    return r->err->code;
}

/* ---- members --------------------------------------------------------------------------------- */

/* What mlx-lm has and this does not, and the value that is fine. */
static bool read_fixed(config_reader *r, const qn__json_at *at)
{
    static const struct {
        const char *key;
        bool is; /* what it may be */
    } flags[] = {{"train", true}, {"test", false}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(at->key, flags[i].key)) {
            only(r, at, cJSON_IsBool(at->node) && cJSON_IsTrue(at->node) == flags[i].is,
                 flags[i].is ? "true" : "false");
            return true;
        }
    if (!strcmp(at->key, "loss_type")) { /* TRL's, of dpo */
        only(r, at, cJSON_IsString(at->node) && !strcmp(at->node->valuestring, "sigmoid"),
             "sigmoid");
        return true;
    }
    return !strcmp(at->key, "test_batches"); /* of test, which is not there */
}

static qn_status read_member(config_reader *r, const qn__json_at *at)
{
    char name[64];
    if (cJSON_IsNull(at->node) || read_fixed(r, at))
        return r->err->code;
    if (!strcmp(at->key, "lora_parameters"))
        return read_lora(r, at);
    if (!strcmp(at->key, "lr_schedule") && cJSON_IsObject(at->node))
        return read_schedule(r, at);
    if (!strcmp(at->key, "optimizer_config"))
        return read_optimizer(r, at);
    snprintf(name, sizeof name, "%s", at->key);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (option_of(r, name) && strcmp(name, "config") != 0)
        return set_values(r, at, name);
    const char *names[MOST_WORDS];
    size_t n = 0, next = 0;
    for (const option *o; n < MOST_WORDS && (o = options_next(r->user->of, &next));)
        names[n++] = o->name;
    const char *nearest = options_nearest(name, names, n);
    return qn__json_fail(at, QN_UNSUPPORTED, r->err, "there is no such option%s%s%s",
                         nearest ? "; did you mean --" : "", nearest ? nearest : "",
                         nearest ? "?" : "");
}

bool train_config_read(train_config *c, const char *path, arguments *a)
{
    qn_error err = {0};
    cJSON *tree = NULL;
    qn__json_at at;
    const option_user user = {"train", OF_TRAIN, NULL};
    config_reader r = {c, a, &user, &err};
    if (yaml_read(&tree, path, &err) == QN_OK) {
        qn__json_at root = qn__json_root(path, tree);
        for (bool any = qn__json_first(&root, &at); any && err.code == QN_OK;
             any = qn__json_next(&at))
            if (strcmp(at.key, "optimizer_config") != 0)
                read_member(&r, &at);
        if (err.code == QN_OK && qn__json_find(&root, "optimizer_config", &at))
            read_member(&r, &at); /* which optimiser it is has been read */
    }
    cJSON_Delete(tree);
    if (err.code != QN_OK)
        fprintf(stderr, "quern train: %s\n", err.message);
    return err.code == QN_OK;
}
