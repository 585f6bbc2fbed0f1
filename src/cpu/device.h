/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the CPU device, and what of it every device has.
 */
#ifndef QN_CPU_DEVICE_H
#define QN_CPU_DEVICE_H

#include "core/device.h"

/* For logits on the host, whichever device made them: of the tier that the options or QN_CPU name,
 * or, where that is none of this machine's, the reference's. */
qn__weigh_fn *qn__cpu_host_weigh(const qn_device_options *options);

qn_status qn__cpu_open(qn_device **out, const qn_device_options *options, qn_error *err);

#endif
