#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/models/weights: one tiny Llama with random weights as safetensors, as PyTorch shards with an
index, as one PyTorch file wrapped in a dictionary, as npz, and as Meta has it (its names, rows of queries and keys in
pairs): a .pth with params.json, and npz with config.json. Needs numpy, torch, safetensors."""
import json
import pathlib

import numpy as np
import safetensors.torch
import torch

HERE = pathlib.Path(__file__).resolve().parent / "weights"
CONFIG = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "max_position_embeddings": 64, "hidden_act": "silu", "torch_dtype": "float16",
          "tie_word_embeddings": False}
SHAPES = {"model.embed_tokens.weight": (64, 32), "lm_head.weight": (64, 32), "model.norm.weight": (32,)}
SHAPES |= {f"model.layers.0.{name}.weight": shape for name, shape in {
    "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32), "mlp.gate_proj": (64, 32), "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64),
    "input_layernorm": (32,), "post_attention_layernorm": (32,)}.items()}

torch.manual_seed(3)
state = {name: (torch.randn(shape) * 0.3 + (len(shape) == 1)).half() for name, shape in SHAPES.items()}
for kind in "safetensors", "bin", "sharded", "npz", "meta-npz":
    directory = HERE / kind
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
safetensors.torch.save_file(state, HERE / "safetensors/model.safetensors")
np.savez_compressed(HERE / "npz/weights.npz", **{k: v.numpy() for k, v in state.items()})
torch.save({"epoch": 1, "model": state}, HERE / "bin/pytorch_model.bin")
names = sorted(state)
# The second shard keeps its matrices transposed in memory.
shards = {"pytorch_model-00001-of-00002.bin": {k: state[k] for k in names[:6]},
          "pytorch_model-00002-of-00002.bin": {k: state[k].t().contiguous().t() for k in names[6:]}}
for file, part in shards.items():
    torch.save(part, HERE / "sharded" / file)
(HERE / "sharded/pytorch_model.bin.index.json").write_text(json.dumps(
    {"metadata": {"total_size": sum(v.numel() * 2 for v in state.values())},
     "weight_map": {k: file for file, part in shards.items() for k in part}}, indent=1) + "\n")

# Meta's names; its rotation takes neighbours for a complex number, Hugging Face's numbers half a head apart.
META = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output",
        "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "q_proj": "wq", "k_proj": "wk",
        "v_proj": "wv", "o_proj": "wo", "self_attn": "attention", "mlp": "feed_forward", "gate_proj": "w1",
        "down_proj": "w2", "up_proj": "w3", "model.layers": "layers"}
meta = {}
for name, weight in state.items():
    if "q_proj" in name or "k_proj" in name:
        weight = torch.stack([head.reshape(2, 8, 32).permute(1, 0, 2).reshape(16, 32) for head in weight.split(16)])
        weight = weight.reshape(-1, 32)
    for ours, theirs in META.items():
        name = name.replace(ours, theirs)
    meta[name] = weight.contiguous()
meta["rope.freqs"] = 1 / 10000 ** (torch.arange(0, 16, 2) / 16) # in Llama 1's files
(HERE / "meta").mkdir(exist_ok=True)
(HERE / "meta/params.json").write_text(json.dumps(
    {"dim": 32, "multiple_of": 32, "n_heads": 2, "n_kv_heads": 1, "n_layers": 1, "norm_eps": 1e-05,
     "vocab_size": -1}) + "\n")
torch.save(meta, HERE / "meta/consolidated.00.pth")
np.savez(HERE / "meta-npz/weights.npz", **{k: v.numpy() for k, v in meta.items()})
