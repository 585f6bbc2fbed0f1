/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF's iq4_nl and iq4_xs: 4-bit codes that choose one of 16 values, denser around zero.
 */
#ifndef QN_QUANT_IQ4_H
#define QN_QUANT_IQ4_H

#include "quant/codecs.h"

extern const int8_t qn__iq4_values[16];

#endif
