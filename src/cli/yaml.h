/* SPDX-License-Identifier: Apache-2.0
 *
 * The YAML that configurations are written in, as a JSON tree: blocks of `key: value` and `- value`
 * by indentation, lists in brackets, quoted and plain words, comments. Anchors, tags, several
 * documents, texts of several lines and complex keys are refused by their line. A file that begins
 * with { is JSON.
 */
#ifndef QN_CLI_YAML_H
#define QN_CLI_YAML_H

#include "base/json.h"

/* *out is to be freed with cJSON_Delete. */
qn_status yaml_read(cJSON **out, const char *path, qn_error *err);

#endif
