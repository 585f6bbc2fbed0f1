# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/packed/<name>/: tiny llamas in the formats of GPTQ, AWQ and compressed-tensors, and their logits.

    python3 tests/golden/make_packed.py        (torch, transformers, safetensors, compressed-tensors 0.20.0)

Random weights are rounded to codes here. compressed-tensors packs its own files, but for the order of columns, which
it no longer writes; those of GPTQ and AWQ are packed below, as their formats are published:

    https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda.py (pack)
    https://github.com/ModelCloud/GPTQModel/blob/main/gptqmodel/utils/model.py (convert_gptq_v2_to_v1_format)
    https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py (from_linear)

golden.safetensors holds `tokens` [1, L] and the `logits` [1, L, V] that transformers computes in f32 on the CPU with
weights scale * (code - zero).
"""
import json
import os
import shutil

import numpy as np
import torch
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "packed")
SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=96, max_position_embeddings=64, rms_norm_eps=1e-5, head_dim=16, hidden_act="silu")
# name: method, bits, group (-1: rows), symmetric, type of scales, more
KINDS = {
    "gptq4": ("gptq", 4, 32, False, torch.float16, dict(zero=True)),
    "gptq4-v2": ("gptq", 4, 64, True, torch.float16, dict(v2=True)),
    "gptq4-g96": ("gptq", 4, 96, False, torch.float16, {}),  # no encoding's group, and the last one is shorter
    "gptq4-act": ("gptq", 4, 32, False, torch.float16, dict(order=True, head=True)),
    "gptq8-rows": ("gptq", 8, -1, True, torch.float16, {}),
    "gptq3": ("gptq", 3, 32, False, torch.bfloat16, {}),
    "gptq2": ("gptq", 2, 64, False, torch.float16, dict(v2=True)),
    "awq4": ("awq", 4, 32, False, torch.float16, {}),
    "awq4-g128": ("awq", 4, 128, False, torch.float16, {}),
    "ct4": ("compressed-tensors", 4, 32, False, torch.bfloat16, {}),
    "ct4-rows": ("compressed-tensors", 4, -1, True, torch.float32, {}),
    "ct4-order": ("compressed-tensors", 4, 32, True, torch.bfloat16, dict(order=True)),
    "ct8": ("compressed-tensors", 8, 64, False, torch.float16, {}),
    "ct8-bytes": ("compressed-tensors", 8, -1, True, torch.bfloat16, dict(bytes=True)),
}


def groups_of(k, group, order, rng):
    """The group of each column."""
    g = np.arange(k) // (k if group < 0 else group)
    return rng.permutation(g) if order else g


def round_to_codes(w, bits, idx, symmetric, dtype):
    """codes [N, K], scales [N, G] in dtype, zeros [N, G]."""
    top, n = 2 ** bits - 1, w.shape[0]
    groups = idx.max() + 1
    scales, zeros = np.zeros((n, groups)), np.zeros((n, groups), np.int64)
    for g in range(groups):
        part = w[:, idx == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, g], zeros[:, g] = np.abs(part).max(1) * 2 / top, 2 ** (bits - 1)
        else:
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.round(-low / scales[:, g])
    scales = torch.from_numpy(scales).to(dtype)
    wide = scales.double().numpy()[:, idx]
    codes = np.clip(np.round(w / wide) + zeros[:, idx], 0, top).astype(np.int64)
    return codes, scales, zeros


def stream(fields, bits):
    """Rows of fields as rows of 32-bit words, lowest bits first."""
    n, k = fields.shape
    ones = (fields[:, :, None] >> np.arange(bits) & 1).reshape(n, k * bits // 32, 32).astype(np.uint64)
    return (ones << np.arange(32, dtype=np.uint64)).sum(2).astype(np.uint32)


def tensor(words):
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int32))


def pack_gptq(name, codes, scales, zeros, idx, bits, v2):
    if v2:
        packed = stream(zeros.T, bits)
    elif bits == 3:
        packed = stream((zeros.T - 1) & 7, bits)
    else:  # one from each field, as a difference of words
        packed = stream(zeros.T, bits) - np.uint32(sum(1 << i for i in range(0, 32, bits)))
    return {name + ".qweight": tensor(stream(codes, bits).T), name + ".qzeros": tensor(packed),
            name + ".scales": scales.T.contiguous(), name + ".g_idx": torch.from_numpy(idx.astype(np.int32))}


def pack_awq(name, codes, scales, zeros):
    def pack(rows):  # [*, N]
        out = np.zeros((rows.shape[0], rows.shape[1] // 8), np.uint32)
        for i, j in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            out |= rows[:, j::8].astype(np.uint32) << np.uint32(4 * i)
        return tensor(out)
    return {name + ".qweight": pack(codes.T), name + ".qzeros": pack(zeros.T), name + ".scales": scales.T.contiguous()}


def scheme_of(bits, group, symmetric, more):
    args = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy="channel" if group < 0 else "group",
                            group_size=None if group < 0 else group)
    inputs = QuantizationArgs(num_bits=8, strategy="token", dynamic=True) if more.get("bytes") else None
    return QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs)


def pack_compressed(name, codes, scales, zeros, idx, scheme, more):
    half = 2 ** (scheme.weights.num_bits - 1)
    value = (codes - zeros[:, idx]) * scales.double().numpy()[:, idx]
    state = {"weight": torch.from_numpy(value).float(), "weight_scale": scales.float(),
             "weight_zero_point": torch.from_numpy(zeros - half).to(torch.int8)}
    kind = IntQuantizationCompressor if more.get("bytes") else PackedQuantizationCompressor
    if more.get("order"):  # codes do not know of groups
        state["weight"] = torch.from_numpy(codes - half).float()
        state["weight_scale"] = torch.ones(codes.shape[0], 1)
        state["weight_zero_point"] = torch.zeros(codes.shape[0], 1, dtype=torch.int8)
        scheme = scheme_of(scheme.weights.num_bits, -1, True, more)
    out = kind.compress(state, scheme)
    if not more.get("order"):  # what they say comes back
        back = kind.decompress(dict(out), scheme)["weight"]
        assert torch.equal(back, torch.from_numpy(value).float())
    else:
        out["weight_g_idx"] = torch.from_numpy(idx.astype(np.int32))
    out["weight_scale"] = scales
    if scheme.weights.symmetric:
        out.pop("weight_zero_point", None)
    return {f"{name}.{part}": t.contiguous() for part, t in out.items()}


def describe(method, bits, group, symmetric, more):
    if method == "gptq":
        return dict(quant_method="gptq", bits=bits, group_size=group, sym=symmetric, desc_act="order" in more,
                    checkpoint_format="gptq_v2" if more.get("v2") else "gptq", damp_percent=0.01, lm_head="head" in more,
                    pack_dtype="int32", static_groups=False, true_sequential=True, meta={"quantizer": ["none:0"]})
    if method == "awq":
        return dict(quant_method="awq", bits=bits, group_size=group, zero_point=True, version="gemm",
                    modules_to_not_convert=None, backend="autoawq")
    config = QuantizationConfig(config_groups={"group_0": scheme_of(bits, group, symmetric, more)},
                                format="int-quantized" if more.get("bytes") else "pack-quantized",
                                quantization_status="compressed", ignore=["lm_head"])
    config = json.loads(config.model_dump_json())
    if more.get("order"):
        config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    return config


def make(name, method, bits, group, symmetric, dtype, more):
    directory = os.path.join(HERE, name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    torch.manual_seed(11)
    rng = np.random.default_rng(11)
    tied = not more.get("head")
    config = LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                         tie_word_embeddings=tied, bos_token_id=None, eos_token_id=2, pad_token_id=None)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    tensors = {}
    with torch.no_grad():
        for path, p in model.named_parameters():
            w = 1 + 0.1 * torch.randn_like(p) if p.ndim == 1 else 0.2 * torch.randn_like(p)
            stem = path.removesuffix(".weight")
            if p.ndim == 1 or "embed" in path:
                tensors[path] = w.half()
                p.copy_(tensors[path])
                continue
            w = w.double().numpy()
            if more.get("zero"):
                w[::3] = np.abs(w[::3])  # a range of one sign: its zero is 0, or all of the range
                w[1::3] = -np.abs(w[1::3])
            idx = groups_of(w.shape[1], group, more.get("order"), rng)
            codes, scales, zeros = round_to_codes(w, bits, idx, symmetric, dtype)
            if method == "gptq":
                tensors |= pack_gptq(stem, codes, scales, zeros, idx, bits, more.get("v2"))
            elif method == "awq":
                tensors |= pack_awq(stem, codes, scales, zeros)
            else:
                scheme = scheme_of(bits, group, symmetric, more)
                tensors |= pack_compressed(stem, codes, scales, zeros, idx, scheme, more)
            p.copy_(torch.from_numpy(scales.double().numpy()[:, idx] * (codes - zeros[:, idx])))
    save_file(tensors, os.path.join(directory, "model.safetensors"), {"format": "pt"})
    written = dict(SIZES, model_type="llama", rope_theta=10000.0, tie_word_embeddings=tied, torch_dtype="float16",
                   quantization_config=describe(method, bits, group, symmetric, more))
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(written, f, indent=1)
        f.write("\n")
    tokens = torch.from_numpy(rng.integers(0, SIZES["vocab_size"], (1, 16)).astype(np.int32))
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    save_file({"tokens": tokens, "logits": logits.contiguous()}, os.path.join(directory, "golden.safetensors"))


if __name__ == "__main__":
    for name, kind in KINDS.items():
        make(name, *kind)
        print(name)
