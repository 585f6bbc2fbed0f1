/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalization form C (https://unicode.org/reports/tr15/) with the tables of the Unicode version
 * that tokenizers were trained with.
 */
#ifndef QN_TEXT_NFC_H
#define QN_TEXT_NFC_H

#include "quern/text.h"

/* Appends the NFC of s[0..n), valid UTF-8, to `out`; false when memory is out. */
bool qn__nfc_append(qn_text *out, const char *s, size_t n);

#endif
