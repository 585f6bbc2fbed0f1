#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny.tokenizer.json, tiny.expected.jsonl, variants.jsonl and chars.jsonl beside this file with PyPI
`tokenizers`.

    pip install tokenizers==0.23.*
    tests/text/make_tiny.py

The tokenizer has one of everything that byte-level files use: NFC, the Qwen pattern, a template,
added tokens with each flag, ids inside and beyond the vocabulary. Expected ids and texts are what
the library gives.
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CORPUS = [
    "The quern turns and the grain becomes flour; the flour becomes bread.",
    "A mill is a simple thing: two stones, some water, and patience.",
    "She'll say that it's done, they've milled it, and I'm glad we'd waited.",
    "aaaa aaaaaaaa aaaa 1234 5678 90 == ---- ++ (x) [y] {z}",
    "Le café est fermé; das Mädchen läuft; мельница мелет зерно; 石臼で粉を挽く。",
    "for (int i = 0; i < n; i++)\n    sum += values[i];\n\n\treturn sum;\n",
] * 4

TEXTS = [
    "", " ", "  ", "\n", "a", "The quern turns.", "the flour becomes bread", "  leading", "trailing  ",
    "two  spaces", "tab\tand\nnewline\r\n\r\n  x", "\n\n  \n a", "   \n", " \n ", "x   \n\n   y",
    "It's she'll WE'VE I'M they'RE don'T 'D 'x '", "'\u017f it'\u017f", "1234567890", "a1b2 3c", "½ ² Ⅷ ٣",
    "café cafe\u0301", "s\u0307\u0323 q\u0323\u0307", "한글 \u1112\u1161\u11ab", "Å \u212b \u2126",
    "мельница мелет", "石臼で粉を挽く。", "🦀🦀 👩‍👩‍👧‍👦 🇩🇪", "\U0001f980", "a\u0000b", "\u0000", "\ufffd", "\u200b\u200d\ufeff",
    "\u0085x\u0085", "\u00a0x\u00a0 \u2003y", "\u3000全角", "x\u2028y\u2029z", "-- == != ++ //", "...!!!", "a.b,c;d",
    "(x) [y] {z}", "!\n!\n", "  !\n\n", "a\n!", "_a_b_", "$5.00 €5 £5", "\u0301", "a\u0301\u0301", "\u0300 \u0300",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_end|><|im_end|>", "x<|im_end|>y", "<|im_end", "|im_end|>",
    "<|im_<|im_end|>end|>", "<|endoftext|>", "a <|endoftext|> b", "<left> x", "x  <left>y", "x <left> <left>",
    "<right>  x", "<right>\n\n<right> y", "<both>", " <both> ", "a \t<both>\n b", "<left>  <right>  <both>",
    "word", "a word b", "sword", "words", "wordword", "word_", "word-word", "éword", "wordé", "word1", "1word",
    "\u0301word", "word\u200d", "ⓐword", "(word)", "normal é", "normal e\u0301", "NORMÀL", "NORMA\u0300L x",
    "<tool>", "a<tool>b</tool>c", "<tool><tool>", "longest match longest", "<ab><abc><abcd>", "<abc", "<abcd",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the" * 40, "quern" * 30, "=" * 70, " " * 70, " " * 70 + "x", "\n" * 70, "é" * 60, "ab" * 45, "\t \n" * 30,
    "\U00010d4e\U00010d69", "\u1c89\u1c8a \ua7da", "\U00011de0\U00011de1 5", "\U000105c9", "\U00011938 \U00011935\U00011930",
    "\u088f \U00016ea0", "a\u0897\u0334", "a\u1acf\u0334", "\U0001e5d0 \U000116d0", "࢏ ఽ",
]


def build(vocab_size=420):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    t.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<left>", lstrip=True, special=True),
                          AddedToken("<right>", rstrip=True, special=True),
                          AddedToken("<both>", lstrip=True, rstrip=True, special=True)])
    t.add_tokens([AddedToken("word", single_word=True), AddedToken("normal é"), AddedToken("NORMÀL"),
                  AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=False),
                  AddedToken("<ab>", normalized=False), AddedToken("<abc>", normalized=False),
                  AddedToken("<abc", normalized=False)])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|im_start|> $A <|endoftext|>", special_tokens=[
            ("<|im_start|>", t.token_to_id("<|im_start|>")), ("<|endoftext|>", t.token_to_id("<|endoftext|>"))])])
    return t


