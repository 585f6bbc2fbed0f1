# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/full/: the losses of PyTorch training all weights of each family's tiny model.

    python3 tests/golden/make_full.py

The reference is transformers with torch.optim.AdamW, clip_grad_norm_ and get_cosine_schedule_with_warmup, on the CPU
in f32, eager attention. A step is of two batches, each token alike. Norms and biases do not decay. (With a learning
rate above 2e-3 smollm3 is chaotic: PyTorch in f32 and in f64 part by 3e-4.)

    tokens    i32 [4, 3, 32]   four batches, of which the steps take two in turn
    mask      u8 [4, 3, 32]    1 where a token counts
    losses    f64 [20]         before each step
    sums      f64 [20]         of the squares of all weights, after each step
    settings  f64 [8]          learning rate, beta1, beta2, eps, weight decay, clip, warm-up, steps of the schedule
"""
import os
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import save_file

import make_training as training

HERE = os.path.join(training.ROOT, "full")
STEPS = 20
BASES = ["llama/plain", "llama/biased", "llama/llama3-tied", "qwen2/plain", "qwen3/plain", "gemma2/plain", "gemma3/text",
         "mistral/window", "smollm3/plain"]
SETTINGS = dict(lr=2e-3, betas=(0.9, 0.98), eps=1e-8, decay=0.1, warmup=3, steps=24)


def make(base, seed):
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as scratch:
        model = training.base_model(base, scratch).train()
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.ndim == 2], "weight_decay": SETTINGS["decay"]},
              {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=SETTINGS["lr"], betas=SETTINGS["betas"], eps=SETTINGS["eps"])
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, SETTINGS["warmup"], SETTINGS["steps"])
    tokens, mask = training.batches(model.config.vocab_size - 3, torch.Generator().manual_seed(seed))
    tokens += 3  # transformers' embedding does not learn from padding
    clip = None
    losses, norms, sums = [], [], []
    for step in range(STEPS):
        chosen = [2 * step % 4, (2 * step + 1) % 4]
        loss = training.loss_of(model, torch.cat([tokens[i] for i in chosen]), torch.cat([mask[i] for i in chosen]))
        optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip or float("inf")))
        if clip is None:  # of which some gradients are longer, and some shorter
            clip = round(0.8 * norm, 3)
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        norms.append(norm)
        optimizer.step()
        schedule.step()
        losses.append(float(loss))
        sums.append(sum(float(p.detach().double().square().sum()) for p in parameters))
    print(base, sum(p.numel() for p in parameters), "%.4f .. %.4f" % (losses[0], losses[-1]), "clip", clip,
          "norms %.3f .. %.3f" % (min(norms), max(norms)))
    assert min(norms) < clip < max(norms), norms
    s = SETTINGS
    settings = [s["lr"], *s["betas"], s["eps"], s["decay"], clip, s["warmup"], s["steps"]]
    numbers = {"losses": losses, "sums": sums, "settings": settings}
    save_file({"tokens": tokens.to(torch.int32), "mask": mask,
               **{k: torch.tensor(v, dtype=torch.float64) for k, v in numbers.items()}},
              os.path.join(HERE, base.replace("/", "-") + ".safetensors"))


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    os.makedirs(HERE)
    for i, base in enumerate(BASES):
        make(base, 80 + i)
