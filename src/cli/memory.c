/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory there is for a cache: what Linux reckons it can give without swapping
 * (MemAvailable), and less where a control group has a limit (containers;
 * https://docs.kernel.org/admin-guide/cgroup-v2.html).
 */
#include "cli/shared.h"

#include <inttypes.h>
#include <string.h>

/* The number in a file behind `name`; otherwise as it is. */
static uint64_t number_in(const char *path, const char *name, uint64_t otherwise)
{
    char line[256];
    uint64_t value = otherwise;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)) &&
            sscanf(line + strlen(name), "%" SCNu64, &value) == 1)
            break;
    if (f)
        fclose(f);
    return value;
}

/* Where this process is in the tree of control groups, "" at its root; version 2 alone. */
static void find_group(char *path, size_t room)
{
    char line[512];
    FILE *f = fopen("/proc/self/cgroup", "re");
    snprintf(path, room, "/sys/fs/cgroup");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "0::", 3) && strcmp(line, "0::/\n")) {
            line[strcspn(line, "\n")] = 0;
            snprintf(path, room, "/sys/fs/cgroup%s", line + 3);
        }
    if (f)
        fclose(f);
}

uint64_t available_memory(void)
{
    char group[600], path[640];
    uint64_t free_kib = number_in("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
    uint64_t most = free_kib * 1024;
    find_group(group, sizeof group);
    snprintf(path, sizeof path, "%s/memory.max", group);
    uint64_t limit = number_in(path, "", UINT64_MAX); /* "max" is no number */
    snprintf(path, sizeof path, "%s/memory.current", group);
    uint64_t used = number_in(path, "", 0);
    snprintf(path, sizeof path, "%s/memory.stat", group);
    uint64_t files = number_in(path, "inactive_file ", 0); /* given up when memory is short */
    used = used > files ? used - files : 0;
    if (limit != UINT64_MAX) {
        limit = limit > used ? limit - used : 0;
        most = limit < most ? limit : most;
    }
    return most;
}
