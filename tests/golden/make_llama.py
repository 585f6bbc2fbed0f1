# SPDX-License-Identifier: Apache-2.0
"""Make the tiny random llamas in tests/golden/llama/ and what transformers computes with them.

    python3 tests/golden/make_llama.py

The reference is transformers' LlamaForCausalLM on the CPU in f32 with eager attention. Between them
the models have every feature of the family: GQA ratios 1, 2 and 4, tied and untied embeddings,
head_dim other than hidden / heads, llama3 and linear rope scaling, biases, other thetas and
epsilons, several shards, and both spellings of config.json (rope_theta and rope_scaling; the newer
rope_parameters). Weights are drawn so that each feature shows in the logits; the script switches
each one off, asserts that the error exceeds 1e-4 NMSE, and records the figure.

Each directory holds config.json, the weights, and golden.safetensors:

    tokens           i32 [256]            teacher-forced random tokens
    positions        i32 [8]              where hidden states are kept
    hidden.<i>       f32 [8, hidden]      residual stream: 0 the embedding, i after layer i
    logit_positions  i32 [16]
    logits           f32 [16, vocab]
    greedy_prompt_len i32 [1]             32: greedy continues tokens[:32]
    greedy           i32 [64]

manifest.json lists the models, their features and the measured figures: feature_off_nmse (what a
test that switches the feature off must exceed by far over its own error), f64_nmse (how far this
f32 reference is from transformers in f64, which still keeps norms, softmax and rope in f32),
greedy_margin (least gap between the best two logits along the greedy run).
"""
import copy
import json
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama")
N_TOKENS, N_PROMPT, N_GREEDY = 256, 32, 64
POSITIONS = [0, 1, 17, 63, 100, 128, 200, 255]
LOGIT_POSITIONS = [0, 1, 2, 7, 17, 31, 32, 63, 64, 100, 127, 128, 191, 200, 254, 255]
LEAST_NMSE, LEAST_MARGIN = 1e-4, 5e-3

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "plain": dict(hidden_size=64, intermediate_size=80, num_hidden_layers=3,
                  num_attention_heads=4, num_key_value_heads=4, vocab_size=320,
                  rope={"rope_type": "default", "rope_theta": 10000.0}, rms_norm_eps=1e-5,
                  tied=False, classic=True),
    "llama3-tied": dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=2, vocab_size=384,
                        rope=dict(LLAMA3, rope_theta=500000.0, factor=8.0,
                                  original_max_position_embeddings=64),
                        rms_norm_eps=1e-6, tied=True, classic=True),
    "llama3-head-dim": dict(hidden_size=64, intermediate_size=80, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=1, head_dim=24,
                            vocab_size=300,
                            rope=dict(LLAMA3, rope_theta=10000.0, factor=32.0,
                                      original_max_position_embeddings=128),
                            rms_norm_eps=1e-5, tied=False, classic=False),
    "linear": dict(hidden_size=96, intermediate_size=80, num_hidden_layers=2,
                   num_attention_heads=6, num_key_value_heads=3, vocab_size=301,
                   rope={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                   rms_norm_eps=1e-2, tied=True, classic=True),
    "biased": dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                   num_attention_heads=8, num_key_value_heads=2, vocab_size=512,
                   rope={"rope_type": "default", "rope_theta": 20000.0}, rms_norm_eps=1e-5,
                   tied=True, classic=True, attention_bias=True, mlp_bias=True),
    "sharded": dict(hidden_size=64, intermediate_size=112, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, vocab_size=333,
                    rope={"rope_type": "default", "rope_theta": 1000000.0}, rms_norm_eps=1e-6,
                    tied=False, classic=False, shard="200KB"),
}


