/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of families, made from models.def.
 */
#include "models/family.h"

#define FAMILY(symbol) extern const qn__family symbol;
#include "models/models.def"
#undef FAMILY

const qn__family *const qn__families[] = {
#define FAMILY(symbol) &symbol,
#include "models/models.def"
#undef FAMILY
    NULL};
