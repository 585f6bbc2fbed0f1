# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/rotating/golden.safetensors: a model at a context limit that keeps its first tokens.

    python3 tests/golden/make_rotating.py

The model is mistral/head-dim of make_families.py, in transformers, f32, eager, with an explicit mask: with a
context of n, of which the first k are kept, the token at position p sees keys 0 .. k - 1 and the newest n - k,
its own included. Positions stay what they are, as in mlx-lm's RotatingKVCache(max_size=n, keep=k) when it
decodes token by token. Tensors: tokens [300]; contexts, keeps [4]; positions [16]; logits.<i>, a row a position.
"""
import json
import os
import tempfile

import torch
import transformers
from safetensors.torch import save_file

from make_families import HERE, draw

CASES = [(40, 4), (90, 1), (40, 39), (120, 64)]
N, POSITIONS = 300, [0, 5, 38, 39, 40, 41, 63, 64, 65, 89, 90, 127, 128, 200, 256, 299]


def main():
    torch.set_num_threads(1)
    source = os.path.join(HERE, "mistral/head-dim")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(source, "config.json"), encoding="utf-8") as f, \
                open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as g:
            json.dump(json.load(f), g)
        weights = {}
        for line in open(os.path.join(source, "weights.txt"), encoding="utf-8"):
            name, seed, offset, scale, *shape = line.split()
            weights[name] = draw(name, int(seed), float(offset), float(scale), [int(n) for n in shape])
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
    vocab = model.config.vocab_size
    tokens = torch.randint(3, vocab - 1, (N,), generator=torch.Generator().manual_seed(77))
    out = {"tokens": tokens.int(), "positions": torch.tensor(POSITIONS).int(),
           "contexts": torch.tensor([n for n, _ in CASES]).int(), "keeps": torch.tensor([k for _, k in CASES]).int()}
    query, key = torch.arange(N)[:, None], torch.arange(N)[None, :]
    for i, (n, k) in enumerate(CASES):
        # a token before the limit sees all n; beyond it the first k and the newest n - k
        seen = (key <= query) & ((key > query - (n - k)) | (key < k))
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            logits = model(input_ids=tokens[None], attention_mask=mask, use_cache=False).logits[0]
        out[f"logits.{i}"] = logits[POSITIONS].contiguous()
    os.makedirs(os.path.join(HERE, "rotating"), exist_ok=True)
    save_file(out, os.path.join(HERE, "rotating/golden.safetensors"))


if __name__ == "__main__":
    main()
