# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/mlx/<name>/: tiny quantised models as mlx-lm writes them, and its logits.

    python3 tests/golden/make_mlx.py          (mlx[cpu] 0.32.4, mlx-lm 0.32.2)

Random weights are quantised and saved by mlx-lm; golden.safetensors holds `tokens` [1, L] and the `logits`
[1, L, V] that mlx-lm computes from the directory on the CPU, in f32.
"""
import json
import os
import shutil

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import load_model, save_config, save_model

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mlx")
CONFIG = dict(model_type="llama", hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, vocab_size=96, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0,
              tie_word_embeddings=False, head_dim=16, hidden_act="silu")
KINDS = {
    "affine4-bf16": (mx.bfloat16, dict(group_size=64, bits=4), None, {}),
    "affine4-f32-tied": (mx.float32, dict(group_size=32, bits=4), None, {"tie_word_embeddings": True}),
    "affine8-f16": (mx.float16, dict(group_size=64, bits=8), None, {}),
    "mixed": (mx.float32, dict(group_size=32, bits=4),
              {"self_attn.q_proj": dict(group_size=32, bits=2), "self_attn.k_proj": dict(group_size=64, bits=3),
               "self_attn.v_proj": dict(group_size=64, bits=5), "mlp.down_proj": dict(group_size=128, bits=6),
               "lm_head": False}, {}),
    "mxfp4": (mx.bfloat16, dict(group_size=32, bits=4, mode="mxfp4"), None, {}),
}


def make(name, dtype, quantization, overrides, more):
    from mlx_lm.models.llama import Model, ModelArgs
    directory = os.path.join(HERE, name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    mx.random.seed(7)
    config = {**CONFIG, **more}
    model = Model(ModelArgs.from_dict(config))
    model.update(nn.utils.tree_map(lambda a: mx.random.normal(a.shape) * (0.2 if a.ndim > 1 else 0.1)
                                   + (0 if a.ndim > 1 else 1), model.parameters()))
    model.set_dtype(dtype)
    record = dict(quantization)

    def choose(path, module):
        if not hasattr(module, "to_quantized"):
            return False
        for part, how in (overrides or {}).items():
            if part in path:
                record[path] = how
                return how
        return True

    nn.quantize(model, **quantization, class_predicate=choose)
    config["quantization"] = config["quantization_config"] = record
    save_model(directory, model)
    save_config(config, os.path.join(directory, "config.json"))
    os.remove(os.path.join(directory, "model.safetensors.index.json"))
    model, _ = load_model(__import__("pathlib").Path(directory))
    tokens = mx.random.randint(0, CONFIG["vocab_size"], (1, 24)).astype(mx.int32)
    h = widened(model)(tokens)
    mx.save_safetensors(os.path.join(directory, "golden.safetensors"), {"tokens": tokens, "logits": h.astype(mx.float32)})


def widened(model):
    """The same model in f32: every quantised layer replaced by what it decodes to."""
    def dense(module):
        if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            affine = module.mode == "affine"
            scales, biases = (module.scales.astype(mx.float32), module.biases.astype(mx.float32)) if affine \
                else (module.scales, None)
            w = mx.dequantize(module.weight, scales, biases, module.group_size, module.bits,
                              mode=module.mode).astype(mx.float32)
            n, k = w.shape
            out = nn.Linear(k, n, bias=False) if isinstance(module, nn.QuantizedLinear) else nn.Embedding(n, k)
            out.weight = w
            return out
        return module
    model.update_modules(nn.utils.tree_map(dense, model.leaf_modules(), is_leaf=nn.Module.is_module))
    model.set_dtype(mx.float32)
    return model


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    for name, kind in KINDS.items():
        make(name, *kind)
        print(name)
