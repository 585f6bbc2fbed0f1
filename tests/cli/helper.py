# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command share. Ends like cmocka, so that scripts/run-tests counts the checks."""
import json
import os
import struct
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


def make_adapter(folder, value, rank=4):
    """A directory as PEFT writes it: layer 0's down_proj of the demo, A and B all one number."""
    with open(os.path.join(SOURCE, "models/demo/config.json"), encoding="utf-8") as f:
        config = json.load(f)
    shapes = {"A": (rank, config["intermediate_size"]), "B": (config["hidden_size"], rank)}
    header, data = {}, b""
    for part, shape in shapes.items():
        n = shape[0] * shape[1] * 4
        header[f"base_model.model.model.layers.0.mlp.down_proj.lora_{part}.weight"] = {
            "dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + n]}
        data += struct.pack("<f", value) * (n // 4)
    text = json.dumps(header).encode()
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": rank}, f)


def finish():
    print(f"[  PASSED  ] {count[0] - len(failures)} tests.")
    for name in failures:
        print(f"[  FAILED  ] {''.join(c if c.isalnum() else '_' for c in name)}")
    sys.exit(1 if failures else 0)
