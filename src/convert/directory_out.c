/* SPDX-License-Identifier: Apache-2.0
 */
#include "convert/convert.h"
qn_status qn__convert_to_directory(qn__conversion *c)
{
    return qn__fail(c->err, QN_UNSUPPORTED, "not yet");
}
