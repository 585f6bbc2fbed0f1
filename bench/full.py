#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo model from nothing: steps of its recipe (models/demo/train.py) by PyTorch and by Quern, from the same weights
on the same batches. Prints how far the losses part, and the seconds a step.

    bench/full.py [--build DIR] [--steps N] [--threads N]

Needs torch, tokenizers, safetensors.
"""
import argparse
import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(ROOT, "models/demo")
sys.path.insert(0, DEMO)
import grammar  # noqa: E402

spec = importlib.util.spec_from_file_location("demo_train", os.path.join(DEMO, "train.py"))
demo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(demo)
RATE, SINGLE, MULTI = 3e-3, 16, 2


def make_batches(steps):
    tok, rng, out = demo.load_tokenizer(DEMO), random.Random("curve"), []
    header = tok.encode("<|im_start|>assistant\n").ids
    for step in range(steps):
        many = rng.random() < 0.2
        chats = [[grammar.write_turn(rng) for _ in range(rng.randint(2, 8) if many else 1)] for _ in range(MULTI if many else SINGLE)]
        rows = [demo.mark_replies(e.ids, header)[:demo.LONGEST] for e in tok.encode_batch([demo.render(c) for c in chats])]
        length = max(map(len, rows))
        marked = torch.tensor([r + [demo.PAD] * (length - len(r)) for r in rows])
        reply = marked < 0
        out.append((torch.where(reply, -marked - 1, marked), reply))
    return out


def rate_of(step, steps):
    return RATE * min(1.0, (step + 1) / 200) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def torch_steps(model, batches, rates):
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.05},
              {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), eps=1e-9)
    for (ids, reply), rate in zip(batches, rates):
        begun = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = demo.reply_loss(torch, model(ids), ids, reply)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach()), time.monotonic() - begun


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--build", default=os.path.join(ROOT, "build"))
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model, batches = demo.build_model(torch), make_batches(args.steps)
    rates = [rate_of(i, args.steps) for i in range(args.steps)]
    with tempfile.TemporaryDirectory() as folder:
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, os.path.join(folder, "model.safetensors"))
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(demo.CONFIG | {"torch_dtype": "float32"}, f)
        data = {"rates": torch.tensor(rates, dtype=torch.float64)}
        for i, (ids, reply) in enumerate(batches):
            data |= {f"tokens.{i}": ids.to(torch.int32).contiguous(), f"mask.{i}": reply.to(torch.uint8).contiguous()}
        path = os.path.join(folder, "batches")
        save_file(data, path + ".safetensors")
        ours = subprocess.Popen([os.path.join(args.build, "bench/bench-full"), folder, path + ".safetensors", str(args.threads)],
                                stdout=subprocess.PIPE, text=True)
        ours = [tuple(map(float, line.split())) for line in ours.stdout]
    theirs = list(torch_steps(model, batches, rates))
    assert len(ours) == len(theirs), "bench-full failed"
    parted = [abs(a[0] - b[0]) / b[0] for a, b in zip(ours, theirs)]
    worst = max(range(len(parted)), key=parted.__getitem__)
    for i in [0, *range(49, args.steps, 50)]:
        print(f"step {i}: {ours[i][0]:.6f}, PyTorch {theirs[i][0]:.6f}")
    print(f"they part by {parted[worst]:.2e} at most, in step {worst}")
    times = [statistics.median(t for _, t in side[3:]) for side in (ours, theirs)]
    total = [sum(t for _, t in side) for side in (ours, theirs)]
    print(f"seconds a step {times[0]:.3f}, PyTorch {times[1]:.3f}; in all {total[0]:.1f} and {total[1]:.1f}: x{total[1] / total[0]:.2f}")


main()
