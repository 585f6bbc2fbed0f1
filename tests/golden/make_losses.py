# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/losses/golden.safetensors: losses and gradients of PyTorch, in f64, of random arguments.

    python3 tests/golden/make_losses.py

Of each case NAME.0, NAME.1 ... are the arguments, NAME.y the value and NAME.d0, NAME.d1 ... the gradients of
sum(y * w) for w = NAME.w. DPO's formula is the paper's (arXiv:2305.18290) with the smoothing of TRL's "sigmoid".
"""
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(11)
out = {}


def case(name, function, *arguments):
    arguments = [a.double().clone().requires_grad_() for a in arguments]
    y = function(*arguments)
    w = torch.randn_like(y)
    (y * w).sum().backward()
    out.update({f"{name}.y": y.detach(), f"{name}.w": w})
    for i, a in enumerate(arguments):
        out.update({f"{name}.{i}": a.detach(), f"{name}.d{i}": a.grad})


def dpo(beta, smoothing):
    def loss(chosen, rejected, ref_chosen, ref_rejected):
        h = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
        return -F.logsigmoid(h) * (1 - smoothing) - F.logsigmoid(-h) * smoothing
    return loss


log_q, log_p = (torch.randn(2, 3, 7).double().log_softmax(-1) for _ in range(2))
case("mse", F.mse_loss, torch.randn(3, 5), torch.randn(3, 5))
case("kl", lambda q, p: F.kl_div(q, p, reduction="none").sum(-1), log_q, log_p.exp())
case("kl_log", lambda q, p: F.kl_div(q, p, reduction="none", log_target=True).sum(-1), log_q, log_p)
scores = [torch.randn(6) * 8 for _ in range(4)]
case("dpo", dpo(0.1, 0), *scores)
case("dpo_smooth", dpo(0.7, 0.2), *scores)
mask = torch.tensor([1., 0, 1, 1, 0, 0, 1])
case("masked", lambda x: (x * mask).sum() / mask.sum(), torch.randn(7))
save_file(out, os.path.join(os.path.dirname(os.path.abspath(__file__)), "losses", "golden.safetensors"))
print(len(out), "arrays")
