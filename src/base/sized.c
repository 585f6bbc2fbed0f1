/* SPDX-License-Identifier: Apache-2.0
 *
 * Copying structs that grow; see sized.h.
 */
#include "base/sized.h"
#include "base/error.h"

#include <string.h>

enum { LARGEST_STRUCT = 1 << 16 }; /* more was never set */

qn_status qn__sized_in(void *to, size_t room, const void *from, const char *name, qn_error *err)
{
    size_t size = room;
    memset(to, 0, room);
    if (from)
        memcpy(&size, from, sizeof size);
    if (size < sizeof size || size > LARGEST_STRUCT)
        return qn__fail(err, QN_INVALID,
                        "%s.size is %zu; set it to sizeof(%s), or begin with QN_INIT(%s)", name,
                        size, name, name);
    for (size_t i = room; i < size; i++)
        if (((const char *)from)[i])
            return qn__fail(err, QN_UNSUPPORTED,
                            "%s: byte %zu is set, which belongs to a later version than %s", name,
                            i, qn_version());
    if (from)
        memcpy(to, from, size < room ? size : room);
    memcpy(to, &room, sizeof room);
    return QN_OK;
}

qn_status qn__sized_out(void *to, const void *from, size_t size)
{
    size_t room;
    memcpy(&room, to, sizeof room);
    if (room < sizeof room)
        return QN_INVALID;
    size_t n = room < size ? room : size;
    memcpy((char *)to + sizeof room, (const char *)from + sizeof room, n - sizeof room);
    return QN_OK;
}
