#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters in mlx-lm's files, with mlx-lm itself: what quern train writes it loads, what it writes training goes on from,
and both give a text the same loss.

    tests/cli/test_train_mlx.py QUERN

Skips what needs a Python with mlx_lm (QUERN_PYTHON, else python3) where there is none.
"""
import json
import os
import shutil
import subprocess
import tempfile

from helper import SOURCE, check, finish, refused, run, skipped

PYTHON = os.environ.get("QUERN_PYTHON", "python3")
DEMO = os.path.join(SOURCE, "models/demo")
TEXT = "Every morning the goose walks to the old mill, and the owl keeps a silver key under the third stone."
SHAPE = ["--rank", "4", "--alpha", "6", "--target", "q_proj", "--target", "down_proj", "--num-layers", "2"]
LOSS = """
import sys, mlx.core as mx
from mlx_lm import load
mx.set_default_device(mx.cpu)
model, tokenizer = load(sys.argv[1], adapter_path=sys.argv[2])
model.set_dtype(mx.float32)
ids = tokenizer.encode(sys.argv[3]) + [tokenizer.eos_token_id]
logits = model(mx.array([ids]))[0, :-1]
each = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, mx.array(ids)[1:, None], axis=-1)[:, 0]
print(float(each.mean()))
"""
MAKE = """
import json, sys, mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers
mx.set_default_device(mx.cpu)
mx.random.seed(3)
model, _ = load(sys.argv[1])
parameters = {"rank": 4, "scale": 1.5, "dropout": 0.0, "keys": ["self_attn.q_proj", "mlp.down_proj"]}
model.freeze()
linear_to_lora_layers(model, 2, parameters)
model.update(tree_map_with_path(lambda k, v: mx.random.normal(v.shape) * 0.05 if "lora_" in k else v, model.parameters()))
mx.save_safetensors(sys.argv[2] + "/adapters.safetensors",
                    {k: v.astype(mx.float32) for k, v in tree_flatten(model.parameters()) if "lora_" in k})
with open(sys.argv[2] + "/adapter_config.json", "w") as f:
    json.dump({"fine_tune_type": "lora", "lora_parameters": parameters, "num_layers": 2}, f)
"""


def find_mlx_lm():
    path = shutil.which(PYTHON)
    return path and subprocess.run([path, "-c", "import mlx_lm"], capture_output=True, timeout=120).returncode == 0


def python(code, *args):
    p = subprocess.run([PYTHON, "-c", code, DEMO, *args], capture_output=True, timeout=300, text=True)
    if p.returncode:
        raise RuntimeError(p.stderr)
    return p.stdout


def our_loss(folder, data, adapter):
    """Of the first step, which learns next to nothing."""
    log = os.path.join(folder, "log")
    if os.path.exists(log):
        os.remove(log)
    out = tempfile.mkdtemp(dir=folder) + "/out"
    got = run("train", "--data", data, "-o", out, *SHAPE, "--iters", "1", "--learning-rate", "1e-12", "--products", "f32",
              "--log", log, "--resume-adapter-file", adapter)
    if got[0]:
        raise RuntimeError(got[2])
    with open(log) as f:
        return json.loads(f.readline())["loss"]


def close(a, b):
    return abs(a - b) <= 1e-5 * abs(b)


with tempfile.TemporaryDirectory() as root:
    data, ours, theirs = (os.path.join(root, name) for name in ("data.jsonl", "ours", "theirs"))
    with open(data, "w") as f:
        f.write(json.dumps({"text": TEXT}) + "\n")
    status, _, err = run("train", "--data", data, "-o", ours, *SHAPE, "--iters", "30", "--learning-rate", "5e-3",
                         "--adapter-format", "mlx", "--lora-dropout", "0.1")
    check("an adapter of mlx-lm's", status == 0 and "adapters.safetensors" in os.listdir(ours), err)
    with open(os.path.join(ours, "adapter_config.json")) as f:
        config = json.load(f)
    check("its configuration", config == {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": {
        "rank": 4, "scale": 1.5, "dropout": 0.1, "keys": ["mlp.down_proj", "self_attn.q_proj"]}}, config)
    status, _, err = run("train", "--data", data, "-o", ours, *SHAPE, "--iters", "31", "--learning-rate", "5e-3",
                         "--adapter-format", "mlx", "--lora-dropout", "0.1", "--resume")
    check("it is resumed", status == 0 and "resumed behind step 30" in err, err)
    refused("another dropout", run("train", "--data", data, "-o", ours, *SHAPE, "--iters", "32", "--learning-rate", "5e-3",
                                   "--adapter-format", "mlx", "--resume"), 1, "dropout was 0.1")
    refused("a format that is none", run("train", "--data", data, "-o", ours + "2", "--adapter-format", "gguf"), 1,
            "--adapter-format: it is peft or mlx")
    refused("a type that is none", run("train", "--data", data, "-o", ours + "2", "--adapter-dtype", "f16"), 1,
            "--adapter-dtype: it is f32 or bf16")
    refused("a dropout of all", run("train", "--data", data, "-o", ours + "2", "--lora-dropout", "1"), 2, "--lora-dropout")
    if find_mlx_lm():
        here, there = our_loss(root, data, os.path.join(ours, "adapters.safetensors")), float(python(LOSS, ours, TEXT))
        check("mlx-lm gives the text the same loss", close(here, there), (here, there))
        os.mkdir(theirs)
        python(MAKE, theirs)
        here, there = our_loss(root, data, theirs), float(python(LOSS, theirs, TEXT))
        check("with an adapter of its own, too", close(here, there), (here, there))
    else:
        skipped("adapters in mlx-lm: no Python with mlx_lm (QUERN_PYTHON)")
finish()
