/* SPDX-License-Identifier: Apache-2.0
 *
 * Public structs that grow.
 *
 * Problem: a program and the shared library that it finds may be of different versions, whose
 * option and result structs have different sizes.
 *
 * Approach: such a struct begins with `size_t size`, which its owner sets to sizeof. Options are
 * copied in: what an older program does not have is zero, which means default; what a newer one has
 * must be zero, or it is refused, since it asks for something that is not there. Results are copied
 * out as far as the program has room.
 *
 * What must stay true: fields are only ever added at the end, and never into padding that was
 * there.
 */
#ifndef QN_BASE_SIZED_H
#define QN_BASE_SIZED_H

#include "quern/base.h"

/* Copies `from`, a struct of *(size_t *)from bytes, into the `room` bytes of the same struct of
 * this version; NULL gives zeros. QN_INVALID: a size that cannot be; QN_UNSUPPORTED: fields of a
 * later version. */
qn_status qn__sized_in(void *to, size_t room, const void *from, const char *name, qn_error *err);

/* Copies a struct of this version to the caller's, whose size stays as it is. QN_INVALID: it has
 * none. */
qn_status qn__sized_out(void *to, const void *from, size_t size);

#endif
