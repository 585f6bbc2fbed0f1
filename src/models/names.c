/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of names; see names.h.
 */
#include "models/names.h"

#include <stdio.h>

static const struct {
    const char *name[3]; /* by convention */
} roles[QN__ROLE_COUNT] = {
#define ROLE(role, hugging_face, gguf, meta) {{hugging_face, gguf, meta}},
    QN__ROLES(ROLE)
#undef ROLE
};

void qn__name_weight(char *out, size_t room, qn__convention convention,
                     const qn__decoder_place *place, qn__weight_id id)
{
    const char *prefix = id.role == QN__ROLE_HEAD ? place->head_prefix : place->prefix;
    char layer[30] = "";
    if (id.layer >= 0 && convention == QN__NAMES_GGUF)
        snprintf(layer, sizeof layer, "blk.%d.", id.layer);
    else if (id.layer >= 0)
        snprintf(layer, sizeof layer, "layers.%d.", id.layer);
    snprintf(out, room, "%s%s%s.%s", convention == QN__NAMES_HUGGING_FACE ? prefix : "", layer,
             roles[id.role].name[convention], id.part);
}
