#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernel harness for the NEON tier, cross-compiled and run under qemu. Where the machine is itself an
# AArch64 one, test_kernels has checked that tier already.
#
#     run_neon.sh SOURCE_FOLDER
set -eu
cd "$1"
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v $tool >/dev/null && continue
    echo "there is no $tool: \`scripts/setup --tests\` installs it"
    echo "[  SKIPPED ] 1 test(s)"
    exit 0
done
exec tests/cpu/run_harness.sh neon "aarch64-linux-gnu-gcc -static -std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off \
-Wall -Wextra -Werror -Wno-missing-field-initializers -Iinclude -Isrc" neon qemu-aarch64 neon
