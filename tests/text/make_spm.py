#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes spm.jsonl and unigram.jsonl beside this file with PyPI `sentencepiece` and `tokenizers`.

    pip install sentencepiece==0.2.* protobuf tokenizers==0.23.*
    tests/text/make_spm.py

Each line is a model (base64) and its cases: the ids that the library gives and the text it makes
of them, without the tokens that Quern takes for special ones (unk; control symbols give nothing).
Models differ in the normalizer, byte fallback, dummy prefix, spaces and symbols; the last ones are
Unigram. "apart" is a text with a control token in it: the ids with a space put before each part, and
("new", a configuration's legacy: false) before the first alone. unigram.jsonl has tokenizer.json files of
Unigram models, with normalizers that use SentencePiece's table.
"""
import base64
import io
import json
import pathlib
import tempfile

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2
from make_tiny import CORPUS, TEXTS, expectation, metaspace, sequence, template
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
MORE = ["ﬁn ﬂour Ⅷ ㎏ ＡＢＣ", "a\u00a0b\u3000c", "e\u0301 Å Å", "ｶﾞｷﾞ", "½ ²", "a\u200bb\u00adc", "<sep>", "a<sep>b <sep> c", "the mill<sep><sep>",
        "<ctl>", "x <ctl> y", "</s><s><unk>", "▁", "▁▁a", " ▁ a", "a▁b", "  two  spaces  ", "fox  fox", "foxfox fox ", " fox", "\tx\t", "𝒜𝓑", "xxx xx x", "axb",
        "mill mill  mill", "aa" * 60, "<0x41>", "日本 日本", "ﷺ", "\u1e9b\u0323", "ﬀ" * 30]
MODELS = [
    dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
    dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=True),
    dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False),
    dict(byte_fallback=False, normalization_rule_name="identity", remove_extra_whitespaces=True, add_dummy_prefix=False),
    dict(byte_fallback=False, normalization_rule_tsv=True),
    dict(byte_fallback=True, normalization_rule_tsv=True, remove_extra_whitespaces=False),
    dict(byte_fallback=True, normalization_rule_tsv=True, split_by_whitespace=False, add_dummy_prefix=False),
    dict(byte_fallback=False, normalization_rule_name="identity", treat_whitespace_as_suffix=True),
    dict(byte_fallback=True, normalization_rule_name="identity", split_by_unicode_script=False, split_digits=True,
         allow_whitespace_only_pieces=True, remove_extra_whitespaces=False, bos_id=-1),
    dict(model_type="unigram", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
    dict(model_type="unigram", byte_fallback=False, normalization_rule_tsv=True),
    dict(model_type="unigram", byte_fallback=False, normalization_rule_name="identity", split_by_whitespace=False),
]


# A table as small as nmt_nfkc's is large: longer matches first, white space, deletion, expansion.
RULES = {"ﬁ": "fi", "ﬀ": "ff", "Ａ": "A", "Ｂ": "B", "e\u0301": "é", "A\u030a": "Å", "\u212b": "Å", "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ",
         "\u200b": "", "\u00ad": "", "Ⅷ": "VIII", "㎏": "kg", "½": "1/2", "ｶ": "カ", "ｶﾞ": "ガ", "ﷺ": " صلى الله ", "𝒜": "A", "x": "y", "xx": "z"}


def train(**options):
    out = io.BytesIO()
    rules = tempfile.NamedTemporaryFile("w", suffix=".tsv")
    if options.get("normalization_rule_tsv"):
        rules.write("".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in RULES.items()))
        rules.flush()
        options["normalization_rule_tsv"] = rules.name
    options.setdefault("model_type", "bpe")
    spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=out, vocab_size=480 if options["byte_fallback"] else 200,
                                   character_coverage=0.98, user_defined_symbols=["<sep>", "fox", "日本"], control_symbols=["<ctl>"],
                                   hard_vocab_limit=False, minloglevel=2, **options)
    return out.getvalue()


def case(sp, text):
    ids = sp.encode(text)
    return {"text": text, "ids": ids, "dec_skip": sp.decode([i for i in ids if i != sp.unk_id()])}


def apart(model, sp):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.add_dummy_prefix = False
    bare = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
    head, tail = "the mill", "stones fox"
    return {"text": head + "</s>" + tail, "old": sp.encode(head) + [sp.eos_id()] + sp.encode(tail),
            "new": sp.encode(head) + [sp.eos_id()] + bare.encode(tail)}


def unigram_variants():
    """Changes to a tokenizer.json, and to its model."""
    table = sentencepiece_model_pb2.ModelProto.FromString(train(byte_fallback=False, normalization_rule_tsv=True)).normalizer_spec.precompiled_charsmap
    precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    t5 = {"normalizer": precompiled, "pre_tokenizer": sequence({"type": "WhitespaceSplit"}, metaspace()), "decoder": metaspace(),
          "post_processor": template("A", "</s>")}
    yield t5, {}
    yield {**t5, "normalizer": {"type": "Sequence", "normalizers": [precompiled, {"type": "Strip", "strip_left": False, "strip_right": True},
                                                                     {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]}, "pre_tokenizer": metaspace()}, {}
    yield {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}, "pre_tokenizer": metaspace("first", False), "decoder": metaspace("first")}, {"byte_fallback": True}
    yield {"pre_tokenizer": None, "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace("never"), {"type": "Fuse"}]}}, {"byte_fallback": True}


def as_user(case):
    """Without what a user's text gives where it spells a special token: the library makes it one."""
    return {k: v for k, v in case.items() if k != "user" or "</s>" not in case["text"]}


def write_unigram(f):
    model = sentencepiece_model_pb2.ModelProto.FromString(train(model_type="unigram", byte_fallback=True, normalization_rule_name="identity"))
    vocab = [[p.piece, p.score] for p in model.pieces]
    graphemes = ["e\u0301\u0301x", "\r\n\t\u0301", "a\u200d\u0301 ｶﾞﾞ", "\u1100\u1161\u11a8 \uac00\u11a8\u0301", "\u0600a x\u0903", "ﬁ\u0301 x\u0308x", "xx x\u00ad\u0301x \x00x"]
    for change, more in unigram_variants():
        d = {"version": "1.0", "added_tokens": [{"id": i, "content": c, "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
                                                for i, c in enumerate(["<unk>", "<s>", "</s>"])],
             "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
             "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False, **more}, **change}
        t = Tokenizer.from_str(json.dumps(d))
        f.write(json.dumps({"tokenizer": d, "cases": [as_user(expectation(t, text)) for text in TEXTS[::4] + MORE + graphemes]}) + "\n")


def main():
    with open(HERE / "unigram.jsonl", "w") as f:
        write_unigram(f)
    with open(HERE / "spm.jsonl", "w") as f:
        for i, options in enumerate(MODELS):
            model = train(**options)
            sp = spm.SentencePieceProcessor(model_proto=model)
            texts = [t for t in (TEXTS[i % 3::3] + MORE) if "\u0000" not in t]
            f.write(json.dumps({"model": base64.b64encode(model).decode(), "bos": sp.bos_id(), "apart": apart(model, sp), "cases": [case(sp, t) for t in texts]}) + "\n")


if __name__ == "__main__":
    main()
