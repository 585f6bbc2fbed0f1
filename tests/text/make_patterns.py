#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes patterns.jsonl beside this file: patterns, texts, and how the Hugging Face library splits them.

    pip install tokenizers==0.23.*
    tests/text/make_patterns.py

First those that one regular expression engine reads one way and another otherwise, then others at random. A line has
the pattern and either "error" or, for each text, its pieces with the matches kept and with them left out.
"""
import json
import pathlib
import random

from tokenizers import Regex, pre_tokenizers

WRITTEN = r"""
[a-z&&[^d]]+
[a-z&&[^aeiou]&&[^x-z]]+|[&&a]|[a&&]|[^&&]
[[a-c][e-g]]+
[^[a-c]d]
a{1,3}+
a{2}?
a{2}+b
a{,2}
a{,n}
a{2,}?b
a{n
^a
a$
(?m:a.b)
a.b
(?m)^.
\h+
\H
[[:punct:]]+
[[:alpha:]]+|[[:^alpha:][:digit:]]
[[:space:]]|[[:upper:]]
\w+
\bs
\B
(?i:ss|fi)
(?i:'s|'k|é)+
(?i)[k-s]+
a(?i)b|c
\R
\N+|\O
a\Kb
\Ga
(?<=a|bc)d
(?<=a+)d|(?<!a+)b
(?<n>a)(b)?\k<n>
(a|b)\1
(?>a+)b?|(?>a|ab)c
a++a|a*+b|a?+a
(?=.*1)[a-z]
(?!ab)a|(?<!b)a
\p{L}+|\p{^L}|\p{Lu}
\P{Han}|\p{Han}
\p{Hiragana}+|\p{Latin}+
\p{Letter}\p{Number}|\p{punctuation}
\p{Alpha}|\p{Punct}|\p{Emoji}
[\p{L}\p{N}]+|[^\s\p{L}\p{N}]
\s+(?!\S)|\s+
[]a]
[a\]b-]
[a-c-e]+
[\w-]+
\x61|\x{e9}|\u0062|\u65e5
(?x) a b # c
(?#c)a
a**|b+*|(?:a+)?
a|b|
(?:a|b)*?c
()a|(?:)b
\Q.\E
[\n-\r]|\t
[^\n]+
$
\b
(?:)
[a-c&&b-d]|[\s&&[^\n]]
(a)(?:b\1)+
(?:(?=a)a|b){2,3}
]|}|{
(
)
a)
[a
*a
a|*b
[b-a]
[a-\d]
\p{Nothing}
(?s)a
\1
\k<x>
(?<!(a))
""".strip("\n").split("\n")
LETTERS = list("abcASsk1- \n") + ["é", "e\u0301", "日", "ß", "\\.", "\\n", "\\x61", "'", "_", "&"]
CLASSES = ["\\w", "\\W", "\\d", "\\D", "\\s", "\\S", "\\h", "\\p{L}", "\\p{Lu}", "\\p{N}", "\\P{L}", "\\p{Han}", ".", "\\N", "\\R", "\\p{P}", "\\p{M}",
           "[a-c]", "[^a]", "[\\w&&[^a-c]]", "[^\\s[:punct:]]", "[[:alpha:]1]", "[é-ö]", "[a\\-c]"]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,2}", "{,2}", "{1,}", "{1,2}?", "{1,3}+", "{2}?"]
ANCHORS = ["^", "$", "\\b", "\\B", "\\A", "\\z", "\\Z", "\\G"]
TEXT = list("aabbcAsSk1- \n.'&_²$½") + ["é", "e\u0301", "日", "ß", "\u212a", "\u017f", "\r\n", "\u1e9e", "\u00a0"]


def pattern(draw, depth):
    kind = draw.random()
    if depth == 0 or kind < .25:
        return draw.choice(LETTERS)
    if kind < .42:
        return draw.choice(CLASSES)
    if kind < .47:
        return draw.choice(ANCHORS)
    if kind < .67:
        return pattern(draw, depth - 1) + draw.choice(REPEATS)
    if kind < .82:
        return pattern(draw, depth - 1) + pattern(draw, depth - 1)
    if kind < .89:
        return "(?:%s|%s)" % (pattern(draw, depth - 1), pattern(draw, depth - 1))
    return draw.choice(["(", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?m:"]) + pattern(draw, depth - 1) + ")"


def row(source, texts):
    try:
        regex = Regex(source)
    except Exception as e:
        return {"pattern": source, "error": str(e)}
    splits = [pre_tokenizers.Split(regex, behavior) for behavior in ("isolated", "removed")]
    return {"pattern": source, "texts": [[t] + [[p for p, _ in s.pre_tokenize_str(t)] for s in splits] for t in texts]}


def main():
    draw = random.Random(21)
    rows = []
    fixed = ["abcd", "aaaaaaab", "a\na\n", "a.b$+c 1é", "e\u0301a s\u0301", "ß ss ſs ﬁ fi K \u212a", "ab aab bcd ad bd cd", "a{,n} a{n ]}{ .Q QxE", "漢字かなa日b é",
             "a1- \t\r\n\n  x", "don't IT'S", "abab aa bb ab"]
    for source in WRITTEN:
        rows.append(row(source, fixed))
    while len(rows) < 500:
        source = pattern(draw, draw.randrange(2, 5))
        rows.append(row(source, ["".join(draw.choice(TEXT) for _ in range(draw.randrange(4, 12))) for _ in range(3)]))
    with open(pathlib.Path(__file__).with_name("patterns.jsonl"), "w") as out:
        for r in rows:
            out.write(json.dumps(r) + "\n")


main()
