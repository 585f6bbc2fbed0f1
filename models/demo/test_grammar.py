# SPDX-License-Identifier: Apache-2.0
"""Tests of the grammar and the judge, planted faults among them. Standard library only.

    python3 models/demo/test_grammar.py
"""
import json
import math
import os
import random
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import grammar  # noqa: E402


def judge(items, *options):
    text = "".join(json.dumps({"prompt": p, "reply": r}) + "\n" for p, r in items)
    return subprocess.run([sys.executable, os.path.join(HERE, "judge.py"), *options], input=text,
                          capture_output=True, text=True).returncode


class GrammarTest(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(7)

    def test_every_story_has_one_derivation(self):
        for _ in range(300):
            prompt, reply = grammar.write_pair(self.rng)
            nouns = grammar.nouns_of(prompt)
            self.assertEqual(len(grammar.parse_story(reply, nouns)), 1, reply)
            for noun in nouns:
                self.assertIn(noun, reply)

    def test_other_requests_parse_too(self):
        for nouns in ([], ["fox"], ["fox", "frimble"], ["oolab", "frimble"]):
            for _ in range(20):
                told = nouns + self.rng.sample(["drum", "wizard"], 2 - len(nouns))
                reply = grammar.write_story(told, self.rng)
                prompt = grammar.write_prompt(self.rng, nouns)
                self.assertIsNotNone(grammar.logprob(prompt, reply), (prompt, reply))

    def test_exact_entropy_is_the_mean_of_minus_logprob(self):
        for nouns in (["fox", "owl"], ["fox", "lantern"], ["pie", "train"], ["dorf", "blick"]):
            prompt = f"Tell me a story about {nouns[0]} and {nouns[1]}."
            values = [-grammar.logprob(prompt, grammar.write_story(nouns, self.rng))
                      for _ in range(1500)]
            mean = sum(values) / len(values)
            deviation = math.sqrt(sum((v - mean) ** 2 for v in values)) / len(values)
            self.assertLess(abs(mean - grammar.entropy(prompt)), 5 * deviation, nouns)
            self.assertLess(deviation, 0.15)

    def test_faults_do_not_parse(self):
        prompt = "Tell me a story about a fox and a lantern."
        for _ in range(50):
            reply = grammar.write_story(["fox", "lantern"], self.rng)
            for broken in (reply[:-1], reply + " ", reply.replace("fox", "owl"),
                           reply.replace("lantern", "drum", 1), reply.replace(" the ", " a ") + ".",
                           reply[0].lower() + reply[1:]):
                self.assertIsNone(grammar.logprob(prompt, broken), broken)
            self.assertIsNone(grammar.logprob("Tell me a story about a fox and a drum.", reply))

    def test_proof_sees_planted_ambiguities(self):
        self.assertEqual(grammar.check_unambiguous(), [])
        story = grammar.STORY["TT"]
        ending, moral = story[1][0][3][1][0]
        faults = [
            ("two empty options", moral[1], []),
            ("an option that runs into the next sentence", ending[1],
             ending[1][3] + [("s", " For "), ("w", ["luck likes good company"]), ("s", ".")]),
        ]
        for what, options, fault in faults:
            options.append(fault)
            try:
                self.assertTrue(grammar.check_unambiguous(), what)
            finally:
                options.pop()
        story[1].append(story[1][0])  # the whole grammar twice
        try:
            self.assertTrue(grammar.check_unambiguous())
        finally:
            story[1].pop()

    def test_judge_holds_its_bar(self):
        good = [grammar.write_pair(self.rng) for _ in range(20)]
        spoiled = [(p, r.replace(" a", " the", 1) + "!") for p, r in good[:2]] + good[2:]
        self.assertEqual(judge(good, "--bar", "1"), 0)
        self.assertEqual(judge(spoiled, "--bar", "0.9"), 0)
        self.assertEqual(judge(spoiled, "--bar", "0.91"), 1)
        self.assertEqual(judge([]), 1)


if __name__ == "__main__":
    unittest.main()
