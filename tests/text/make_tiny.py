#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny.tokenizer.json, tiny.expected.jsonl and variants.jsonl beside this file with PyPI
`tokenizers`.

    pip install tokenizers==0.23.*
    tests/text/make_tiny.py

The tokenizer has one of everything that byte-level files use: NFC, the Qwen pattern, a template,
added tokens with each flag, ids inside and beyond the vocabulary. Expected ids and texts are what
the library gives.
"""
import json
import pathlib

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
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KANA = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s+"]


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
    yield sequence(split(CASED), byte_level()), {}
    yield sequence(*[split(p) for p in KANA], byte_level()), {}
    yield sequence(split(r"a*"), byte_level()), {}
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield sequence(split(r"\s", behavior, invert), byte_level()), {}
            yield sequence(split("a", behavior, invert, "String"), byte_level()), {}
    yield sequence(split(GPT2), byte_level()), {"ignore_merges": True}
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


def main():
    t = build()
    (HERE / "tiny.tokenizer.json").write_text(t.to_str(pretty=False) + "\n")
    with open(HERE / "tiny.expected.jsonl", "w") as f:
        for text in TEXTS:
            f.write(json.dumps(expectation(t, text)) + "\n")
    with open(HERE / "variants.jsonl", "w") as f:
        write_variants(f)


main()
