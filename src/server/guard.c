/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may ask.
 *
 * A web page that someone looks at can send requests to this machine: its Origin names it, and a
 * name of its own that it lets point here (DNS rebinding) stands in Host. So Host must be an
 * address, which no page can make its own, localhost or a name that was given; Origin must be
 * absent, of this machine, or given. A request whose length can be read in two ways is refused,
 * since a proxy in front may read it the other way.
 */
#include "server/inside.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- framing --------------------------------------------------------------------------------- */

static bool check_framing(qn__exchange *x, const char *version, const qn__headers *h)
{
    x->closes = true;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        qn__refuse(x, 505, "HTTP/1.1 and HTTP/1.0 are spoken here");
    else if (h->n > MOST_HEADER_FIELDS || h->bytes > MOST_HEADER_BYTES)
        qn__refuse(x, 431, "the header has more than %d fields or %d bytes", MOST_HEADER_FIELDS,
                   MOST_HEADER_BYTES);
    else if (h->odd)
        qn__refuse(
            x, 400,
            "the header has a query, a name that is none, a control character, a line without "
            "CR, or one that goes on in the next");
    else if (h->lengths > 1 || h->encodings > 1 || (h->lengths && h->encodings))
        qn__refuse(x, 400, "the body's length is given twice");
    else if (h->encodings && strcasecmp(h->encoding, "chunked") != 0)
        qn__refuse(x, 501, "of transfer encodings, chunked alone is known");
    else if (h->encodings && strcmp(version, "HTTP/1.0") == 0)
        qn__refuse(x, 400, "HTTP/1.0 has no transfer encodings");
    else if (h->hosts != 1 || h->origins > 1)
        qn__refuse(x, 400, "one Host is needed, and at most one Origin");
    else
        x->closes = false;
    return !x->closes;
}

/* ---- host and origin ------------------------------------------------------------------------- */

/* "name", "name:80", "[::1]:80": the name, without brackets; false where it is none of these. */
static bool host_name(const char *host, char *name, size_t room)
{
    bool bracket = host[0] == '[';
    size_t n = bracket ? strcspn(++host, "]") : strcspn(host, ":");
    const char *rest = host + n + (bracket && host[n]);
    if (!n || n >= room || (bracket && !host[n]))
        return false;
    if (rest[0] == ':')
        rest += 1 + strspn(rest + 1, "0123456789");
    memcpy(name, host, n);
    name[n] = 0;
    return !*rest;
}

static bool is_listed(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(list[i], name))
            return true;
    return false;
}

static bool host_is_ours(const qn__server *s, const char *host)
{
    char name[256];
    unsigned char address[sizeof(struct in6_addr)];
    if (!host_name(host, name, sizeof name))
        return false;
    return !strcasecmp(name, "localhost") || inet_pton(AF_INET, name, address) == 1 ||
           inet_pton(AF_INET6, name, address) == 1 || !strcasecmp(name, s->options.host) ||
           is_listed(s->options.hosts, s->options.n_hosts, name);
}

static bool origin_is_ours(const qn__server *s, const char *origin)
{
    char name[256];
    unsigned char address[4];
    if (is_listed(s->options.origins, s->options.n_origins, origin))
        return true;
    bool secure = !strncasecmp(origin, "https://", 8);
    if (!secure && strncasecmp(origin, "http://", 7) != 0)
        return false;
    if (!host_name(origin + (secure ? 8 : 7), name, sizeof name))
        return false;
    return !strcasecmp(name, "localhost") || !strcmp(name, "::1") ||
           (inet_pton(AF_INET, name, address) == 1 && address[0] == 127);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* In a time that depends on neither. */
static bool same_key(const char *given, const char *key)
{
    unsigned char a[LONGEST_KEY + 1] = {0}, b[LONGEST_KEY + 1] = {0};
    unsigned different = strlen(given) > LONGEST_KEY;
    strncpy((char *)a, given, LONGEST_KEY);
    strncpy((char *)b, key, LONGEST_KEY);
    for (size_t i = 0; i < sizeof a; i++)
        different |= a[i] ^ b[i];
    return !different;
}

static bool has_key(const qn__server *s, const qn__headers *h)
{
    const char *given = h->api_key ? h->api_key : "";
    if (h->authorization && !strncasecmp(h->authorization, "Bearer ", 7))
        given = h->authorization + 7 + strspn(h->authorization + 7, " ");
    bool found = !s->options.n_keys;
    for (size_t i = 0; i < s->options.n_keys; i++)
        found |= same_key(given, s->options.keys[i]);
    return found;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool check_route(qn__exchange *x)
{
    const qn__route *r = x->route;
    bool fits = r && (!strcmp(x->method, r->method) ||
                      (!strcmp(x->method, "HEAD") && !strcmp(r->method, "GET")));
    if (!r)
        qn__refuse(x, 404,
                   "there is no such path; there are /v1/chat/completions, /v1/completions, "
                   "/v1/models, /health and /metrics");
    else if (!fits) {
        qn__refuse(x, 405, "%s is asked for with %s", r->path, r->method);
        x->extra[0] = "Allow";
        x->extra[1] = r->method[0] == 'G' ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
    }
    return fits;
}

bool qn__guard(qn__exchange *x, const char *version, const qn__headers *h)
{
    const qn__server *s = x->server;
    if (!check_framing(x, version, h))
        return false;
    if (!host_is_ours(s, h->host)) {
        qn__refuse(x, 403, "Host is neither an address nor localhost; --allow-host lets it in");
        return false;
    }
    if (h->origin && !origin_is_ours(s, h->origin)) {
        qn__refuse(x, 403, "Origin is not of this machine; --allow-origin lets it in");
        return false;
    }
    if (h->origin)
        snprintf(x->origin, sizeof x->origin, "%s", h->origin);
    if (!strcmp(x->method, "OPTIONS") && x->route) {
        x->status = 204;
        x->complete = true;
        return false;
    }
    if (!(x->route && x->route->open) && !has_key(s, h)) {
        qn__refuse(x, 401, "a key is needed: Authorization: Bearer KEY");
        x->extra[0] = "WWW-Authenticate";
        x->extra[1] = "Bearer";
        return false;
    }
    return check_route(x);
}
