#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_attention.py: attention and its gradients as PyTorch makes them in f64, for tests/autodiff/test_attention.c.

Writes attention/golden.safetensors: of case i q, k, v, the cotangent g and `first`, what comes out (o) and the
gradients dq, dk, dv. Sizes go over a tile of queries. Needs torch and safetensors.
"""
import os

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
# B, H, G, L, S, D, E, causal, window, softcap, texts in a row
CASES = [(2, 2, 1, 110, 110, 4, 3, True, 0, 0.0, 1), (1, 4, 2, 100, 100, 4, 4, True, 17, 1.5, 3),
         (1, 2, 2, 7, 120, 3, 5, False, 0, 0.0, 1)]


def make(i, case, out):
    b, h, g, l, s, d, e, causal, window, cap, texts = case
    draw = torch.Generator().manual_seed(i)
    q, k, v = (torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_()
               for shape in ((b, h, l, d), (b, g, s, d), (b, g, s, e)))
    ct = torch.randn((b, h, l, e), generator=draw, dtype=torch.float64)
    begins = torch.tensor([0, 31, 77][:texts])
    row = torch.arange(l)
    first = begins[torch.searchsorted(begins, row, right=True) - 1].expand(b, l)
    scores = torch.einsum("bhld,bhsd->bhls", q, k.repeat_interleave(h // g, 1)) * float(torch.tensor(d ** -0.5))
    if cap:
        scores = cap * torch.tanh(scores / cap)
    last, key = (row + s - l)[:, None], torch.arange(s)[None]
    seen = torch.ones(l, s, dtype=torch.bool)
    if causal:
        seen &= key <= last
    if window:
        seen &= key > last - window
    seen = seen[None] & (key[None] >= first[:, :, None])
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    o = torch.einsum("bhls,bhse->bhle", torch.softmax(scores, -1), v.repeat_interleave(h // g, 1))
    o.backward(ct)
    out.update({f"{i}.{name}": t.detach().contiguous() for name, t in (
        ("q", q), ("k", k), ("v", v), ("g", ct), ("o", o), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad))})
    out[f"{i}.first"] = first.to(torch.int32).contiguous()
    out[f"{i}.settings"] = torch.tensor([*case], dtype=torch.float64)


tensors = {}
for number, settings in enumerate(CASES):
    make(number, settings, tensors)
os.makedirs(os.path.join(HERE, "attention"), exist_ok=True)
save_file(tensors, os.path.join(HERE, "attention", "golden.safetensors"))
