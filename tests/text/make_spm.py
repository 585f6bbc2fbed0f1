#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes spm.jsonl beside this file with PyPI `sentencepiece`.

    pip install sentencepiece==0.2.*
    tests/text/make_spm.py

Each line is a model (base64) and its cases: the ids that the library gives and the text it makes
of them, without the tokens that Quern takes for special ones (unk; control symbols give nothing).
Models differ in the normalizer, byte fallback, dummy prefix, spaces and symbols.
"""
import base64
import io
import json
import pathlib
import tempfile

import sentencepiece as spm
from make_tiny import CORPUS, TEXTS

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
    spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=out, model_type="bpe", vocab_size=480 if options["byte_fallback"] else 200,
                                   character_coverage=0.98, user_defined_symbols=["<sep>", "fox", "日本"], control_symbols=["<ctl>"],
                                   hard_vocab_limit=False, minloglevel=2, **options)
    return out.getvalue()


def case(sp, text):
    ids = sp.encode(text)
    return {"text": text, "ids": ids, "dec_skip": sp.decode([i for i in ids if i != sp.unk_id()])}


def main():
    with open(HERE / "spm.jsonl", "w") as f:
        for i, options in enumerate(MODELS):
            model = train(**options)
            sp = spm.SentencePieceProcessor(model_proto=model)
            texts = [t for t in (TEXTS[i % 3::3] + MORE) if "\u0000" not in t]
            f.write(json.dumps({"model": base64.b64encode(model).decode(), "bos": sp.bos_id(), "cases": [case(sp, t) for t in texts]}) + "\n")


if __name__ == "__main__":
    main()
