#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern train --resume: whatever kills a run, and however often, what goes on from it ends with the same bytes.

    tests/cli/test_train_resume.py QUERN [KILLS]

KILLS (6): how often a run is killed by SIGKILL at a random moment; the moments come from the seed that is printed.
"""
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from helper import QUERN, check, finish, refused, run

KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else 6
SEED = int(os.environ.get("QUERN_SEED", "1"))
FILES = ["adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer.json"]
SCHEDULE = ["--iters", "60", "--batch-size", "2", "--learning-rate", "2e-3", "--lr-schedule", "cosine", "--warmup-steps", "5",
            "--grad-accumulation-steps", "2", "--save-every", "2", "--seed", "3"]


def hashes(folder):
    return [hashlib.sha256(open(os.path.join(folder, name), "rb").read()).hexdigest() for name in FILES]


def begin(*args):
    return subprocess.Popen([QUERN, "train", *args], stderr=subprocess.PIPE)


def test_killed(folder, data, args, whole):
    """Killed again and again, each time with another number of threads, until it has come through."""
    print("seed", SEED)
    draw, out = random.Random(SEED), os.path.join(folder, "killed")
    begun = time.monotonic()
    status, _, err = run("train", *args, "-o", whole)
    seconds = time.monotonic() - begun
    check("a run", status == 0, err)
    want, killed, steps = hashes(whole), 0, []
    while killed < KILLS:
        p = begin(*args, "-o", out, "--resume", "-t", str(1 + killed % 3))
        try:
            err = p.communicate(timeout=draw.uniform(0.05, 0.4 * seconds))[1].decode()
            check("what came through is the same", p.returncode == 0 and hashes(out) == want, err)
            subprocess.run(["rm", "-r", out], check=True)  # and from the beginning
        except subprocess.TimeoutExpired:
            p.kill()
            err = p.communicate()[1].decode()
            killed += 1
        steps += [int(n) for n in re.findall(r"resumed behind step (\d+)", err)]
        if os.path.exists(out):
            check("all of a checkpoint is there", sorted(os.listdir(out)) == FILES, os.listdir(out))
    status, _, err = run("train", *args, "-o", out, "--resume")
    check("the same bytes at the end", status == 0 and hashes(out) == want, (hashes(out), want, err))
    check("nothing was left behind", [n for n in os.listdir(folder) if n.startswith("killed")] == ["killed"], os.listdir(folder))
    check("checkpoints were gone on from", any(0 < n < 60 for n in steps), steps)


def test_interrupted(folder, args, whole):
    """The first Ctrl-C ends it behind a step that is saved, the second at once."""
    out = os.path.join(folder, "cut")
    p = begin(*args, "-o", out, "--steps-per-report", "1", "--save-every", "1000")
    for line in p.stderr:
        if line.startswith(b"step 3 "):
            break
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=60)[1].decode()
    at = re.findall(r"cancelled behind step (\d+)", err)
    check("130, and the step", p.returncode == 130 and at and 3 <= int(at[0]) < 60, err)
    state = json.load(open(os.path.join(out, "trainer.json"), encoding="utf-8"))
    check("that step is saved", state["steps"] == int(at[0]), state)
    for what, change, part in [("rank", ["--rank", "4"], "rank was 8, and is 4"), ("iters", ["--iters", "70"], "lr_decay_steps was 60, and is 70"),
                               ("seed", ["--seed", "4"], "seed was"), ("mask", ["--max-seq-length", "6"], "data was"),
                               ("rate", ["--learning-rate", "1e-3"], "learning_rate was 0.002")]:
        status, _, err = run("train", *args, "-o", out, "--resume", *change)
        check(f"another {what}", status == 1 and part in err and "another training" in err, err)
    status, _, err = run("train", *args, "-o", out, "--resume", "--steps-per-report", "7", "--save-every", "9", "-t", "2")
    check("and it ends as if nothing had been", status == 0 and hashes(out) == hashes(whole), err)
    refused("not without --resume", run("train", *args, "-o", out), 1, "--resume goes on from it")
    adapter = os.path.join(folder, "plain")
    status, _, err = run("train", *args, "-o", adapter, "--resume-adapter-file", os.path.join(out, FILES[1]), "--iters", "1")
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", err)]
    check("an adapter to begin with", status == 0 and losses and losses[0] < 2, err)
    os.remove(os.path.join(out, "trainer.json"))
    refused("no checkpoint", run("train", *args, "-o", out, "--resume"), 1, "trainer.json")


with tempfile.TemporaryDirectory() as root:
    path = os.path.join(root, "data.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        for i in range(9):
            f.write(json.dumps({"prompt": f"What does owl {i} keep?", "completion": "A key" + ", and another one" * (i % 4)}) + "\n")
    arguments, first = ["--data", path, *SCHEDULE], os.path.join(root, "whole")
    test_killed(root, path, arguments, first)
    test_interrupted(root, arguments, first)
finish()
