# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/training/: LoRA adapters before training, data, and the losses of PyTorch and PEFT.

    python3 tests/golden/make_training.py [NAME...]     (all without)

The reference is PEFT on transformers with torch.optim.AdamW and clip_grad_norm_, on the CPU in f32, eager
attention. Each directory holds the adapter as PEFT writes it before the first step, and golden.safetensors:

    tokens    i32 [4, 3, 32]   four batches, which the steps take in turn
    mask      u8 [4, 3, 32]    1 where a token counts
    losses    f64 [20]         before each step
    norms     f64 [20]         of all gradients together, before clipping
    settings  f64 [7]          learning rate, beta1, beta2, eps, weight decay, clip (0: none), alpha
"""
import json
import os
import shutil
import sys
import tempfile

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

import make_families

ROOT = os.path.dirname(os.path.abspath(__file__))
HERE = os.path.join(ROOT, "training")
STEPS, BATCHES, ROWS, LENGTH = 20, 4, 3, 32
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# PEFT's own B is zero; where `b` is given it is drawn, so that A learns from the first step on.
RUNS = {
    "llama": dict(base="llama/plain", targets=["q_proj", "v_proj", "down_proj"], r=4, alpha=12, lr=1e-2,
                  betas=(0.9, 0.999), eps=1e-8, decay=0.01, clip=0),
    "qwen2": dict(base="qwen2/plain", targets=ALL, r=2, alpha=3, lr=1e-2, betas=(0.8, 0.95), eps=1e-5, decay=2.0,
                  clip=2.1, b=0.1),
    "gemma3": dict(base="gemma3/text", targets=["k_proj", "o_proj", "gate_proj", "up_proj"], r=3, alpha=6, lr=1e-2,
                   betas=(0.9, 0.99), eps=1e-8, decay=0.1, clip=1.4),
    "gemma2": dict(base="gemma2/plain", targets=ALL, r=2, alpha=4, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, decay=0.01,
                   clip=0, b=0.1),
    "mistral": dict(base="mistral/window", targets=ALL, r=2, alpha=4, lr=2e-3, betas=(0.9, 0.999), eps=1e-8,
                    decay=0.01, clip=0, b=0.1),
    "qwen3": dict(base="qwen3/plain", targets=ALL, r=2, alpha=4, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, decay=0.01,
                  clip=0, b=0.1),
    "smollm3": dict(base="smollm3/plain", targets=ALL, r=2, alpha=4, lr=2e-3, betas=(0.9, 0.999), eps=1e-8,
                    decay=0.01, clip=0, b=0.1),
}


def base_model(name, scratch):
    source = os.path.join(ROOT, name)
    if os.path.exists(os.path.join(source, "weights.txt")):
        shutil.copy(os.path.join(source, "config.json"), scratch)
        weights = {}
        with open(os.path.join(source, "weights.txt")) as f:
            for line in f:
                key, seed, offset, scale, *shape = line.split()
                weights[key] = make_families.draw(key, int(seed), float(offset), float(scale),
                                                  [int(n) for n in shape])
        save_file(weights, os.path.join(scratch, "model.safetensors"), metadata={"format": "pt"})
        source = scratch
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32,
                                                              attn_implementation="eager")
    return model.eval()  # nothing is dropped


def batches(vocab, generator):
    tokens = torch.randint(0, vocab, (BATCHES, ROWS, LENGTH), generator=generator)
    mask = (torch.rand((BATCHES, ROWS, LENGTH), generator=generator) < 0.7).to(torch.uint8)
    mask[:, :, 0] = 1  # what must not count
    mask[:, 1, 17:] = 0  # a shorter row
    return tokens, mask


def loss_of(model, tokens, mask):
    logits = model(tokens).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    counts = mask[:, 1:].flatten().to(torch.float32)
    return (each * counts).sum() / counts.sum()


def save_adapter(model, directory):
    model.save_pretrained(directory)
    path = os.path.join(directory, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = "plain"  # not where it lay here
    config["target_modules"].sort()
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    readme = os.path.join(directory, "README.md")
    if os.path.exists(readme):
        os.remove(readme)


def make(name, run, seed):
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as scratch:
        base = base_model(run["base"], scratch)
    model = get_peft_model(base, LoraConfig(r=run["r"], lora_alpha=run["alpha"], target_modules=run["targets"]))
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key and "b" in run:
                value.normal_(0, run["b"])
    directory = os.path.join(HERE, name)
    save_adapter(model, directory)
    tokens, mask = batches(base.config.vocab_size, torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(trained, lr=run["lr"], betas=run["betas"], eps=run["eps"],
                                  weight_decay=run["decay"])
    losses, norms = [], []
    for step in range(STEPS):
        loss = loss_of(model, tokens[step % BATCHES], mask[step % BATCHES])
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, run["clip"] or float("inf"))))
        optimizer.step()
        losses.append(float(loss))
    print(name, sum(p.numel() for p in trained), ["%.4f" % x for x in losses], ["%.3f" % x for x in norms])
    assert not run["clip"] or min(norms) < run["clip"] < max(norms), norms
    settings = [run["lr"], *run["betas"], run["eps"], run["decay"], run["clip"], run["alpha"]]
    save_file({"tokens": tokens.to(torch.int32), "mask": mask,
               "losses": torch.tensor(losses, dtype=torch.float64),
               "norms": torch.tensor(norms, dtype=torch.float64),
               "settings": torch.tensor(settings, dtype=torch.float64)},
              os.path.join(directory, "golden.safetensors"))


if __name__ == "__main__":
    for i, (name, run) in enumerate(RUNS.items()):
        if not sys.argv[1:] or name in sys.argv[1:]:
            shutil.rmtree(os.path.join(HERE, name), ignore_errors=True)
            make(name, run, 60 + i)
