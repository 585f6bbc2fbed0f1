/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be asked for, and the answers that need no model.
 */
#include "server/inside.h"

#include <stdlib.h>
#include <string.h>

/* The page becomes the response. */
static void answer_page(qn__exchange *x, qn__page *page)
{
    if (page->failed) {
        qn_text_free(&page->text);
        qn__refuse(x, 500, "out of memory");
        return;
    }
    x->out = page->text;
    x->status = 200;
    x->complete = true;
}

static void answer_health(qn__exchange *x)
{
    const qn__server *s = x->server;
    qn__page page = {0};
    if (s->draining)
        qn__refuse(x, 503, "the server is stopping");
    else if (!s->ready)
        qn__refuse(x, 503, "the model is loading");
    else {
        qn__put(&page, "{\"status\":\"ok\"}");
        answer_page(x, &page);
    }
}

static void answer_metrics(qn__exchange *x)
{
    qn__page page = {0};
    qn__put_metrics(&page, x->server);
    x->content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer_page(x, &page);
}

const char *qn__served_name(const qn__server *s, int adapter)
{
    return adapter > 0 ? qn_model_adapter_name(s->model, adapter) : s->options.name;
}

static void answer_models(qn__exchange *x)
{
    const qn__server *s = x->server;
    qn__page page = {0};
    if (!s->ready) {
        qn__refuse(x, 503, "the model is loading");
        return;
    }
    qn__put(&page, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i <= qn_model_n_adapters(s->model); i++) {
        const char *name = qn__served_name(s, i);
        qn__put(&page, i ? ",{\"id\":" : "{\"id\":");
        qn__put_string(&page, name, strlen(name));
        qn__put_format(&page,
                       ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"quern\","
                       "\"max_model_len\":%lld}",
                       (long long)s->created, (long long)s->context);
    }
    qn__put(&page, "]}");
    answer_page(x, &page);
}

static const qn__route routes[] = {
    {"/v1/chat/completions", "POST", false, true, NULL},
    {"/v1/completions", "POST", false, false, NULL},
    {"/v1/models", "GET", false, false, answer_models},
    {"/health", "GET", true, false, answer_health},
    {"/metrics", "GET", false, false, answer_metrics},
};

const qn__route *qn__route_find(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (!strcmp(routes[i].path, path))
            return &routes[i];
    return NULL;
}
