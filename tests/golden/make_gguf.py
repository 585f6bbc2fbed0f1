# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/gguf/<name>.gguf: golden models of other folders as GGUF files, F16 but for vectors.

    python3 tests/golden/make_gguf.py            (needs numpy and gguf from PyPI)

They are written by gguf's own writer with the names of its own tables, and what llama.cpp's converter does to
the values is done here as its documentation has it: rows of queries and keys of Llama and SmolLM 3 go in pairs,
norms of Gemma have their 1 added, Llama 3's scaling becomes a tensor of divisors. What must come out is in the
golden.safetensors of the folder that each was made from.

BitNet is there in each ternary type, whatever is not ternary in F32, under each of its architectures: tq1_0 and
tq2_0 are made by gguf, the latter of -1, 0 and 1 with the scale as a tensor beside; i2_s, which gguf does not know,
is written here as microsoft/BitNet's utils/convert-hf-to-gguf-bitnet.py and kernels have it: of 128 neighbours the
codes of j, j + 32, j + 64 and j + 96 in byte j, the first in the highest bits, and the scale behind all rows.
"""
import json
import os

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {"llama": "llama/llama3-tied", "qwen3": "qwen3/plain", "gemma3": "gemma3/images", "smollm3": "smollm3/plain"}


BITNETS = {"bitnet-tq1_0": ("bitnet-25", "TQ1_0"), "bitnet-tq2_0": ("bitnet", "TQ2_0"),
           "bitnet-i2_s": ("bitnet-b1.58", "I2_S")}
I2_S = 36  # the number of the type


def draw(name, seed, offset, scale, shape):
    """As tests/golden/make_families.py has it; packed codes taken apart, as -1, 0 and 1."""
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    with np.errstate(over="ignore"):
        z = np.uint64((h + seed) & (1 << 64) - 1) + np.arange(int(np.prod(shape)), dtype=np.uint64) * \
            np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z = z ^ (z >> np.uint64(31))
    if offset == "codes":
        return np.concatenate([((z >> np.uint64(8 * i) & np.uint64(255)) % np.uint64(3)).astype(np.float32) - 1
                               for i in range(4)]).reshape(-1, shape[1])
    k = np.maximum((z >> np.uint64(56)).astype(np.int8).astype(np.int32), -127)
    return (float(offset) + k * (scale / 65536)).astype(np.float32).reshape(shape)


def read_weights(folder):
    recipe = os.path.join(folder, "weights.txt")
    if os.path.exists(recipe):
        for line in open(recipe):
            name, seed, offset, scale, *shape = line.split()
            yield name, draw(name, int(seed), offset, float(scale), [int(n) for n in shape])
        return
    data = open(os.path.join(folder, "model.safetensors"), "rb").read()
    n = int.from_bytes(data[:8], "little")
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            assert t["dtype"] == "F32"
            yield name, np.frombuffer(data[8 + n + begin:8 + n + end], np.float32).reshape(t["shape"])


def in_pairs(w, heads):
    """Row i and row i + D / 2 of a head stand side by side."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def divisors(c):
    s = c["rope_scaling"]
    old, factor, low, high = (s[k] for k in ("original_max_position_embeddings", "factor", "low_freq_factor",
                                             "high_freq_factor"))
    waves = 2 * np.pi * c["rope_theta"] ** (np.arange(0, c["head_dim"], 2) / c["head_dim"])
    smooth = (old / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(waves < old / high, 1, np.where(waves > old / low, factor, between)).astype(np.float32)


def make(arch, source):
    folder = os.path.join(HERE, source)
    c = json.load(open(os.path.join(folder, "config.json")))
    c = c.get("text_config", c)
    w = gguf.GGUFWriter(os.path.join(HERE, "gguf", arch + ".gguf"), arch)
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    layers, head_dim = c["num_hidden_layers"], c.get("head_dim", c["hidden_size"] // heads)
    gemma, llama = arch == "gemma3", arch in ("llama", "smollm3")
    w.add_name(source)
    w.add_block_count(layers)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps", 1e-6))
    w.add_rope_freq_base(c.get("rope_theta", 1e6 if gemma else 2e6 if arch == "smollm3" else 1e4))
    if llama:
        w.add_rope_dimension_count(head_dim)
    if gemma:
        w.add_sliding_window(c["sliding_window"])
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(c["rope_scaling"]["factor"])
    w.add_eos_token_id(c["eos_token_id"])
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), layers)
    if c.get("rope_scaling") and c["rope_scaling"]["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", divisors(c))
    for name, values in read_weights(folder):
        if "vision" in name or "multi_modal" in name or name == "lm_head.weight":
            continue
        short = name.replace("language_model.model.", "model.").replace("model.language_model.", "model.")
        if llama and (".q_proj." in name or ".k_proj." in name):
            values = in_pairs(values, heads if ".q_proj." in name else kv)
        if gemma and "norm" in name:
            values = values + np.float32(1)
        to = names.get_name(short, try_suffixes=(".weight", ".bias"))
        assert to, name
        w.add_tensor(to, values.astype(np.float16) if values.ndim == 2 else values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def i2_s(signs, scale):
    """One tensor's bytes."""
    codes = (signs + 1).astype(np.uint8).reshape(-1, 4, 32)
    packed = codes[:, 0] << 6 | codes[:, 1] << 4 | codes[:, 2] << 2 | codes[:, 3]
    tail = np.zeros(8, np.float32)
    tail[0] = scale
    return np.concatenate([packed.reshape(-1), tail.view(np.uint8)])


def make_bitnet(file, arch, kind):
    folder = os.path.join(HERE, "bitnet/packed")
    c = json.load(open(os.path.join(folder, "config.json")))
    w = gguf.GGUFWriter(os.path.join(HERE, "gguf", file + ".gguf"), arch)
    weights = dict(read_weights(folder))
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    w.add_vocab_size(c["vocab_size"])
    if arch == "bitnet":
        w.add_string("bitnet.hidden_activation", c["hidden_act"])
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(1.0)
    w.add_eos_token_id(c["eos_token_id"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BITNET, c["num_hidden_layers"])
    for name, values in weights.items():
        if name.endswith("_scale"):
            continue
        older = name.replace("self_attn.attn_sub_norm", "self_attn.inner_attn_ln").replace("mlp.ffn_sub_norm", "mlp.ffn_layernorm")
        to = names.get_name(older, try_suffixes=(".weight",))  # as the first models had it: gguf has no other
        assert to, name
        scale = weights.get(name + "_scale")
        if scale is None:
            w.add_tensor(to, values)
        elif kind == "I2_S":
            b = i2_s(values, scale[0])
            w.tensors[0][to] = gguf.gguf_writer.TensorInfo(shape=values.shape, dtype=I2_S, nbytes=b.nbytes, tensor=b)
        else:
            beside = kind == "TQ2_0"
            kind_ = gguf.GGMLQuantizationType[kind]
            w.add_tensor(to, gguf.quants.quantize(values if beside else values * scale, kind_), raw_dtype=kind_)
            if beside:
                w.add_tensor(to.removesuffix("weight") + "scale", scale)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    os.makedirs(os.path.join(HERE, "gguf"), exist_ok=True)
    for arch, source in MODELS.items():
        make(arch, source)
    for file, what in BITNETS.items():
        make_bitnet(file, *what)
