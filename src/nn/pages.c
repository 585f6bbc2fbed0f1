/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers of pages.
 */
#include "nn/pages.h"

#include "base/error.h"

#include <stdbool.h>
#include <stdlib.h>

void qn__pages_begin(qn__pages *pages, int64_t most)
{
    *pages = (qn__pages){.most = most < INT32_MAX ? (int32_t)most : INT32_MAX};
}

void qn__pages_end(qn__pages *pages)
{
    free(pages->refs);
    *pages = (qn__pages){0};
}

static bool reserve_refs(qn__pages *pages)
{
    if (pages->top < pages->room)
        return true;
    int64_t room = (int64_t)pages->room * 2 + 64;
    room = room < pages->most ? room : pages->most;
    uint32_t *refs = realloc(pages->refs, (size_t)room * sizeof *refs);
    if (!refs)
        return false;
    pages->refs = refs;
    pages->room = (int32_t)room;
    return true;
}

qn_status qn__pages_take(qn__pages *pages, int32_t *page, qn_error *err)
{
    while (pages->lowest < pages->top && pages->refs[pages->lowest])
        pages->lowest++;
    if (pages->lowest == pages->top) {
        if (pages->top == pages->most)
            return qn__fail(err, QN_LIMIT, "all %d pages of the cache are in use", pages->most);
        if (!reserve_refs(pages))
            return qn__fail_memory(err, "a cache's pages");
        pages->top++;
    }
    *page = pages->lowest++;
    pages->refs[*page] = 1;
    pages->in_use++;
    return QN_OK;
}

void qn__pages_share(qn__pages *pages, int32_t page)
{
    pages->refs[page]++;
}

void qn__pages_give_back(qn__pages *pages, int32_t page)
{
    if (--pages->refs[page])
        return;
    pages->in_use--;
    pages->lowest = page < pages->lowest ? page : pages->lowest;
    while (pages->top && !pages->refs[pages->top - 1])
        pages->top--;
}
