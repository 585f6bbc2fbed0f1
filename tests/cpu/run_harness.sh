#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernel harness built apart from the library, for instructions that this machine does not have, and run.
# For run_neon.sh and run_emulated.sh, in the folder of the sources.
#
#     run_harness.sh NAME "COMPILER FLAGS" "TIER TO BUILD..." "PROGRAM BEFORE IT" TIER TO CHECK...
#
# Objects are kept in the folder that QUERN_HARNESS names, where it does: scripts/plant-faults changes a file at
# a time.
# shellcheck disable=SC2016,SC2086
set -eu
name=$1 compile=$2 build=$3 under=$4
shift 4
if [ "${QUERN_HARNESS-}" ]; then
    folder=$QUERN_HARNESS/$name
    mkdir -p "$folder"
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
{
    printf 'builddir = %s\n' "$folder"
    printf 'rule cc\n  command = %s -MMD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n' "$compile"
    printf 'rule link\n  command = %s $in -o $out -lm -lpthread\n' "$compile"
    objects=
    for source in $(for tier in '' $build; do scripts/list-sources src/cpu/kernels $tier; done
        scripts/list-sources src/quant) \
        tests/cpu/test_kernels.c tests/cpu/check_*.c bench/kernels/bench_cpu.c; do
        object=$folder/$(echo "$source" | tr / _).o
        printf 'build %s: cc %s\n' "$object" "$source"
        objects="$objects $object"
    done
    printf 'build %s/test: link%s\n' "$folder" "$objects"
} >"$folder/build.ninja"
ninja --quiet -f "$folder/build.ninja" "$folder/test"
for tier in "$@"; do
    $under "$folder/test" --quiet --tier "$tier"
done
