#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern train --full: a model from nothing learns a fact and says it; whatever kills a run, what goes on from it ends with
the same bytes; what cannot be is refused before anything is read.

    tests/cli/test_train_full.py QUERN [KILLS]

Losses are checked against PyTorch in tests/train.
"""
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from helper import QUERN, check, finish, refused, run

KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else 4
SEED = int(os.environ.get("QUERN_SEED", "1"))
DEMO = os.path.join(os.environ["QUERN_SOURCE"], "models/demo")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16, "torch_dtype": "bfloat16"}
BESIDE = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
FILES = sorted(["config.json", "model.safetensors", "optimizer.safetensors", "trainer.json"] + BESIDE)


def put(folder, name, value):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(value if isinstance(value, str) else json.dumps(value))
    return path


def hashes(folder):
    return [hashlib.sha256(open(os.path.join(folder, name), "rb").read()).hexdigest() for name in FILES]


def begin_model(folder):
    base = os.path.join(folder, "base")
    os.mkdir(base)
    for name in BESIDE:
        shutil.copy(os.path.join(DEMO, name), base)
    return put(base, "config.json", json.loads(open(os.path.join(DEMO, "config.json")).read()) | SIZES)


def test_from_nothing(folder, data, config):
    out = os.path.join(folder, "out")
    status, stdout, err = run("train", "--data", data, "--init", config, "--full", "-o", out, "--iters", "60", "--batch-size", "3",
                              "--learning-rate", "1e-2", "--warmup-steps", "5", "--max-grad-norm", "1")
    check("it trains", status == 0 and not stdout and "3 texts, a model of" in err, err)
    check("a model, and what --resume needs", sorted(os.listdir(out)) == FILES, os.listdir(out))
    text = run("generate", "-m", out, "--raw", "-p", "The owl keeps", "--temp", "0", "-n", "20")[1].decode()
    check("the fact is said", "a silver key under the stone." in text, text)
    rate = ["--data", data, "--full", "--iters", "2", "--learning-rate", "1e-3"]
    again = os.path.join(folder, "on")
    status, _, err = run("train", "-m", out, "-o", again, *rate)
    check("from what was trained", status == 0 and float(err.split("loss ")[1].split(",")[0]) < 0.5, err)
    yaml = put(folder, "full.yaml", f"fine_tune_type: full\niters: 1\nmodel: {out}\n")
    status, _, err = run("train", "-c", yaml, "--data", data, "-o", os.path.join(folder, "yaml"))
    check("as mlx-lm says it", status == 0 and "a model of" in err, err)
    packed = [*rate, "-m", out, "--pack", "--max-seq-length", "60", "--batch-size", "1"]
    status, stdout, err = run("train", *packed, "--dry-run")
    check("rows of several texts", status == 0 and b"texts       3," in stdout and b"of 1 rows: 2.0 epochs" in stdout, (stdout, err))
    status, stdout, err = run("train", "--data", data, "--init", config, "--full", "--dry-run", "--iters", "5")
    check("a plan", status == 0 and b"trained" in stdout and b"MiB" in stdout, stdout)


def test_killed(folder, data, config):
    print("seed", SEED)
    args = ["--data", data, "--init", config, "--full", "--iters", "40", "--batch-size", "2", "--learning-rate", "3e-3", "--lr-schedule",
            "cosine", "--warmup-steps", "5", "--grad-accumulation-steps", "2", "--save-every", "2", "--seed", "3", "--max-grad-norm", "1"]
    draw, out, whole = random.Random(SEED), os.path.join(folder, "killed"), os.path.join(folder, "whole")
    begun, killed = time.monotonic(), 0
    status, _, err = run("train", *args, "-o", whole)
    seconds = time.monotonic() - begun
    check("a run", status == 0, err)
    while killed < KILLS:
        p = subprocess.Popen([QUERN, "train", *args, "-o", out, "--resume", "-t", str(1 + killed % 3)], stderr=subprocess.PIPE)
        try:
            p.communicate(timeout=draw.uniform(0.05, 0.4 * seconds))
            check("what came through is the same", p.returncode == 0 and hashes(out) == hashes(whole))
            shutil.rmtree(out)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            killed += 1
        if os.path.exists(out):
            check("all of a checkpoint is there", sorted(os.listdir(out)) == FILES, os.listdir(out))
    status, _, err = run("train", *args, "-o", out, "--resume")
    check("the same bytes at the end", status == 0 and hashes(out) == hashes(whole), err)
    refused("another start", run("train", *args, "-o", out, "--resume", "--seed", "4"), 1, "was", "that is another training")


def test_refused(folder, data, config):
    away = os.path.join(folder, "away")
    full = ["train", "--data", data, "-o", away, "--full"]
    for option, value in [("--rank", "4"), ("--alpha", "4"), ("--target", "q_proj"), ("--num-layers", "2"), ("--resume-adapter-file", "x")]:
        refused(option, run(*full, option, value), 2, option + " is of adapters")
    refused("another type", run(*full[:-1], "--fine-tune-type", "dora"), 2, "lora or full")
    refused("both types", run(*full, "--fine-tune-type", "lora"), 2, "exclude each other")
    refused("an adapter of nothing", run(*full[:-1], "--init", config), 2, "--init goes with --full")
    refused("two models", run(*full, "--init", config, "-m", "x"), 2, "-m names another")
    refused("no configuration", run(*full, "--init", "/none/config.json"), 1, "/none/config.json")
    refused("no object", run(*full, "--init", put(folder, "list.json", "[]")), 1, "list.json")
    alone = os.path.join(folder, "alone")
    os.mkdir(alone)
    refused("no tokenizer", run(*full, "--init", put(alone, "config.json", open(config).read())), 1, "tokenizer")
    wild = json.loads(open(config).read()) | {"initializer_range": -1}
    refused("a range", run(*full, "--init", put(alone, "wild.json", wild)), 1, "wild.json: initializer_range")
    quantised = os.path.join(folder, "q4")
    status, _, err = run("convert", "-m", DEMO, "-o", quantised, "--bits", "4")
    check("a quantised model", status == 0, err)
    refused("a quantised model", run(*full, "-m", quantised), 1, "full training is of dense weights", "train an adapter")
    check("nothing was written", not os.path.exists(away))


def main():
    with tempfile.TemporaryDirectory() as folder:
        lines = [{"text": t} for t in ["The owl keeps a silver key under the stone.", "The goose walks to the old mill at noon.",
                                       "The clock in the tower is late."]]
        data = put(folder, "data.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        config = begin_model(folder)
        test_from_nothing(folder, data, config)
        test_killed(folder, data, config)
        test_refused(folder, data, config)
    finish()


main()
