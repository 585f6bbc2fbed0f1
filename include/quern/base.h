/* SPDX-License-Identifier: Apache-2.0
 *
 * Status codes, error details, logging and the version: what every other header stands on.
 */
#ifndef QUERN_BASE_H
#define QUERN_BASE_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#include <atomic>
#else
#include <stdatomic.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define QN_API               __attribute__((__visibility__("default")))
#define QN_PRINTF(fmt, args) __attribute__((__format__(__printf__, fmt, args)))
#else
#define QN_API
#define QN_PRINTF(fmt, args)
#endif

#define QN_VERSION_MAJOR 0
#define QN_VERSION_MINOR 1
#define QN_VERSION_PATCH 0

/* "0.1.0": the version of the library that runs, which may differ from the headers'. */
QN_API const char *qn_version(void);

/* Every status code: name and the text that qn_status_text returns. */
#define QN_STATUS_LIST(X)                                                                          \
    X(OK, "ok")                                                                                    \
    X(INVALID, "invalid argument")                                                                 \
    X(MEMORY, "out of memory")                                                                     \
    X(LIMIT, "a limit was exceeded")                                                               \
    X(IO, "input or output failed")                                                                \
    X(FORMAT, "malformed input")                                                                   \
    X(UNSUPPORTED, "not supported")                                                                \
    X(NOT_FOUND, "not found")                                                                      \
    X(CANCELLED, "cancelled")                                                                      \
    X(DEVICE, "device failure")                                                                    \
    X(STATE, "object is not in a state that allows this")                                          \
    X(BUSY, "busy, try again later")

typedef enum qn_status {
#define QN_STATUS_ENUM(name, text) QN_##name,
    QN_STATUS_LIST(QN_STATUS_ENUM)
#undef QN_STATUS_ENUM
        QN_STATUS_COUNT
} qn_status;

/* The short text of a status code; never NULL. */
QN_API const char *qn_status_text(qn_status status);

/* What went wrong, in one line for a person: file, field, value, limit. A plain value that the
 * caller owns: zero it before use ({0}, in C++ {}), pass its address, read it when a call fails.
 * Functions accept NULL where the detail isn't wanted. The first failure stays until the caller
 * zeroes it. */
typedef struct qn_error {
    qn_status code;
    char message[500];
} qn_error;

/* Structs of options and results begin with their size, so that later versions can add fields: zero
 * means default, and what an older program does not have is zero. Set it as `.size = sizeof(type)`,
 * or with this:
 *
 *     qn_session_options options = QN_INIT(qn_session_options);
 *     options.context = 4096;
 *
 * A size of 0 is refused, as is a field that is set and that the library, an older one, does not
 * know. */
#ifdef __cplusplus
} /* extern "C" */
template <typename T> inline T qn_init()
{
    T made = T();
    made.size = sizeof(T);
    return made;
}
extern "C" {
#define QN_INIT(type) qn_init<type>()
#else
#define QN_INIT(type) ((type){.size = sizeof(type)})
#endif

/* A flag that one thread or a signal handler sets and others poll. */
#ifdef __cplusplus
typedef std::atomic<bool> qn_flag;
#else
typedef atomic_bool qn_flag;
#endif

typedef enum qn_log_level { QN_LOG_DEBUG, QN_LOG_INFO, QN_LOG_WARN, QN_LOG_ERROR } qn_log_level;

/* Receives one line without its newline. Called from any thread that the object logs from. */
typedef void (*qn_log_fn)(void *user, qn_log_level level, const char *line);

#ifdef __cplusplus
}
#endif
#endif