def expectation(t, text):
    t.encode_special_tokens = False
    sp, ids = t.encode(text).ids, t.encode(text, add_special_tokens=False).ids
    t.encode_special_tokens = True
    user = t.encode(text, add_special_tokens=False).ids
    t.encode_special_tokens = False
    return {"text": text, "sp": sp, "ids": ids, "user": user,
            "dec": t.decode(ids, skip_special_tokens=False), "dec_skip": t.decode(ids, skip_special_tokens=True)}


LLAMA = PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD, SUFFIX = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (f"{LEAD}{UPPER}*{LOWER}+{SUFFIX}|{LEAD}{UPPER}+{LOWER}*{SUFFIX}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def variants(tokenizer):
    """(change to the pre-tokenizer, changes to the model) one by one."""
    yield byte_level(True, True), {}
    yield byte_level(True, False), {}
    yield sequence(digits(False), byte_level(True, True)), {}
    yield sequence(digits(True), byte_level(False, True)), {}
    yield sequence(split(LLAMA), byte_level()), {}
    yield sequence(split(O200K), byte_level()), {}
    yield sequence(*[split(p) for p in DEEPSEEK], byte_level()), {}
    yield sequence(split(O200K + "|"), byte_level()), {}  # the same without a scanner of its own
    yield sequence(split(r"a*"), byte_level()), {}
    yield sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True, True)), {}
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield sequence(split(r"\s", behavior, invert), byte_level()), {}
            yield sequence(split("a", behavior, invert, "String"), byte_level()), {}
    yield sequence(split(GPT2), byte_level()), {"ignore_merges": True}
    # Steps behind ByteLevel see the characters that stand for bytes.
    yield sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(False, True), digits(False), split("[0-9][0-9][0-9]")), {}
    yield sequence(byte_level(True, False), digits(True), {"type": "Whitespace"}), {}
    yield sequence(byte_level(False, True), {"type": "Punctuation", "behavior": "MergedWithNext"}, split("Ġ[a-z]|\\p{N}", "Removed")), {}
    yield sequence({"type": "Whitespace"}, byte_level()), {}
    yield sequence({"type": "WhitespaceSplit"}, byte_level(True, False)), {}
    # Bytes without a token: dropped, or unk, or one unk for each run of them.
    poor = {(f"<gone {i}>" if set(k) & set("qeÃĠéÅ") else k): i for k, i in tokenizer["model"]["vocab"].items()}
    poor["<|endoftext|>"] = poor.pop("<gone 0>", 0)
    merges = [m for m in tokenizer["model"]["merges"] if not set("".join(m)) & set("qeÃĠéÅ")]
    for more in ({}, {"unk_token": "<|endoftext|>"}, {"unk_token": "<|endoftext|>", "fuse_unk": True}):
        yield byte_level(False, True), {"vocab": poor, "merges": merges, **more}


def write_variants(f):
    for pre_tokenizer, model in variants(json.loads(build(300).to_str())):
        d = json.loads(build(300).to_str())
        d["pre_tokenizer"] = pre_tokenizer
        d["model"].update(model)
        t = Tokenizer.from_str(json.dumps(d))
        cases = [expectation(t, text) for text in TEXTS[1::5]]
        f.write(json.dumps({"tokenizer": d, "cases": cases}) + "\n")


def replace(find, put, kind="String"):
    return {"type": "Replace", "pattern": {kind: find}, "content": put}


def metaspace(scheme="always", split=True, **more):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split, **more}


def strip(start, stop, content=" "):
    return {"type": "Strip", "content": content, "start": start, "stop": stop}


def decoders_of(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
LLAMA2 = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]}
GEMMA = {"normalizer": replace(" ", "▁"), "pre_tokenizer": split(" ", "MergedWithPrevious", False, "String")}
FROM_MARKS = decoders_of(replace("▁", " "), FALLBACK, FUSE, strip(1, 0))


def template(*tokens):
    return {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}} if t == "A" else {"SpecialToken": {"id": t, "type_id": 0}} for t in tokens],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {t: {"id": t, "ids": [1 + (t == "</s>")], "tokens": [t]} for t in tokens if t != "A"}}


