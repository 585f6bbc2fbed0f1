/* SPDX-License-Identifier: Apache-2.0
 *
 * Status texts, the version and the one function that fills a qn_error.
 */
#include "base/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

const char *qn_version(void)
{
    return QN_VERSION; /* of meson.build */
}

const char *qn_status_text(qn_status status)
{
    static const char *const texts[] = {
#define STATUS_TEXT(name, text) [QN_##name] = text,
        QN_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    };
    return (unsigned)status < QN_STATUS_COUNT ? texts[status] : "unknown status";
}

qn_status qn__fail(qn_error *err, qn_status code, const char *format, ...)
{
    if (!err || err->code != QN_OK)
        return code;
    err->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    /* One line, whatever a hostile file put into a name. */
    for (char *c = err->message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return code;
}

qn_status qn__fail_memory(qn_error *err, const char *what)
{
    return qn__fail(err, QN_MEMORY, "out of memory while making %s", what);
}

const char *qn__say_size(uint64_t bytes, qn__size_text *to)
{
    enum { LEAST = 1 << 16 }; /* less would be 0.0 MiB and some */
    const uint64_t mib = 1 << 20, gib = 1 << 30;
    if (bytes < LEAST)
        snprintf(to->text, sizeof to->text, "%" PRIu64 " bytes", bytes);
    else
        snprintf(to->text, sizeof to->text, bytes < gib ? "%.2f MiB" : "%.2f GiB",
                 (double)bytes / (double)(bytes < gib ? mib : gib));
    return to->text;
}
