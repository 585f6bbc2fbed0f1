/* SPDX-License-Identifier: Apache-2.0
 *
 * Laziness: what evaluation does with a graph, arrays that outlive their scope, updates in place.
 *
 *     build/examples/01_lazy
 */
#include <quern/quern.h>

#include <stdio.h>

static qn_plan_stats plans(qn_device *device)
{
    qn_plan_stats stats = QN_INIT(qn_plan_stats); /* says of which size the struct is */
    qn_device_plan_stats(device, &stats);
    return stats;
}

/* y = sigmoid(2 x + 1): three operations and two constants, one pass over memory. */
static void fusion(qn_device *device)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_arange(s, QN_F32, 1000);
    qn_eval(s, x);
    qn_plan_stats before = plans(device);
    qn_array *two = qn_scalar(s, QN_F32, 2), *one = qn_scalar(s, QN_F32, 1);
    qn_array *y = qn_sigmoid(s, qn_add(s, qn_multiply(s, two, x), one));
    qn_eval(s, y);
    qn_plan_stats after = plans(device);
    printf("sigmoid(2 x + 1); kernels: %llu, nodes fused: %llu, bytes moved: %llu\n",
           (unsigned long long)(after.steps - before.steps),
           (unsigned long long)(after.fused - before.fused),
           (unsigned long long)(after.chain_bytes - before.chain_bytes));
    qn_scope_end(s);
}

/* state[0] = sum(state), five times, each step in a scope of its own. The retained array is the one
 * thing that passes from scope to scope; giving it away lets the step write into its buffer. */
static void steps(qn_device *device, bool keep_another)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *first = qn_arange(s, QN_F32, 8);
    qn_eval(s, first);
    qn_array *state = qn_retain(first); /* evaluated: it may outlive the scope */
    qn_scope_end(s);

    qn_plan_stats before = plans(device);
    for (int i = 0; i < 5; i++) {
        qn_array *other = keep_another ? qn_retain(state) : NULL;
        s = qn_scope_begin(device);
        qn_array *old = qn_donate(s, state); /* takes over our reference */
        qn_array *updated = qn_slice_update(s, old, qn_sum(s, old, 0, true), (const int64_t[]){0});
        qn_eval(s, updated);
        state = qn_retain(updated);
        qn_scope_end(s);
        qn_release(other);
    }
    qn_plan_stats after = plans(device);

    float values[8] = {0};
    s = qn_scope_begin(device);
    qn_read_f32(s, state, values, 8);
    qn_scope_end(s);
    qn_release(state);
    printf("state %g, %g, ... %g after 5 steps; plans made: %llu, buffers copied: %llu\n",
           (double)values[0], (double)values[1], (double)values[7],
           (unsigned long long)(after.misses - before.misses),
           (unsigned long long)(after.donation_copies - before.donation_copies));
}

int main(void)
{
    qn_error err = {0};
    qn_device *device;
    if (qn_device_open(&device, "cpu", NULL, &err) != QN_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    fusion(device);
    steps(device, false);
    steps(device, true);
    qn_memory_stats memory = QN_INIT(qn_memory_stats);
    qn_device_memory(device, &memory);
    printf("bytes still held: %zu\n", memory.active);
    qn_device_close(device);
    return 0;
}
