#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernel harness for the AVX-512 and AMX tiers, whose instructions are C functions here
# (emulated/immintrin.h): for machines without them. It needs a processor with AVX2, FMA and F16C, and GCC: Clang
# passes no 64-byte vectors between functions there.
#
#     run_emulated.sh SOURCE_FOLDER [TIER...]
set -eu
cd "$1"
shift
for flag in avx2 fma f16c; do
    grep -qsw $flag /proc/cpuinfo && continue
    echo "this processor has no $flag"
    echo "[  SKIPPED ] 1 test(s)"
    exit 0
done
command -v gcc >/dev/null || {
    echo "there is no gcc"
    echo "[  SKIPPED ] 1 test(s)"
    exit 0
}
# shellcheck disable=SC2048,SC2086
exec tests/cpu/run_harness.sh emulated "gcc -std=c11 -D_GNU_SOURCE -DQN_EMULATED_ISA -O2 -mavx2 -mfma -mf16c \
-ffp-contract=off -Wall -Wextra -Wno-missing-field-initializers -Wno-psabi -Itests/cpu/emulated -Iinclude -Isrc" \
    "avx2 avx512 amx" "" ${*:-avx512 amx}
