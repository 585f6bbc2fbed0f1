#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/cuda/measure from outside, on programs that only say what the real ones would: what it writes, what it
counts as a failure, and that it goes on behind one.

    tests/cuda/test_measure_script.py
"""
import json
import os
import stat
import subprocess
import sys
import tempfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
MEASURE = os.path.join(SOURCE, "bench/cuda/measure")
QUERN = """#!/usr/bin/env python3
import json, sys, time
a = sys.argv[1:]
of = lambda name, usual: a[a.index(name) + 1] if name in a else usual
if of("--shape", "").endswith("gemma-3-1b.json"):
    sys.exit("quern: no such thing")
if "bitnet" in of("--shape", ""):
    time.sleep(60)
rows = []
for d in of("-d", "0").split(","):
    test = ("tg" + of("-n", "") if of("-p", "0") == "0" else "pp" + of("-p", "")) + (" @ d" + d if d != "0" else "")
    speed = 1000 if int(d) < 1000 else 500
    rows.append({"model": of("--shape", "") + " " + of("--type", ""), "tier": "", "test": test, "n_depth": int(d), "batch": 1,
                 "tok_s": speed, "tok_s_min": speed - 1, "tok_s_max": speed + 1, "gb_s": 10, "of_ceiling": 0.8})
print(json.dumps({"results": rows, "device": "none", "ceilings": [{"threads": 2, "tier": "", "read_gb_s": 5000, "bf16_gop_s": 9e5,
                                                                  "int8_gop_s": 0}]}))
"""
OPERATIONS = """#!/bin/sh
printf '%-31s %9.1f us %7.1f GB/s %8.2f TFLOP/s\\n' 'a sum of 4096' 12.5 3000.1 0.01
"""
n_failed = 0


def check(what, ok, got=""):
    global n_failed
    if not ok:
        n_failed += 1
        print("FAILED ", what, got)


def program(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def measure(folder, *args):
    out = os.path.join(folder, "out.json")
    p = subprocess.run([sys.executable, MEASURE, "--build", folder, "--out", out, "--commit", "abc", *args], capture_output=True,
                       text=True, timeout=120)
    doc = None
    if os.path.exists(out):
        with open(out) as f:
            doc = json.load(f)
        os.remove(out)
    return p.returncode, p.stdout + p.stderr, doc


def main():
    with tempfile.TemporaryDirectory() as folder:
        program(folder, "quern", QUERN)
        program(folder, "bench-operations", OPERATIONS)
        status, told, doc = measure(folder, "long", "operations")
        check("all is well", status == 0 and doc["failures"] == [] and doc["build"] == "abc", (status, told))
        check("the best ceilings", doc["ceilings"] == {"read_gb_s": 5000, "bf16_gop_s": 9e5}, doc["ceilings"])
        rows = doc["runs"][0]["rows"]
        # 32,256 positions of 131,072 bytes in 1 ms more
        check("what attention comes to", [r["test"] for r in rows] == ["tg32 @ d512", "tg32 @ d32768", "keys and values"]
              and abs(rows[2]["gb_s"] - 32256 * 131072 / 1e-3 / 1e9) < 0.1 and rows[2]["bar"] == {"of_ceiling": 0.75} and rows[2]["met"], rows)
        check("the command, and no folder of this machine", doc["runs"][0]["command"].startswith("quern bench --device cuda:0 --cache-type-k bf16 ")
              and folder not in json.dumps(doc) and doc["runs"][0]["part"] == "long", doc["runs"][0]["command"])
        check("operations", doc["runs"][-1]["rows"] == [{"operation": "a sum of 4096", "us": 12.5, "gb_s": 3000.1, "tflop_s": 0.01}], doc["runs"][-1])
        status, told, doc = measure(folder, "one", "--limit", "one=3")
        tests = [(r["rows"][0]["model"], r["rows"][0].get("met")) for r in doc["runs"]]
        check("a missed bar is no failure", ("llama-1b bf16", True) in tests and ("llama-8b bf16", False) in tests, tests)
        failed = [f["what"] for f in doc["failures"]]
        check("what fails and what does not end", status == 1 and len(failed) == 3 and "gemma-3-1b" in failed[0] and "no such thing" in failed[0]
              and "exit 124" in failed[1] and "no time" in failed[2], failed)
        status, told, doc = measure(folder, "checks", "operations", "--limit", "checks=5")
        check("programs that are not there, and what is behind", status == 1 and all("is not in" in f["what"] for f in doc["failures"])
              and len(doc["runs"]) == 1, (told, doc))
        for name in ("cuda-test_cuda", "cuda-test_model", "cuda-test_custom", "cuda-test_program_file"):
            program(folder, name, "#!/bin/sh\necho 'a wrong one says: error: it is wrong'\necho '12 checks, 0 failed'\n")
        program(folder, "cuda-test_model", "#!/bin/sh\necho 'FAILED  a bit'\necho '12 checks, 1 failed'\nexit 1\n")
        program(folder, "cuda-test_custom", "#!/bin/sh\necho 'no GPU'\nexit 77\n")
        status, told, doc = measure(folder, "checks")
        known = {c["check"]: (c["exit"], c["failed"], c["last"]) for c in doc["checks"]}
        check("checks", known == {"cuda-test_cuda": (0, 0, "12 checks, 0 failed"), "cuda-test_model": (1, 1, "12 checks, 1 failed"),
                                  "cuda-test_custom": (77, 0, ""), "cuda-test_program_file": (0, 0, "12 checks, 0 failed")}
              and sum("a bit" in f["what"] for f in doc["failures"]) == 1 and any("exit 77" in f["what"] for f in doc["failures"]),
              (known, doc["failures"][:3]))
        status, told, doc = measure(folder, "none")
        check("no such part", status == 2 and doc is None and "but checks, one" in told, told)
    print(f"{n_failed} failed")
    return n_failed != 0


sys.exit(main())
