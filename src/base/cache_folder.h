/* SPDX-License-Identifier: Apache-2.0
 *
 * Where what can be made again is kept: $XDG_CACHE_HOME/quern, else ~/.cache/quern.
 */
#ifndef QN_BASE_CACHE_FOLDER_H
#define QN_BASE_CACHE_FOLDER_H

#include "base/error.h"

/* A folder there, or itself with NULL, which is made if need be; malloc. It is the user's, and
 * nobody else may write to it, else QN_INVALID; without a home it is QN_NOT_FOUND. */
qn_status qn__cache_folder(const char *name, char **path, qn_error *err);

#endif