def char_variants():
    """Changes to the tokenizer of build_chars, and to its model."""
    llama = {"normalizer": LLAMA2, "decoder": FROM_MARKS, "post_processor": template("<s>", "A")}
    yield llama, {}
    yield {**llama, "post_processor": {"type": "Sequence", "processors": [template("<s>", "A", "</s>", "<s>")]}}, {"ignore_merges": True}
    yield {**GEMMA, "decoder": decoders_of(replace("▁", " "), FALLBACK, FUSE)}, {}
    yield {"pre_tokenizer": metaspace("first", False), "decoder": FROM_MARKS,
           "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": False}}, {}
    yield {"pre_tokenizer": metaspace("first"), "decoder": metaspace("first"), "post_processor": {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}}, {}
    yield {"pre_tokenizer": metaspace(), "decoder": metaspace()}, {"fuse_unk": False}
    yield {"pre_tokenizer": metaspace("never"), "decoder": metaspace("never")}, {"byte_fallback": False}
    yield {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}, "decoder": metaspace()}, {"byte_fallback": False, "fuse_unk": False}
    yield {"pre_tokenizer": sequence({"type": "Punctuation", "behavior": "Isolated"}, metaspace("first")), "decoder": decoders_of(FALLBACK, metaspace())}, {}
    yield {"pre_tokenizer": sequence(split("e", "Removed"), metaspace("first"), digits(True)), "decoder": decoders_of(FUSE, replace("▁", " "), strip(2, 0))}, {"unk_token": None, "byte_fallback": False}
    yield {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, replace(r" {2,}|\n", "▁▁", "Regex"), replace("the", "")]}, "decoder": decoders_of(strip(1, 0, "▁"), FALLBACK)}, {}
    yield {"normalizer": replace("a+", "-", "Regex"), "decoder": decoders_of(FALLBACK, FUSE, replace("le", "LE"), strip(2, 0, "▁"), replace("▁▁", "_"))}, {"gone": "13579BDF"}
    yield {"normalizer": LLAMA2, "decoder": None}, {"gone": "8", "fuse_unk": False}
    yield {"normalizer": LLAMA2, "decoder": decoders_of(FALLBACK, strip(1, 0, "▁"), replace("▁", ""))}, {"byte_fallback": False, "unk_token": None}


def build_chars():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=620, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)], limit_alphabet=60, show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    d = json.loads(t.to_str())
    d["pre_tokenizer"] = d["normalizer"] = None
    d["added_tokens"] = [a for a in d["added_tokens"] if a["id"] < 3]
    d["added_tokens"] += [{"id": len(d["model"]["vocab"]) + i, "content": c, "special": False, "normalized": n, "lstrip": False, "rstrip": False, "single_word": False}
                          for i, (c, n) in enumerate([("<tool>", False), ("word", True), ("é中", True), ("ß", False)])]
    return d


def write_char_variants(f):
    rng = random.Random(1)
    for change, model in char_variants():
        d = build_chars()
        d.update(change)
        gone = model.pop("gone", "")
        d["model"].update(model)
        d["model"]["vocab"] = {(k if not (k.startswith("<0x") and k[4] in gone) else f"<gone {v}>"): v for k, v in d["model"]["vocab"].items()}
        t = Tokenizer.from_str(json.dumps(d))
        cases = [expectation(t, text) for text in TEXTS[::3] + ["▁", " ▁", "xß", "zzzßzzz", "é中", "中 中", "\U0001f980\U0001f980"]]
        ids = [[rng.choice([rng.randrange(259), rng.randrange(620), rng.choice([3 + b for b in "é中🦀".encode()])]) for _ in range(rng.randrange(1, 12))] for _ in range(40)]
        ids += [[3 + b for b in "é中🦀".encode()], [3 + 0xF0, 3 + 0x9F], [3 + 0xE4, 3 + 0xB8, 400]]
        decodes = [{"ids": i, "dec": t.decode(i, skip_special_tokens=False), "dec_skip": t.decode(i, skip_special_tokens=True)} for i in ids]
        f.write(json.dumps({"tokenizer": d, "cases": cases, "decodes": decodes}) + "\n")


def main():
    t = build()
    (HERE / "tiny.tokenizer.json").write_text(t.to_str(pretty=False) + "\n")
    with open(HERE / "tiny.expected.jsonl", "w") as f:
        for text in TEXTS:
            f.write(json.dumps(expectation(t, text)) + "\n")
    with open(HERE / "variants.jsonl", "w") as f:
        write_variants(f)
    with open(HERE / "chars.jsonl", "w") as f:
        write_char_variants(f)


if __name__ == "__main__":
    main()
