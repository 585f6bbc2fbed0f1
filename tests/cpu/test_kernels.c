/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks every CPU kernel of every tier that this machine has: values against f64, and bits against
 * every other way to cut the same work. With --bench [name] it times them against peaks measured in
 * the same run, --json for machines.
 *
 * Usage: test_kernels [--tier NAME] [--quiet] | --bench [NAME] [--json]. Returns 1 when a check
 * failed.
 */
#include "check.h"

int check_count, check_failures, check_quiet;

int main(int argc, char **argv)
{
    const char *only = NULL, *bench_name = NULL;
    int bench = 0, json = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bench"))
            bench = 1;
        else if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (!strcmp(argv[i], "--quiet"))
            check_quiet = 1;
        else if (!strcmp(argv[i], "--tier") && i + 1 < argc)
            only = argv[++i];
        else
            bench_name = argv[i];
    }
    if (bench)
        return bench_cpu(json, bench_name);
    qn__cpu_kernels ref, t;
    check("fill ref", "-", qn__cpu_kernels_fill(&ref, "ref") == 0 && !strcmp(ref.tier, "ref"));
    check("fill unknown tier", "-",
          qn__cpu_kernels_fill(&t, "zen") == -1 && !strcmp(t.tier, "ref"));
    check("fill best tier", "-", qn__cpu_kernels_fill(&t, NULL) == 0);
    for (int i = 0; qn__cpu_tier_name(i); i++) {
        const char *tier = qn__cpu_tier_name(i);
        if ((only && strcmp(only, tier) != 0) || qn__cpu_kernels_fill(&t, tier) != 0)
            continue;
        check_maps(&t, &ref);
        check_rows(&t, &ref);
        check_matmul(&t);
        check_linear(&t, &ref);
        check_attend(&t);
    }
    printf("[  PASSED  ] %d tests.\n", check_count - check_failures);
    printf("%d failed\n", check_failures);
    return check_failures != 0;
}
