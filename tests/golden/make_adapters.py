# SPDX-License-Identifier: Apache-2.0
"""Make LoRA adapters of the tiny llama in tests/golden/llama/plain, and what their makers compute with them.

    python3 tests/golden/make_adapters.py

The references are PEFT on transformers and mlx-lm, on the CPU in f32. Each directory of
tests/golden/adapters/ is as its maker writes it, and holds golden.safetensors besides: tokens i32
[64] and logits f32 [64, vocab]. Between them: scales as alpha / r, with a rank and an alpha for some
layers, as alpha / sqrt(r), and as mlx-lm has them.
"""
import json
import os
import shutil

import mlx.core as mx
import torch
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

ROOT = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(ROOT, "llama", "plain")
HERE = os.path.join(ROOT, "adapters")
N_TOKENS, VOCAB = 64, 320

PEFT = {
    "peft": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"],
                 rank_pattern={"layers.1.self_attn.q_proj": 7}, alpha_pattern={"v_proj": 3}),
    "rslora": dict(r=6, lora_alpha=5, use_rslora=True,
                   target_modules=["k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
}


def tokens_of(seed):
    return torch.randint(0, VOCAB, (1, N_TOKENS), generator=torch.Generator().manual_seed(seed))


def keep(directory, tokens, logits):
    save_file({"tokens": tokens[0].to(torch.int32), "logits": logits.contiguous()},
              os.path.join(directory, "golden.safetensors"))


def make_peft(name, spec, seed):
    torch.manual_seed(seed)
    base = LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(base, LoraConfig(**spec)).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_" in key:
                value.normal_(0, 0.2)
        tokens = tokens_of(seed)
        logits = model(tokens).logits[0]
        with model.disable_adapter():
            off = model(tokens).logits[0]
    assert ((logits - off) ** 2).mean() / (off ** 2).mean() > 1e-2, plain
    directory = os.path.join(HERE, name)
    model.save_pretrained(directory)
    config_path = os.path.join(directory, "adapter_config.json")
    with open(config_path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = "plain"  # not where it lay here
    with open(config_path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    readme = os.path.join(directory, "README.md")
    if os.path.exists(readme):
        os.remove(readme)
    keep(directory, tokens, logits)


def make_mlx(name, seed):
    mx.random.seed(seed)
    mx.set_default_device(mx.cpu)
    model, _ = load_model(__import__("pathlib").Path(BASE))
    parameters = {"rank": 5, "scale": 1.75, "dropout": 0.0,
                  "keys": ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"]}
    model.freeze()
    linear_to_lora_layers(model, 2, parameters)
    model.update(tree_map_with_path(
        lambda key, value: mx.random.normal(value.shape) * 0.2 if "lora_" in key else value,
        model.parameters()))
    tokens = tokens_of(seed)
    logits = torch.tensor(memoryview(model(mx.array(tokens.numpy()))[0].astype(mx.float32)).tolist())
    directory = os.path.join(HERE, name)
    os.makedirs(directory)
    adapter = {k: v for k, v in tree_flatten(model.parameters()) if "lora_" in k}
    mx.save_safetensors(os.path.join(directory, "adapters.safetensors"), adapter)
    with open(os.path.join(directory, "adapter_config.json"), "w") as f:
        json.dump({"fine_tune_type": "lora", "lora_parameters": parameters, "num_layers": 2}, f, indent=2)
        f.write("\n")
    keep(directory, tokens, logits)


shutil.rmtree(HERE, ignore_errors=True)
for i, (name, spec) in enumerate(PEFT.items()):
    make_peft(name, spec, 40 + i)
make_mlx("mlx", 50)
