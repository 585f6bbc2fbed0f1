#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA steps, rank 16 on all linear layers, by Quern and by PyTorch with transformers and PEFT, in turn on one machine.

    bench/train.py MODEL ... [--build DIR] [--threads N] [--length N] [--repeats N] [--rounds N] [--adapter bf16|f32]

Each MODEL, dense or quantised, has the shape of Llama 3.2 1B (bench/make_model.py). The peer has it, too, of random weights
in bf16: speed does not depend on what is in them. PEFT's adapter is f32 unless told otherwise; all in bf16 is the faster
peer, and so the default here. Memory is what the process takes at most over what it had with model, adapter and libraries
loaded. Needs torch, transformers, peft.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def peak_rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peer(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        vocab_size=128256, tie_word_embeddings=True, rope_theta=500000.0, max_position_embeddings=8192))
    torch.set_default_dtype(torch.float32)
    config = LoraConfig(r=16, lora_alpha=32, target_modules=LINEAR)
    model = get_peft_model(model.train(), config, autocast_adapter_dtype=args.adapter == "f32")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    ids = torch.tensor([[i * 7919 % 128256 for i in range(args.length)]])
    times, begun = [], peak_rss()
    for _ in range(args.repeats + 1):
        t = time.monotonic()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.monotonic() - t)
    print(json.dumps({"torch": torch.__version__, "loss": float(loss.detach()), "step_seconds": statistics.median(times[1:]),
                      "step_rss_bytes": peak_rss() - begun}))


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="*")
    ap.add_argument("--build", default=os.path.join(ROOT, "build"))
    for name, value in (("threads", 2), ("length", 512), ("repeats", 2), ("rounds", 2)):
        ap.add_argument("--" + name, type=int, default=value)
    ap.add_argument("--adapter", choices=["bf16", "f32"], default="bf16")
    ap.add_argument("--peer", action="store_true", help="times the peer alone, in this process")
    args = ap.parse_args()
    if args.peer:
        return peer(args)
    same = ["--threads", args.threads, "--length", args.length, "--repeats", args.repeats, "--adapter", args.adapter]
    seen = {name: [] for name in [*args.models, "PyTorch"]}
    for _ in range(args.rounds):
        for path in args.models:
            seen[path].append(run([os.path.join(args.build, "bench/bench-train"), path, args.threads, args.repeats, args.length]))
            print(path, seen[path][-1], flush=True)
        seen["PyTorch"].append(run([sys.executable, __file__, "--peer", *same]))
        print("PyTorch", seen["PyTorch"][-1], flush=True)
    middle = {name: [statistics.median(r[key] for r in rows) for key in ("step_seconds", "step_rss_bytes")] for name, rows in seen.items()}
    seconds, memory = middle["PyTorch"]
    for path in args.models:
        print(f"{path}: {middle[path][0]:.2f} s a step, PyTorch {seconds:.2f}: x{seconds / middle[path][0]:.2f}; memory "
              f"{middle[path][1] / 1e9:.2f} GB, PyTorch {memory / 1e9:.2f}: {100 * middle[path][1] / memory:.0f} %")


main()
