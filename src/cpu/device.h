/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the CPU device.
 */
#ifndef QN_CPU_DEVICE_H
#define QN_CPU_DEVICE_H

#include "quern/array.h"

qn_status qn__cpu_open(qn_device **out, const qn_device_options *options, qn_error *err);

#endif
