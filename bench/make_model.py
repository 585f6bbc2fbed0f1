#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a model of real shape with random bf16 weights, twice: a Hugging Face directory and a GGUF file.

    python3 bench/make_model.py DIR        (needs numpy, safetensors and gguf from PyPI)

The shape is Llama 3.2 1B's: 16 layers, hidden 2048, FFN 8192, 32/8 heads of 64, vocabulary 128256, tied.
Speed does not depend on the values, so one block of normal numbers serves all tensors.
"""
import json
import os
import pathlib
import struct
import sys

import numpy as np

LAYERS, HIDDEN, HEADS, KV, HEAD, FFN, VOCAB = 16, 2048, 32, 8, 64, 8192, 128256


def tensors():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (HIDDEN,)
        yield p + "self_attn.q_proj.weight", (HEADS * HEAD, HIDDEN)
        yield p + "self_attn.k_proj.weight", (KV * HEAD, HIDDEN)
        yield p + "self_attn.v_proj.weight", (KV * HEAD, HIDDEN)
        yield p + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD)
        yield p + "post_attention_layernorm.weight", (HIDDEN,)
        yield p + "mlp.gate_proj.weight", (FFN, HIDDEN)
        yield p + "mlp.up_proj.weight", (FFN, HIDDEN)
        yield p + "mlp.down_proj.weight", (HIDDEN, FFN)
    yield "model.norm.weight", (HIDDEN,)


def bf16(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


BLOCK = bf16(np.random.default_rng(1).standard_normal(1 << 22, dtype=np.float32) * np.float32(0.02))


def values(name, shape):
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16)
    n = shape[0] * shape[1]
    start = sum(name.encode()) * 7919 % (len(BLOCK) // 2)
    return np.resize(np.roll(BLOCK, start), n).reshape(shape)


def write_hf(folder):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors():
        size = int(np.prod(shape)) * 2
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors():
            f.write(values(name, shape).tobytes())
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV,
        "head_dim": HEAD, "hidden_act": "silu", "max_position_embeddings": 8192,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "eos_token_id": 128001}))


def write_gguf(path):
    import gguf
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("random"); w.add_context_length(8192); w.add_embedding_length(HIDDEN)
    w.add_block_count(LAYERS); w.add_feed_forward_length(FFN); w.add_head_count(HEADS)
    w.add_head_count_kv(KV); w.add_layer_norm_rms_eps(1e-5); w.add_rope_freq_base(500000.0)
    w.add_rope_dimension_count(HEAD); w.add_vocab_size(VOCAB)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("llama-bpe")
    w.add_token_list([f"t{i:06d}" for i in range(VOCAB)]); w.add_token_types([1] * VOCAB)
    w.add_token_merges(["t 0", "t 1"]); w.add_bos_token_id(0); w.add_eos_token_id(1)
    short = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for name, shape in tensors():
        to = {"model.embed_tokens.weight": "token_embd.weight",
              "model.norm.weight": "output_norm.weight"}.get(name)
        if not to:
            _, _, layer, rest = name.split(".", 3)
            to = f"blk.{layer}.{short[rest.removesuffix('.weight')]}.weight"
        v = values(name, shape)
        if len(shape) == 1:
            w.add_tensor(to, np.ones(shape, np.float32))
        else:
            w.add_tensor(to, v.view(np.uint8).reshape(shape[0], shape[1] * 2),
                         raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def main():
    folder = pathlib.Path(sys.argv[1])
    os.makedirs(folder, exist_ok=True)
    write_hf(folder)
    write_gguf(str(folder / "model.gguf"))


main()
