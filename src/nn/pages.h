/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers of pages: the lowest free one is taken first, so that memory is needed for few; a page
 * with several references is free when the last of them has been given back.
 */
#ifndef QN_NN_PAGES_H
#define QN_NN_PAGES_H

#include "quern/base.h"

#include <stdint.h>

typedef struct qn__pages {
    int32_t most;   /* numbers are below */
    int32_t top;    /* those in use are below */
    int32_t in_use; /* their number */
    int32_t lowest; /* there is no free one below */
    int32_t room;
    uint32_t *refs; /* [room]; of those below top, 0: free */
} qn__pages;

void qn__pages_begin(qn__pages *pages, int64_t most);
void qn__pages_end(qn__pages *pages);

/* A page with one reference, into *page. QN_LIMIT: all are in use. */
qn_status qn__pages_take(qn__pages *pages, int32_t *page, qn_error *err);

/* One reference more, and one fewer. */
void qn__pages_share(qn__pages *pages, int32_t page);
void qn__pages_give_back(qn__pages *pages, int32_t page);

#endif
