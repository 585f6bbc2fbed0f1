/* SPDX-License-Identifier: Apache-2.0
 *
 * All of Quern's public headers.
 */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H

#include "quern/array.h"
#include "quern/backend.h"
#include "quern/base.h"
#include "quern/conversation.h"
#include "quern/convert.h"
#include "quern/engine.h"
#include "quern/extend.h"
#include "quern/forward.h"
#include "quern/io.h"
#include "quern/model.h"
#include "quern/ops.h"
#include "quern/text.h"
#include "quern/train.h"

#endif
