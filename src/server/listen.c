/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the server listens.
 */
#include "server/inside.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

/* Whether this machine alone reaches the address. */
static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static void print_url(int fd, char *url, size_t room)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[64] = "?", port[16] = "?";
    if (getsockname(fd, (struct sockaddr *)&a, &n) == 0)
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    bool v6 = strchr(host, ':') != NULL;
    snprintf(url, room, "http://%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

static int open_socket(const struct addrinfo *a)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

qn_status qn__listen(int *fd, const qn__server_options *o, char *url, size_t room, qn_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int failure = getaddrinfo(o->host, port, &hints, &found);
    *fd = -1;
    if (failure)
        return qn__fail(err, QN_NOT_FOUND, "%.100s: %s", o->host, gai_strerror(failure));
    if (!is_loopback(found->ai_addr) && !o->n_keys && !o->insecure)
        qn__fail(err, QN_INVALID,
                 "%.100s is reached from other machines, and there is no key: give one with "
                 "--api-key-file FILE, or say --insecure",
                 o->host);
    else if ((*fd = open_socket(found)) < 0) {
        int why = errno;
        qn__fail(err, QN_IO, "%.100s, port %d: %s%s", o->host, o->port, strerror(why),
                 why == EADDRINUSE ? "; --port names another, 0 takes any that is free" : "");
    } else {
        print_url(*fd, url, room);
    }
    freeaddrinfo(found);
    return err->code;
}
