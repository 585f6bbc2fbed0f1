# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/sampling/: what transformers' logits processors leave, in orders of all kinds.

    python3 tests/golden/make_sampling.py

cases.txt has a line a case: the chain in llama.cpp's names, temperature, top_k, top_p, min_p, repeat penalty,
presence and frequency penalty, how many of the history's tokens were generated. golden.safetensors holds
logits [case, V], history [case, H] and probs [case, V], with 0 for what the chain leaves out. Presence and frequency
penalties, which transformers does not have, are OpenAI's formula, over generated tokens.
"""
import os
import random

import torch
from safetensors.torch import save_file
from transformers import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                          TopKLogitsWarper, TopPLogitsWarper)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampling")
CASES, V, H = 48, 200, 40


def penalties(case, ids, scores):
    if case["repeat"] != 1:
        alive = scores.clone()
        scores = RepetitionPenaltyLogitsProcessor(case["repeat"])(ids, scores)
        scores[alive == -float("inf")] = -float("inf")
    counts = torch.bincount(ids[0, H - case["generated"]:], minlength=V).float()
    return scores - case["presence"] * (counts > 0) - case["frequency"] * counts


def apply(case, ids, scores):
    for name in case["chain"]:
        if name == "penalties":
            scores = penalties(case, ids, scores)
        elif name == "temperature":
            scores = TemperatureLogitsWarper(case["temperature"])(ids, scores)
        elif name == "top_k":
            scores = TopKLogitsWarper(case["top_k"])(ids, scores)
        elif name == "top_p":
            scores = TopPLogitsWarper(case["top_p"])(ids, scores)
        else:
            scores = MinPLogitsWarper(case["min_p"])(ids, scores)
    return scores.double().softmax(-1)


def main():
    torch.manual_seed(1)
    random.seed(2)
    steps = ["penalties", "top_k", "top_p", "min_p", "temperature"]
    logits, histories, probs, lines = [], [], [], []
    for i in range(CASES):
        chain = random.sample(steps, random.randint(2, 5))
        case = {"chain": chain, "temperature": random.choice([0.4, 0.8, 1.6]), "top_k": random.choice([3, 12, 60]),
                "top_p": random.choice([0.3, 0.7, 0.95]), "min_p": random.choice([0.01, 0.1, 0.3]),
                "repeat": random.choice([1.0, 1.1, 1.6]), "presence": random.choice([0.0, 0.6, -0.4]),
                "frequency": random.choice([0.0, 0.3]), "generated": random.choice([0, 7, H])}
        scores = torch.randn(1, V) * random.choice([1.0, 2.5])
        ids = torch.randint(0, 30, (1, H))
        probs.append(apply(case, ids, scores.clone())[0].float())
        logits.append(scores[0])
        histories.append(ids[0].int())
        lines.append(" ".join([";".join(chain)] + [str(case[k]) for k in case if k != "chain"]))
    os.makedirs(HERE, exist_ok=True)
    save_file({"logits": torch.stack(logits), "history": torch.stack(histories), "probs": torch.stack(probs)},
              os.path.join(HERE, "golden.safetensors"))
    with open(os.path.join(HERE, "cases.txt"), "w", encoding="utf-8") as f:
        f.write("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
