# SPDX-License-Identifier: Apache-2.0
"""Judge stories: JSON lines {"prompt": .., "reply": ..} on stdin.

A story passes if the grammar can write it as an answer to its prompt, which includes that it uses
both things asked for. Prints the rate and the failures; exit status 1 under --bar or on no input.

    python3 models/demo/judge.py --bar 0.95 < stories.jsonl
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grammar  # noqa: E402


def verdict(prompt, reply):
    """'' if the story passes, else what is wrong with it."""
    nouns = grammar.nouns_of(prompt)
    if nouns is None:
        return "the prompt asks for no story"
    missing = [n for n in nouns if n not in grammar.re.findall(r"[a-z-]+", reply.lower())]
    if missing:
        return "does not use " + " or ".join(missing)
    if grammar.logprob(prompt, reply) is None:
        return "does not parse"
    return ""


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--bar", type=float, default=0.95, help="least share of stories that pass")
    ap.add_argument("--show", type=int, default=10, help="how many failures to print")
    args = ap.parse_args()
    total, failures, nats = 0, [], 0.0
    for line in sys.stdin:
        if not line.strip():
            continue
        item = json.loads(line)
        total += 1
        wrong = verdict(item["prompt"], item["reply"])
        if wrong:
            failures.append((wrong, item))
        else:
            nats -= grammar.logprob(item["prompt"], item["reply"])
    passed = total - len(failures)
    rate = passed / total if total else 0.0
    print(f"{passed} of {total} stories parse and use what was asked ({100 * rate:.1f} %)")
    if passed:
        print(f"mean -log p of these under the grammar: {nats / passed:.2f} nats")
    for wrong, item in failures[:args.show]:
        print(f"  {wrong}: {json.dumps(item, ensure_ascii=False)}")
    return 0 if total and rate >= args.bar else 1


if __name__ == "__main__":
    raise SystemExit(main())
