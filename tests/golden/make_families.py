# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/<family>/<name>/: tiny random models and what transformers computes with them.

    python3 tests/golden/make_families.py [FAMILY | FAMILY/NAME ...]

The reference is transformers on the CPU in f32 with eager attention, loaded with from_pretrained from
the very config.json that is committed. Weights are drawn by a counter-based generator that tests
repeat (tests/models/golden_model.h), so that none lie in the repository. A directory holds

    config.json         as a checkpoint has it; several spellings
    weights.txt         a line a tensor: name, seed, offset, scale, shape; offset "signs": of -1, 0 and 1;
                        "codes": u8, four ternary codes in a byte
    golden.safetensors  tokens, greedy, logits, hidden.<i> as tests/golden/make_llama.py describes them

Element i of a tensor is offset + scale / 65536 * k, exact in f32, where k = the top byte of
splitmix64(fnv1a64(name) + seed + i * 0x9e3779b97f4a7c15), as a signed number, -128 taken as -127. A sign is
that number's lowest byte modulo 3, less 1; the codes of a byte are its four lowest bytes modulo 3, the first lowest.
"""
import json
import os
import shutil
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as written, not compiled

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
N_TOKENS, N_PROMPT, N_GREEDY = 256, 32, 64
POSITIONS = [0, 1, 18, 63, 130, 255]
LOGIT_POSITIONS = [0, 1, 7, 17, 31, 64, 100, 128, 191, 254, 255]
LEAST_MARGIN = 5e-3
# BitNet rounds what goes into its layers to whole numbers, and what hangs on the last bits of a sum makes all that
# follows another: positions are early ones, and none that leads to them may be that close to a half.
BIT_POSITIONS = [0, 1, 4, 8, 12, 15]
BIT_LOGIT_POSITIONS = [0, 2, 5, 7, 10, 13, 14, 15]
LEAST_DISTANCE = 1e-6  # from a half, of its size plus 10

SMALL = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=160, max_position_embeddings=512, eos_token_id=2,
             torch_dtype="float32")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
VISION = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8,
          "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 16, "patch_size": 8}
FULL, SLIDING = "full_attention", "sliding_attention"


def spec(cls, **config):
    return {"class": cls, "config": {**SMALL, **config}}


MISTRAL = {
    "window": spec("MistralForCausalLM", model_type="mistral", sliding_window=24,
                   rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "head-dim": spec("MistralForCausalLM", model_type="mistral", sliding_window=None, head_dim=20,
                     rope_theta=1000000.0, rms_norm_eps=1e-5),
    "window-head-dim": spec("MistralForCausalLM", model_type="mistral", sliding_window=65, head_dim=8,
                            num_attention_heads=6, num_key_value_heads=1, rope_theta=50000.0,
                            tie_word_embeddings=True),
    "parameters": spec("MistralForCausalLM", model_type="mistral", sliding_window=16, head_dim=None,
                       rope_parameters={"rope_type": "default", "rope_theta": 30000.0}),
    "original": spec("MistralForCausalLM", model_type="mistral", sliding_window=None,
                     original_max_position_embeddings=64,
                     rope_parameters={**LLAMA3, "rope_theta": 10000.0, "original_max_position_embeddings": 16}),
}
QWEN2 = {
    "plain": spec("Qwen2ForCausalLM", model_type="qwen2", rope_theta=1000000.0,
                  use_sliding_window=False, sliding_window=24, max_window_layers=2,
                  tie_word_embeddings=True),
    "window": spec("Qwen2ForCausalLM", model_type="qwen2", rope_theta=10000.0,
                   use_sliding_window=True, sliding_window=24, max_window_layers=2),
    "layer-types": spec("Qwen2ForCausalLM", model_type="qwen2", use_sliding_window=True,
                        sliding_window=19, max_window_layers=1,
                        layer_types=[SLIDING, FULL, FULL, SLIDING],
                        rope_parameters={"rope_type": "linear", "factor": 4.0,
                                         "rope_theta": 10000.0}),
    "untold": spec("Qwen2ForCausalLM", model_type="qwen2", rope_theta=1000000.0,
                   num_key_value_heads=4, rms_norm_eps=1e-3),
    "yarn": spec("Qwen2ForCausalLM", model_type="qwen2", rope_theta=10000.0, tie_word_embeddings=True,
                 rope_scaling={"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}),
    "two-ropes": spec("Qwen2ForCausalLM", model_type="qwen2", rope_theta=10000.0, tie_word_embeddings=True,
                      rope_parameters={"rope_type": "default", "rope_theta": 300000.0},
                      rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "no-scaling": spec("Qwen2ForCausalLM", model_type="qwen2", rope_scaling={},
                       rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}),
    "own-head": {**spec("Qwen2ForCausalLM", model_type="qwen2", tie_word_embeddings=True), "head": True},
}
QWEN3 = {
    "plain": spec("Qwen3ForCausalLM", model_type="qwen3", rope_theta=1000000.0, head_dim=16,
                  tie_word_embeddings=True, attention_bias=False),
    "biased": {**spec("Qwen3ForCausalLM", model_type="qwen3", rope_theta=20000.0, head_dim=16,
                      attention_bias=True), "bias": 0.1},
    "window": spec("Qwen3ForCausalLM", model_type="qwen3", head_dim=20, use_sliding_window=True,
                   sliding_window=33, max_window_layers=3,
                   rope_parameters={"rope_type": "default", "rope_theta": 5000000.0}),
    "untold": spec("Qwen3ForCausalLM", model_type="qwen3", rope_theta=10000.0, head_dim=12,
                   rope_scaling=LLAMA3, rms_norm_eps=1e-3),
    "yarn": spec("Qwen3ForCausalLM", model_type="qwen3", head_dim=20, tie_word_embeddings=True,
                 rope_parameters={"rope_type": "yarn", "factor": None, "rope_theta": 5000.0, "beta_fast": 6.0,
                                  "beta_slow": 0.5, "mscale": 2.0, "mscale_all_dim": 0.5, "truncate": False,
                                  "original_max_position_embeddings": 128}),
    "original": spec("Qwen3ForCausalLM", model_type="qwen3", head_dim=16, rope_theta=10000.0,
                     original_max_position_embeddings=64,
                     rope_scaling={"rope_type": "yarn", "factor": 8.0, "attn_factor": 0.8,
                                   "original_max_position_embeddings": 256}),
    "no-original": spec("Qwen3ForCausalLM", model_type="qwen3", head_dim=12, rope_theta=20000.0,
                        rope_scaling={k: v for k, v in LLAMA3.items() if not k.startswith("original")}),
}
GEMMA2 = {
    "plain": spec("Gemma2ForCausalLM", model_type="gemma2", head_dim=16, sliding_window=24,
                  query_pre_attn_scalar=24, attn_logit_softcapping=3.0,
                  final_logit_softcapping=6.0, hidden_act="gelu_pytorch_tanh",
                  hidden_activation="gelu_pytorch_tanh", rope_theta=10000.0),
    "defaults": spec("Gemma2ForCausalLM", model_type="gemma2", head_dim=16, sliding_window=40,
                     num_hidden_layers=3, num_attention_heads=6),
    "uncapped": spec("Gemma2ForCausalLM", model_type="gemma2", head_dim=8, num_key_value_heads=1,
                     sliding_window=17, query_pre_attn_scalar=8, attn_logit_softcapping=None,
                     final_logit_softcapping=None, attention_bias=True, tie_word_embeddings=False),
    "layer-types": spec("Gemma2ForCausalLM", model_type="gemma2", head_dim=16, sliding_window=64,
                        query_pre_attn_scalar=10, attn_logit_softcapping=2.0,
                        final_logit_softcapping=4.0, layer_types=[FULL, SLIDING, SLIDING, FULL],
                        rope_parameters={"rope_type": "default", "rope_theta": 20000.0}),
}
GEMMA3 = {
    "text": spec("Gemma3ForCausalLM", model_type="gemma3_text", head_dim=16, sliding_window=24,
                 query_pre_attn_scalar=24, sliding_window_pattern=2, rope_theta=1000000.0,
                 rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "layer-types": spec("Gemma3ForCausalLM", model_type="gemma3_text", head_dim=12,
                        num_key_value_heads=1, sliding_window=41, query_pre_attn_scalar=12,
                        layer_types=[SLIDING, FULL, SLIDING, SLIDING],
                        final_logit_softcapping=5.0, attention_bias=True,
                        tie_word_embeddings=False, rope_parameters={
                            FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0},
                            SLIDING: {"rope_type": "default", "rope_theta": 2000.0}}),
    "images": {"class": "Gemma3ForConditionalGeneration", "prefix": "language_model.",
               "config": {"model_type": "gemma3", "vision_config": VISION, "torch_dtype": "float32",
                          "mm_tokens_per_image": 4, "image_token_index": 159,
                          "text_config": {**SMALL, "model_type": "gemma3_text", "head_dim": 16,
                                          "query_pre_attn_scalar": 16, "sliding_window": 20,
                                          "num_hidden_layers": 7, "hidden_size": 32,
                                          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}},
    "images-new": {"class": "Gemma3ForConditionalGeneration", "prefix": "new",
                   "config": {"model_type": "gemma3", "vision_config": VISION, "dtype": "float32",
                              "mm_tokens_per_image": 4, "image_token_index": 159,
                              "text_config": {**SMALL, "model_type": "gemma3_text", "head_dim": 8,
                                              "query_pre_attn_scalar": 8, "sliding_window": 48,
                                              "layer_types": [FULL, SLIDING, SLIDING, FULL]}}},
    "yarn": spec("Gemma3ForCausalLM", model_type="gemma3_text", head_dim=16, sliding_window=24,
                 query_pre_attn_scalar=24, tie_word_embeddings=False,
                 layer_types=[SLIDING, FULL, FULL, SLIDING], rope_parameters={
                     FULL: {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "attention_factor": 1.25,
                            "beta_slow": 2.0, "original_max_position_embeddings": 128},
                     SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}),
    "two-ropes": spec("Gemma3ForCausalLM", model_type="gemma3_text", head_dim=16, sliding_window=24,
                      query_pre_attn_scalar=24, tie_word_embeddings=False, layer_types=[SLIDING, FULL, FULL, SLIDING],
                      rope_theta=80000.0, rope_local_base_freq=3000.0,
                      rope_parameters={FULL: {"rope_type": "linear", "factor": 2.0}},
                      rope_scaling={"factor": 8.0}),
}
SMOLLM3 = {
    "plain": spec("SmolLM3ForCausalLM", model_type="smollm3", num_hidden_layers=5,
                  use_sliding_window=False, pad_token_id=0),
    "list": spec("SmolLM3ForCausalLM", model_type="smollm3", rope_theta=50000.0, mlp_bias=True,
                 no_rope_layers=[0, 1, 1, 0], pad_token_id=0, tie_word_embeddings=False, attention_bias=False),
    "sliding": spec("SmolLM3ForCausalLM", model_type="smollm3", pad_token_id=0, sliding_window=24,
                    layer_types=[FULL, SLIDING, SLIDING, FULL], tie_word_embeddings=False),
    "window": spec("SmolLM3ForCausalLM", model_type="smollm3", pad_token_id=0, sliding_window=33,
                   use_sliding_window=True, no_rope_layer_interval=2),
}
def ternary(linear_class, mode, **more):
    return {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": mode, **more}


BIT = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_key_value_heads=1)
BITNET = {
    "packed": spec("BitNetForCausalLM", model_type="bitnet", **BIT, tie_word_embeddings=True, hidden_act="relu2",
                   rope_theta=500000.0, rms_norm_eps=1e-5, quantization_config=ternary("autobitlinear", "offline")),
    "bitlinear": spec("BitNetForCausalLM", model_type="bitnet", **{**BIT, "intermediate_size": 384},
                      attention_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
                      quantization_config={"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}),
    "online": spec("BitNetForCausalLM", model_type="bitnet", **{**BIT, "num_key_value_heads": None},
                   rms_norm_eps=1e-3, attention_bias=True, tie_word_embeddings=True,
                   quantization_config=ternary("autobitlinear", "online", modules_to_not_convert=None)),
    "unpacked": {**spec("BitNetForCausalLM", model_type="bitnet", **{**BIT, "hidden_size": 128}, attention_bias=True,
                        quantization_config=ternary("autobitlinear", "offline")), "signs": True, "bias": 2.0},
    "plain": spec("BitNetForCausalLM", model_type="bitnet", tie_word_embeddings=True, hidden_act="silu"),
    "llama": spec("LlamaForCausalLM", model_type="llama", **{**BIT, "hidden_size": 128, "intermediate_size": 384},
                  rope_theta=10000.0, mlp_bias=True, quantization_config=ternary("bitlinear", "offline")),
}
FAMILIES = {"bitnet": BITNET, "smollm3": SMOLLM3, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3, "gemma2": GEMMA2, "gemma3": GEMMA3}


def mix(name, seed, shape):
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9e3779b97f4a7c15)
        z = np.uint64((h + seed) & (1 << 64) - 1) + np.arange(int(np.prod(shape)), dtype=np.uint64) * golden
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return z ^ (z >> np.uint64(31))


def draw(name, seed, offset, scale, shape):
    z = mix(name, seed, shape)
    digits = [(z >> np.uint64(8 * i) & np.uint64(255)) % np.uint64(3) for i in range(4)]
    if offset == "signs":
        return torch.from_numpy(digits[0].astype(np.float32).reshape(shape)) - 1
    if offset == "codes":
        codes = sum(d << np.uint64(2 * i) for i, d in enumerate(digits))
        return torch.from_numpy(codes.astype(np.uint8).reshape(shape))
    k = np.maximum((z >> np.uint64(56)).astype(np.int8).astype(np.int32), -127)
    return torch.from_numpy((offset + k * (scale / 65536)).astype(np.float32).reshape(shape))


def list_weights(spec, seed):
    """(name in the file, seed, offset, scale, shape) of every tensor of the language model."""
    config = spec["config"].get("text_config", spec["config"])
    text = spec["class"].replace("ConditionalGeneration", "CausalLM")
    model_config = transformers.AutoConfig.for_model(
        **{k: v for k, v in json.loads(json.dumps(config)).items()})
    model = getattr(transformers, text)(model_config)
    gemma, tied = "gemma" in config["model_type"], model_config.tie_word_embeddings and not spec.get("head")
    out = []
    for name, p in model.named_parameters():
        offset, std = 0, 0.8 / p.shape[-1] ** 0.5
        if "norm" in name:
            offset, std = (0 if gemma else 1), 0.3
        elif name.endswith("bias"):
            std = spec.get("bias", 0.3)
        elif "embed" in name or "lm_head" in name:
            std = 0.25
        elif "q_proj" in name or "k_proj" in name:
            std = 1.8 / p.shape[-1] ** 0.5  # large enough that attention picks positions
        elif tied and ("o_proj" in name or "down_proj" in name):
            std = 2.4 / p.shape[-1] ** 0.5  # or a tied model repeats its last token for ever
        if gemma and "post_" in name:
            offset = 1.5  # what layers add must count beside the scaled embedding
        quantised = model_config.to_dict().get("quantization_config") or {}
        if name.endswith("_proj.weight") and quantised and quantised.get("quantization_mode") != "online":
            times = round(std / (2 / 3) ** 0.5 * 256) / 256  # a few bits: GGUF's f16 has them
            over = quantised.get("linear_class", "bitlinear") == "bitlinear"
            out.append((name + "_scale", seed, round(1 / times) if over else times, 0, [1]))
            kind, rows = ("signs", p.shape[0]) if spec.get("signs") else ("codes", p.shape[0] // 4)
            out.append((name, seed, kind, 0, [rows, p.shape[1]]))
            continue
        prefix = spec.get("prefix", "")
        name = name.replace("model.", "model.language_model.", 1) if prefix == "new" else prefix + name
        out.append((name, seed, offset, round(std / 73.6 * 65536), list(p.shape)))
    if spec.get("head"):  # another one than the embedding, whatever config.json says
        out.append(("lm_head.weight", seed, 0, round(0.25 / 73.6 * 65536), list(out[0][4])))
    return out


def text_part(model):
    return getattr(model.model, "language_model", model.model)


def run(model, tokens):
    states, layers = [], text_part(model).layers
    hooks = [layers[0].register_forward_pre_hook(lambda m, a: states.append(a[0][0]))]
    for layer in layers:
        hooks.append(layer.register_forward_hook(
            lambda m, a, out: states.append((out[0] if isinstance(out, tuple) else out))))
    with torch.no_grad():
        logits = model(input_ids=tokens[None], use_cache=False).logits[0]
    for h in hooks:
        h.remove()
    return [s.reshape(len(tokens), -1) for s in states], logits


def distance_from_halves(model, tokens):
    """The least, of all that transformers' ternary layers round, in parts of its size plus 10."""
    least = [float("inf")]

    def look(module, args):
        x = args[0].double()
        x = x * (127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5))
        least[0] = min(least[0], float(((x - x.floor() - 0.5).abs() / (x.abs() + 10)).min()))
    hooks = [m.register_forward_pre_hook(look) for m in model.modules() if "BitLinear" in type(m).__name__]
    with torch.no_grad():
        model(input_ids=tokens[None], use_cache=False)
    for h in hooks:
        h.remove()
    return least[0]


