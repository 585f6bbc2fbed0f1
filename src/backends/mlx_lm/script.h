/* SPDX-License-Identifier: Apache-2.0
 *
 * The script that Python runs: bridge.py, which is part of the library, as a file in the user's
 * cache folder ($XDG_CACHE_HOME/quern, else ~/.cache/quern).
 */
#ifndef QN_BACKENDS_MLX_LM_SCRIPT_H
#define QN_BACKENDS_MLX_LM_SCRIPT_H

#include "base/error.h"

/* Its path (malloc). The file's name has a hash of what is in it, nobody else can write it, and it
 * is compared byte for byte: where it differs it is written anew. */
qn_status qn__mlx_lm_script(char **path, qn_error *err);

#endif