def build(spec, seed):
    own = ("rope", "tied", "classic", "shard")
    config = LlamaConfig(rope_parameters=dict(spec["rope"]), tie_word_embeddings=spec["tied"],
                         max_position_embeddings=512, bos_token_id=None, eos_token_id=2,
                         pad_token_id=None, **{k: v for k, v in spec.items() if k not in own})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn_like(p))
            elif name.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))
            elif "embed" in name or "lm_head" in name:
                p.copy_(0.25 * torch.randn_like(p))
            else:
                gain = 0.8
                if "q_proj" in name or "k_proj" in name:
                    gain = 1.8  # large enough that attention picks positions
                elif spec["tied"] and ("o_proj" in name or "down_proj" in name):
                    gain = 2.4  # or a tied model repeats its last token for ever
                p.copy_(gain * torch.randn_like(p) / p.shape[1] ** 0.5)
    return model


def run(model, tokens):
    """(residual stream after the embedding and each layer [n + 1][T, hidden], logits [T, V])"""
    states = []
    hooks = [model.model.layers[0].register_forward_pre_hook(lambda m, a: states.append(a[0][0]))]
    for layer in model.model.layers:
        hooks.append(layer.register_forward_hook(
            lambda m, a, out: states.append((out[0] if isinstance(out, tuple) else out)[0])))
    with torch.no_grad():
        logits = model(tokens[None], use_cache=False).logits[0]
    for h in hooks:
        h.remove()
    states = [s.reshape(len(tokens), -1) for s in states]
    assert len(states) == model.config.num_hidden_layers + 1
    return states, logits


def nmse(x, reference):
    x, reference = x.double(), reference.double()
    return float((x - reference).pow(2).sum() / reference.pow(2).sum())


def greedy(model, prompt):
    """64 greedy tokens, and the least gap between the best two logits on the way."""
    ids, margin = prompt.clone(), float("inf")
    for _ in range(N_GREEDY):
        with torch.no_grad():
            best = model(ids[None], use_cache=False).logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids = torch.cat((ids, best.indices[:1]))
    return ids[len(prompt):], margin


