# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/training/optimizers.safetensors: PyTorch's losses with other optimisers, with batches put
together, and transformers' learning rates.

    python3 tests/golden/make_optimizers.py

The model, adapter, batches and loss are those of training/llama (make_training.py). Lion, which PyTorch lacks, is
written out here as in arXiv:2302.06675, and checked against mlx.optimizers.Lion.

    NAME.losses    f64 [20]   before each step
    NAME.settings  f64 [5]    learning rate, beta1, beta2, eps, weight decay
    pairs.losses   f64 [10]   AdamW, each step on two batches in turn, each token alike
    rates.NAME     f64 [40]   constant, linear and cosine, 7 steps of warm-up, to 1e-4 at step 30, or 0 ("_0")
"""
import os
import tempfile

import mlx.core as mx
import mlx.optimizers
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file

import make_training as training

RUN = training.RUNS["llama"]
HERE = os.path.join(training.HERE, "llama")
STEPS = training.STEPS


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(b1 * m + (1 - b1) * p.grad)
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))
                m.mul_(b2).add_((1 - b2) * p.grad)


OPTIMIZERS = {
    "adam": (1e-2, (0.85, 0.98), 1e-6, 0.3, lambda p, lr, b, eps, wd: torch.optim.Adam(p, lr, b, eps, weight_decay=wd)),
    "sgd": (5e-2, (0.7, 0), 0, 0.02, lambda p, lr, b, eps, wd: torch.optim.SGD(p, lr, b[0], weight_decay=wd)),
    "plain": (1e-1, (0, 0), 0, 0, lambda p, lr, b, eps, wd: torch.optim.SGD(p, lr)),
    "lion": (1e-3, (0.9, 0.95), 0, 0.5, lambda p, lr, b, eps, wd: Lion(p, lr, b, wd)),
}


def check_lion():
    p = torch.randn(50)
    ours, theirs = torch.nn.Parameter(p.clone()), {"p": mx.array(p.numpy())}
    a, b = Lion([ours], 0.01, (0.9, 0.95), 0.5), mlx.optimizers.Lion(0.01, [0.9, 0.95], 0.5)
    for _ in range(10):
        g = torch.randn(50)
        ours.grad = g
        a.step()
        theirs = b.apply_gradients({"p": mx.array(g.numpy())}, theirs)
    assert torch.allclose(ours.detach(), torch.tensor(theirs["p"].tolist()), atol=1e-6)


def open_model(scratch):
    model = PeftModel.from_pretrained(training.base_model(RUN["base"], scratch), HERE, is_trainable=True)
    return model, [p for p in model.parameters() if p.requires_grad]


def losses_of(make, data, pairs=False):
    with tempfile.TemporaryDirectory() as scratch:
        model, trained = open_model(scratch)
    optimizer, losses = make(trained), []
    tokens, mask = data["tokens"].long(), data["mask"]
    for step in range(STEPS // 2 if pairs else STEPS):
        chosen = [2 * step % 4, (2 * step + 1) % 4] if pairs else [step % 4]
        loss = training.loss_of(model, torch.cat([tokens[i] for i in chosen]), torch.cat([mask[i] for i in chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    print(["%.4f" % x for x in losses])
    return torch.tensor(losses, dtype=torch.float64)


def rates_of(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    schedule, rates = make(optimizer), []
    for _ in range(40):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return torch.tensor(rates, dtype=torch.float64)


def main():
    check_lion()
    data, out = load_file(os.path.join(HERE, "golden.safetensors")), {}
    for name, (lr, betas, eps, decay, make) in OPTIMIZERS.items():
        out[name + ".losses"] = losses_of(lambda p: make(p, lr, betas, eps, decay), data)
        out[name + ".settings"] = torch.tensor([lr, *betas, eps, decay], dtype=torch.float64)
    adamw = lambda p: torch.optim.AdamW(p, RUN["lr"], RUN["betas"], RUN["eps"], weight_decay=RUN["decay"])
    out["pairs.losses"] = losses_of(adamw, data, True)
    t = transformers
    out["rates.constant"] = rates_of(lambda o: t.get_constant_schedule_with_warmup(o, 7))
    out["rates.linear_0"] = rates_of(lambda o: t.get_linear_schedule_with_warmup(o, 7, 30))
    out["rates.linear"] = rates_of(lambda o: t.get_polynomial_decay_schedule_with_warmup(o, 7, 30, lr_end=1e-4, power=1))
    # Behind the end transformers' cosine rises again; what it is there is the end.
    cosine = t.get_cosine_with_min_lr_schedule_with_warmup
    out["rates.cosine_0"] = rates_of(lambda o: t.get_cosine_schedule_with_warmup(o, 7, 30))
    out["rates.cosine"] = rates_of(lambda o: cosine(o, 7, 30, min_lr=1e-4))
    for name, end in [("rates.cosine_0", 0), ("rates.cosine", 1e-4)]:
        out[name][30:] = end
    save_file(out, os.path.join(training.HERE, "optimizers.safetensors"))


if __name__ == "__main__":
    main()