def greedy(model, prompt):
    ids, margin = prompt.clone(), float("inf")
    for _ in range(N_GREEDY):
        with torch.no_grad():
            best = model(input_ids=ids[None], use_cache=False).logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids = torch.cat((ids, best.indices[:1]))
    return ids[len(prompt):], margin


def make(family, name, spec, seed):
    weights = list_weights(spec, seed)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(spec["config"], f, indent=2)
        save_file({w[0]: draw(*w) for w in weights}, os.path.join(folder, "model.safetensors"),
                  metadata={"format": "pt"})
        model = getattr(transformers, spec["class"]).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        for key, seed_, offset, scale, shape in weights:  # nothing was left out or renamed wrongly
            short = key.split("model.")[-1]
            values = draw(key, seed_, offset, scale, shape)
            everything = [*model.named_parameters(), *model.named_buffers()]
            own = [p for n, p in everything
                   if ("." + n).endswith((".model." + short, "language_model." + short,
                                          "." + short if "lm_head" in n else "no")) and
                   "vision" not in n]
            if offset == "codes" and own[0].dtype != torch.uint8:  # a quarter of the rows after the other
                values = torch.cat([(values >> 2 * i & 3).float() - 1 for i in range(4)])
            assert len(own) == 1 and torch.equal(own[0], values), key
    vocab = model.config.get_text_config().vocab_size
    tokens = torch.randint(3, vocab - 1, (N_TOKENS,), generator=torch.Generator().manual_seed(seed + 1))
    quantised = "quantization_config" in spec["config"]
    positions, logit_positions = (BIT_POSITIONS, BIT_LOGIT_POSITIONS) if quantised else (POSITIONS, LOGIT_POSITIONS)
    if quantised and distance_from_halves(model, tokens[:max(positions) + 1]) < LEAST_DISTANCE:
        return None
    states, logits = run(model, tokens)
    continued, margin = greedy(model, tokens[:N_PROMPT])
    if margin < LEAST_MARGIN or len(set(continued.tolist())) < 12 or 159 in continued.tolist():
        return None
    folder = os.path.join(HERE, family, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    config = dict(spec["config"])
    if name == "untold":  # the family is to be told from the weights
        del config["model_type"]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    with open(os.path.join(folder, "weights.txt"), "w", encoding="utf-8") as f:
        for w in weights:
            print(*w[:4], *w[4], file=f)
    golden = {"tokens": tokens.int(), "positions": torch.tensor(positions).int(),
              "logit_positions": torch.tensor(logit_positions).int(),
              "logits": logits[logit_positions].contiguous(),
              "greedy": continued.int(), "greedy_prompt_len": torch.tensor([N_PROMPT]).int()}
    if family.startswith("gemma"):  # a bf16 model's embedding, scaled in bf16
        with torch.no_grad():
            half = text_part(model.to(torch.bfloat16)).embed_tokens(tokens[positions])
        golden["embedded.bf16"] = half.view(torch.uint16).to(torch.int32)
    for i, s in enumerate(states):
        golden[f"hidden.{i}"] = s[positions].contiguous()
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    return margin


def main():
    torch.set_num_threads(1)
    transformers.quantizers.quantizer_bitnet.is_accelerate_available = lambda: True  # it is not used
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for wanted in sys.argv[1:] or FAMILIES:
        family, _, only = wanted.partition("/")
        for i, (name, spec) in enumerate(FAMILIES[family].items()):
            if only and name != only:
                continue
            for attempt in range(400):
                margin = make(family, name, spec, 1000 * (i + 1) + attempt)
                if margin:
                    break
            else:
                raise SystemExit(f"{family}/{name}: no seed gives greedy margins over {LEAST_MARGIN}")
            print(f"{family}/{name}: attempt {attempt}, greedy margin {margin:.3g}", flush=True)


if __name__ == "__main__":
    main()