def variants(model, spec):
    """(feature, the same model with that feature off or wrong), for every switchable feature."""
    def with_config(**changes):
        config = copy.deepcopy(model.config)
        for k, v in changes.items():
            setattr(config, k, v)
        other = LlamaForCausalLM(config).eval()
        other.load_state_dict(model.state_dict())
        return other

    def with_weights(edit):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for name, p in other.named_parameters():
                edit(name, p)
        return other

    def zero(part):
        return lambda name, p: p.zero_() if part in name and name.endswith("bias") else None

    def tile_heads(name, p):
        """Query head h reads key head h mod n_kv, not h div group: the classic GQA mistake."""
        heads, kv, hd = (model.config.num_attention_heads, model.config.num_key_value_heads,
                         model.config.head_dim)
        order = [(h % kv) * (heads // kv) + h // kv for h in range(heads)]
        inverse = [order.index(h) for h in range(heads)]
        if "q_proj" in name:
            p.copy_(p.view(heads, hd, *p.shape[1:])[inverse].reshape(p.shape))
        elif "o_proj.weight" in name:
            p.copy_(p.view(p.shape[0], heads, hd)[:, inverse].reshape(p.shape))

    theta = spec["rope"]["rope_theta"]
    if spec["rope"]["rope_type"] != "default":
        yield "rope_scaling", with_config(
            rope_parameters={"rope_type": "default", "rope_theta": theta})
    if theta != 10000.0:
        yield "rope_theta", with_config(rope_parameters=dict(spec["rope"], rope_theta=10000.0))
    if spec["rms_norm_eps"] > 1e-4:
        yield "rms_norm_eps", with_config(rms_norm_eps=1e-5)
    if spec.get("attention_bias"):
        yield "attention_bias", with_weights(zero("self_attn"))
    if spec.get("mlp_bias"):
        yield "mlp_bias", with_weights(zero("mlp"))
    # One key head serves all queries in either order, so only several tell the two apart.
    if model.config.num_attention_heads > model.config.num_key_value_heads > 1:
        yield "gqa_head_order", with_weights(tile_heads)
    yield "norm_weights", with_weights(lambda name, p: p.fill_(1) if "norm" in name else None)


def write_config(model, spec, path):
    """config.json, in the spelling of transformers 4 if the model is a classic one."""
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    if spec["classic"]:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        config["torch_dtype"] = config.pop("dtype", "float32")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def make(name, spec, seed):
    """Write one model directory; return its manifest entry, or None if a margin is too thin."""
    model = build(spec, seed)
    c = model.config
    tokens = torch.randint(0, c.vocab_size, (N_TOKENS,),
                           generator=torch.Generator().manual_seed(seed + 1))
    states, logits = run(model, tokens)
    continued, margin = greedy(model, tokens[:N_PROMPT])
    if margin < LEAST_MARGIN or len(set(continued.tolist())) < 16:
        return None
    off = {feature: nmse(run(other, tokens)[1], logits) for feature, other in variants(model, spec)}
    for feature, error in off.items():
        assert error > LEAST_NMSE, (name, feature, error)

    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=spec.get("shard", "1GB"))
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    write_config(model, spec, os.path.join(folder, "config.json"))
    files = sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))
    assert (len(files) > 2) == ("shard" in spec), files

    golden = {"tokens": tokens.int(), "positions": torch.tensor(POSITIONS).int(),
              "logit_positions": torch.tensor(LOGIT_POSITIONS).int(),
              "logits": logits[LOGIT_POSITIONS].contiguous(),
              "greedy": continued.int(), "greedy_prompt_len": torch.tensor([N_PROMPT]).int()}
    for i, s in enumerate(states):
        golden[f"hidden.{i}"] = s[POSITIONS].contiguous()
    save_file(golden, os.path.join(folder, "golden.safetensors"))

    # The directory as written, read back, must be the model that made the golden values.
    again = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                             attn_implementation="eager").eval()
    assert torch.equal(run(again, tokens)[1], logits), name
    return {
        "name": name, "seed": seed, "files": files,
        "config_style": "rope_theta" if spec["classic"] else "rope_parameters",
        "features": {
            "gqa_ratio": c.num_attention_heads // c.num_key_value_heads,
            "tied": spec["tied"],
            "head_dim": c.head_dim,
            "odd_head_dim": c.head_dim != c.hidden_size // c.num_attention_heads,
            "rope_type": spec["rope"]["rope_type"], "rope_theta": spec["rope"]["rope_theta"],
            "rms_norm_eps": c.rms_norm_eps, "attention_bias": c.attention_bias,
            "mlp_bias": c.mlp_bias, "sharded": "shard" in spec},
        "feature_off_nmse": {k: float(f"{v:.4g}") for k, v in off.items()},
        "f64_nmse": float(f"{nmse(logits, run(model.double(), tokens)[1]):.3g}"),
        "greedy_margin": float(f"{margin:.4g}"),
    }


def main():
    torch.set_num_threads(1)
    os.makedirs(HERE, exist_ok=True)
    manifest = []
    for i, (name, spec) in enumerate(MODELS.items()):
        for attempt in range(50):
            entry = make(name, spec, 1000 * (i + 1) + attempt)
            if entry:
                break
        else:
            raise SystemExit(f"{name}: no seed gives greedy margins over {LEAST_MARGIN}")
        manifest.append(entry)
        print(name, json.dumps({k: entry[k] for k in
                                ("seed", "feature_off_nmse", "f64_nmse", "greedy_margin")}))
    with open(os.path.join(HERE, "manifest.json"), "w", encoding="utf-8") as f:
        json.dump({"reference": "transformers LlamaForCausalLM, CPU, f32, eager attention",
                   "least_feature_off_nmse": LEAST_NMSE, "models": manifest}, f, indent=2)
        f.write("\n")
    total = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(HERE) for f in fs)
    print(f"{total} bytes")
    assert total < 3_000_000


if __name__ == "__main__":
    main()
