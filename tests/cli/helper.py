# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command share. Ends like cmocka, so that scripts/run-tests counts the checks."""
import os
import subprocess
import sys

QUERN = os.path.abspath(sys.argv[1])
SOURCE = os.environ.get("QUERN_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
failures, count = [], [0]


def run(*args, stdin=b"", stdout=subprocess.PIPE, shell=None, env=None, user=None):
    command = shell if shell else [QUERN, *args]
    done = subprocess.run(command, shell=bool(shell), input=stdin, stdout=stdout, stderr=subprocess.PIPE,
                          timeout=120, env=env, user=user)
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def check(name, condition, detail=""):
    count[0] += 1
    if not condition:
        failures.append(name)
        print(f"FAIL {name}: {detail}")


def skipped(reason):
    """Says why something is not checked; scripts/run-tests counts it."""
    print(f"skipped: {reason}\n[  SKIPPED ] 1 test.")


def refused(name, result, code, *parts):
    """One line on standard error with every part, nothing on standard output, this exit code."""
    status, out, err = result
    ok = status == code and not out and err.count("\n") == 1 and err.endswith("\n")
    check(name, ok and all(p in err for p in parts), f"status {status}, out {out!r}, err {err!r}")


def finish():
    print(f"[  PASSED  ] {count[0] - len(failures)} tests.")
    for name in failures:
        print(f"[  FAILED  ] {''.join(c if c.isalnum() else '_' for c in name)}")
    sys.exit(1 if failures else 0)
