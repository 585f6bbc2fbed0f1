# SPDX-License-Identifier: Apache-2.0
"""The bf16 check: a small random llama in bf16, and how far its logits may stray.

    python3 tests/golden/make_kl.py                     make tests/golden/kl/
    python3 tests/golden/make_kl.py --compare DUMP      judge an engine's logits

tests/golden/kl/ holds a Hugging Face directory (weights bf16) and golden.safetensors:

    tokens          i32 [8, 250]      random, teacher-forced; each row a sequence from position 0
    logit_positions i32 [200]         every tenth of the 2000 positions, row * 250 + column
    logits          f32 [200, 512]    transformers on the CPU, the same weights, computed in f32
    hf_bf16_kl      f64 [1]           mean KL(f32 run || bf16 run) of transformers itself, nats
    hf_bf16_nmse    f64 [1]           NMSE of the bf16 run's logits

An engine that computes in bf16 should be about as near to the f32 run as transformers' own bf16 run
is, and one that computes in f32 far nearer. --compare takes a safetensors file with `logits`, f32
[2000, 512] or [8, 250, 512], computes the f32 run anew, prints the mean and largest KL over all
2000 positions beside transformers' own, and exits with status 1 if the mean is over --bound times
transformers' own.
"""
import argparse
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kl")
ROWS, LENGTH, VOCAB, EVERY, SEED = 8, 250, 512, 10, 77


def build():
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=192, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=2, pad_token_id=None)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif "embed" in name:
                p.copy_(0.25 * torch.randn_like(p))
            else:
                gain = 1.4 if "q_proj" in name or "k_proj" in name else 0.9
                p.copy_(gain * torch.randn_like(p) / p.shape[1] ** 0.5)
    return model.to(torch.bfloat16)


def run(dtype, tokens):
    """Logits f32 [2000, 512] of the saved weights computed in dtype."""
    model = LlamaForCausalLM.from_pretrained(HERE, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(tokens.long(), use_cache=False).logits.float().reshape(-1, VOCAB)


def divergence(reference, logits):
    """KL(reference || logits) in nats at every position, in f64."""
    p = reference.double().log_softmax(-1)
    return (p.exp() * (p - logits.double().log_softmax(-1))).sum(-1)


def nmse(reference, logits):
    reference, logits = reference.double(), logits.double()
    return float((logits - reference).pow(2).sum() / reference.pow(2).sum())


def make():
    shutil.rmtree(HERE, ignore_errors=True)
    build().save_pretrained(HERE)
    extra = os.path.join(HERE, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    path = os.path.join(HERE, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype", "bfloat16")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH),
                           generator=torch.Generator().manual_seed(SEED + 1)).int()
    exact, rounded = run(torch.float32, tokens), run(torch.bfloat16, tokens)
    kl, p = divergence(exact, rounded), exact.double().log_softmax(-1)
    at = torch.arange(0, ROWS * LENGTH, EVERY)
    save_file({"tokens": tokens, "logit_positions": at.int(), "logits": exact[at].contiguous(),
               "hf_bf16_kl": kl.mean()[None],
               "hf_bf16_nmse": torch.tensor([nmse(exact, rounded)], dtype=torch.float64)},
              os.path.join(HERE, "golden.safetensors"))
    print(f"entropy of the next token {float(-(p.exp() * p).sum(-1).mean()):.3f} nats "
          f"(uniform would be {torch.tensor(float(VOCAB)).log():.3f})")
    print(f"transformers in bf16: mean KL {float(kl.mean()):.3e}, largest {float(kl.max()):.3e}, "
          f"NMSE {nmse(exact, rounded):.3e}")


def compare(dump, bound):
    golden = load_file(os.path.join(HERE, "golden.safetensors"))
    logits = load_file(dump)["logits"].float()
    if logits.numel() != ROWS * LENGTH * VOCAB:
        raise SystemExit(f"{dump}: logits {list(logits.shape)}, not [{ROWS * LENGTH}, {VOCAB}]")
    logits = logits.reshape(-1, VOCAB)
    exact = run(torch.float32, golden["tokens"])
    drift = nmse(golden["logits"], exact[golden["logit_positions"].long()])
    if drift > 1e-9:
        raise SystemExit(f"transformers here does not give the stored logits: NMSE {drift:.2e}")
    kl, own = divergence(exact, logits), float(golden["hf_bf16_kl"])
    ok = bool(torch.isfinite(kl).all()) and float(kl.mean()) <= bound * own
    print(f"mean KL {float(kl.mean()):.3e} (largest {float(kl.max()):.3e} at {int(kl.argmax())}), "
          f"NMSE {nmse(exact, logits):.3e}; transformers in bf16: mean KL {own:.3e}")
    print("PASS" if ok else f"FAIL: over {bound} x transformers' own")
    return 0 if ok else 1


def main():
    torch.set_num_threads(1)
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--compare", metavar="DUMP", help="safetensors file with the engine's logits")
    ap.add_argument("--bound", type=float, default=1.25, help="times transformers' own mean KL")
    args = ap.parse_args()
    if args.compare:
        return compare(args.compare, args.bound)
    make()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
