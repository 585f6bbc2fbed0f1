#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern eval and quern bench from outside.

    tests/cli/test_measure.py QUERN

What eval says of a text is checked against the log probabilities that generate --json gives; of bench the form, not
the speed. Ends like cmocka, so that scripts/run-tests counts the checks.
"""
import csv
import io
import json
import os
import tempfile

from helper import SOURCE, check, finish, refused, run, skipped

TEXT = os.path.join(SOURCE, "ARCHITECTURE.md")
CONFIG = os.path.join(SOURCE, "models/demo/config.json")
QUICK = ("--no-ceilings", "-r", "1", "-p", "8", "-n", "2", "-t", "1")
REAL = os.environ.get("QUERN_TEST_MODELS") or os.path.expanduser("~/.cache/quern-test-models")


def measured(*args, stdin=b""):
    status, out, err = run("eval", "--json", *args, stdin=stdin)
    check(f"eval {' '.join(args)}"[:60], status == 0 and not err, err)
    return json.loads(out) if status == 0 else {}


def test_eval():
    e = measured("-f", TEXT, "-c", "64", "--chunks", "3")
    check("three chunks", e["chunks"] == 3 and e["tokens"] == 3 * 31 and e["context"] == 64, e)
    check("perplexity is that of the loss", 1 < e["perplexity"] < 1e9, e)
    with open(TEXT, "rb") as f:
        check("standard input", measured("-f", "-", "-c", "64", "--chunks", "3", stdin=f.read())["loss"] == e["loss"])
    for args in (("-t", "1"), ("-t", "2")):
        check(f"the same with {args}", measured("-f", TEXT, "-c", "64", "--chunks", "3", *args)["loss"] == e["loss"])
    strided = measured("-f", TEXT, "-c", "64", "--stride", "16", "--chunks", "3")
    check("stride", strided["tokens"] == 48 and strided["stride"] == 16, strided)
    same = measured("-f", TEXT, "-c", "64", "--chunks", "3", "--against-products", "auto")
    check("against itself", same["kl"] == 0 and same["same_top"] == 1 and same["against_perplexity"] == e["perplexity"],
          same)
    other = measured("-f", TEXT, "-c", "64", "--chunks", "3", "--against-products", "f32")
    check("against f32 products", 0 < other["kl"] < 0.1 and other["kl_max"] >= other["kl_99"] >= other["kl_median"] > 0,
          other)
    back = measured("-f", TEXT, "-c", "64", "--chunks", "3", "--products", "f32", "--against-products", "auto")
    check("the other way round", back["perplexity"] == other["against_perplexity"]
          and back["against_perplexity"] == other["perplexity"], back)
    status, out, err = run("eval", "-f", TEXT, "-c", "64", "--chunks", "2", "--against-products", "f32")
    check("as text", status == 0 and out.startswith(b"scored      62 tokens in 2 chunks of 64") and b"KL " in out
          and b"same top" in out and not err, (out, err))


def test_eval_refuses():
    refused("no text", run("eval"), 2, "-f")
    refused("stride beyond the chunk", run("eval", "-f", TEXT, "-c", "64", "--stride", "65"), 2, "--stride", "65")
    refused("a short text", run("eval", "-f", "-", stdin=b"hello"), 1, "fewer than one chunk", "512")
    refused("no such text", run("eval", "-f", "/nonexistent"), 1, "/nonexistent")
    refused("no such second model", run("eval", "-f", TEXT, "--against", "/nonexistent"), 1, "/nonexistent")
    refused("products", run("eval", "-f", TEXT, "--against-products", "int4"), 1, "--products", "int4")
    refused("invalid UTF-8", run("eval", "-f", "-", stdin=b"hi \xff"), 1, "UTF-8")


def test_bench():
    status, out, err = run("bench", *QUICK, "-d", "0,8", "-b", "1,2")
    rows = [line.split("|")[4].strip() for line in out.decode().splitlines()[2:]]
    check("rows", status == 0 and rows == ["pp8", "pp8 x 2", "pp8 @ d8", "pp8 x 2 @ d8", "tg2", "tg2 x 2", "tg2 @ d8",
                                           "tg2 x 2 @ d8"], (rows, err))
    status, out, err = run("bench", *QUICK, "-o", "csv", "-t", "1,2")
    rows = list(csv.DictReader(io.StringIO(out.decode())))
    check("csv", status == 0 and [r["threads"] for r in rows] == ["1", "1", "2", "2"] and rows[0]["n_prompt"] == "8"
          and all(float(r["tok_s_min"]) <= float(r["tok_s"]) <= float(r["tok_s_max"]) for r in rows), (out, err))
    status, out, err = run("bench", "-p", "0", "-n", "2", "-t", "1", "-r", "2", "-o", "json")
    doc = json.loads(out) if status == 0 else {"results": [], "ceilings": []}
    check("json", [r["test"] for r in doc["results"]] == ["tg2"] and len(doc["ceilings"]) == 1
          and doc["ceilings"][0]["read_gb_s"] > 0 and doc["ceilings"][0]["f32_gop_s"] > 0, (out, err))
    test_shares()
    bytes_of = {}
    for kind in ("f32", "q8_0", "q4_0", "affine4-g64-bf16"):
        status, out, err = run("bench", "--shape", CONFIG, "--type", kind, "--head-type", kind, *QUICK, "-o", "json")
        check(f"random weights in {kind}", status == 0, err)
        bytes_of[kind] = json.loads(out)["results"][0]["weight_bytes"] if status == 0 else 0
    check("their bytes", 0 < bytes_of["q4_0"] < 0.6 * bytes_of["q8_0"] < 0.2 * bytes_of["f32"], bytes_of)


def share_of(kind, *quick):
    """Whether rows have their share of what was found before them; ceilings at the end are the best of before and after."""
    status, out, err = run(*quick, "--shape", CONFIG, "--type", kind, "-o", "json")
    if status:
        return False
    doc = json.loads(out)
    c, rows = doc["ceilings"][0], doc["results"]
    fastest = max(c[t + "_gop_s"] for t in ("f32", "bf16") + (("int8",) if kind == "q8_0" else ()))
    shares = [r["of_ceiling"] / (rate / most) for r, rate, most in
              zip(rows, (rows[0]["gop_s"], rows[1]["gb_s"]), (fastest, c["read_gb_s"]))]
    return len(rows) == 2 and all(0.99 < x < 1.3 for x in shares)


def test_shares():
    quick = ("bench", "-p", "64", "-n", "2", "-t", "1", "-r", "2")
    for kind in ("f32", "q8_0"):
        check(f"shares of a ceiling, {kind}", any(share_of(kind, *quick) for _ in range(4)))
    status, out, err = run(*quick)
    lines = out.decode().splitlines()
    check("as a table", status == 0 and lines[0].endswith("| of the ceiling |") and all(x.endswith(" % |") for x in lines[2:4])
          and lines[5].startswith("at best, 1 thread: reads "), out)
    status, out, err = run(*quick, "--no-ceilings")
    check("none is measured", status == 0 and all(x.endswith("/s | |") for x in out.decode().splitlines()[2:4]), out)
    status, out, err = run(*quick, "--no-ceilings", "-o", "csv")
    check("and 0 as CSV", [r["of_ceiling"] for r in csv.DictReader(io.StringIO(out.decode()))] == ["0.0000"] * 2, out)


def rows_of(*args):
    status, out, err = run("bench", "-t", "1", "--no-ceilings", *args, "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(out.decode())))
    check(f"bench {' '.join(args)}"[:60], status == 0 and not err and rows, (out, err))
    return rows or [{}]


def test_bench_requests():
    rows = rows_of("--shape", CONFIG, "--requests", "5", "-np", "2", "-p", "8,70", "-n", "1,6", "-r", "3")
    check("each combination", [(r["n_prompt"], r["n_gen"], r["requests"], r["parallel"]) for r in rows]
          == [("8", "1", "5", "2"), ("8", "6", "5", "2"), ("70", "1", "5", "2"), ("70", "6", "5", "2")], rows)
    for r in rows:
        v = {k: float(r[k]) for k in r if "_ms" in k or "tok_s" in k}
        check("in order", 0 < v["tok_s_min"] <= v["tok_s"] <= v["tok_s_max"] and 0 < v["first_ms"] <= v["first_ms_p99"]
              and v["between_ms"] <= v["between_ms_p99"] and (v["between_ms"] > 0) == (r["n_gen"] != "1"), r)
    # two of five run at once, so the last begin behind the first
    check("they wait for each other", float(rows[1]["first_ms_p99"]) > float(rows[1]["first_ms"]), rows[1])
    slowest = 5 * 6 / float(rows[1]["tok_s_min"]) * 1e3
    check("within the slowest run", float(rows[1]["first_ms_p99"]) < 1.001 * slowest, (slowest, rows[1]))
    together = rows_of("--requests", "3", "-p", "4", "-n", "2", "-r", "1", "--cache-type-k", "bf16")
    check("all side by side", together[0]["parallel"] == "3" and together[0]["model"] == "demo", together)
    status, out, err = run("bench", "--requests", "2", "-p", "4", "-n", "2", "-r", "1", "-t", "1", "-o", "json")
    doc = json.loads(out) if status == 0 else {"results": [{}], "ceilings": []}
    check("as JSON", doc["results"][0].get("test") == "2 x pp4+tg2" and len(doc["ceilings"]) == 1, (out, err))


def test_bench_load():
    with tempfile.TemporaryDirectory() as tmp:
        os.environ["TMPDIR"] = tmp
        sizes = {}
        for kind in ("bf16", "f16", "f32"):
            r = rows_of("--shape", CONFIG, "--type", kind, "--load", "-r", "2")[0]
            sizes[kind] = int(r["file_bytes"])
            rate = float(r["gb_s"])  # of four decimals
            check(f"{kind}: the rate", abs(sizes[kind] / float(r["load_s"]) / 1e9 - rate) < 5.1e-5 + 1e-6 * rate, r)
        check("their files", sizes["f32"] == 2 * sizes["bf16"] == 2 * sizes["f16"] > 0, sizes)
        status, out, err = run("bench", "--load", "-r", "1", "-t", "1", "-o", "json")
        doc = json.loads(out) if status == 0 else {"results": [{}]}
        check("the model's own files, and copies", doc["results"][0].get("copy_gb_s", 0) > 0, (out, err))
        refused("load of blocks", run("bench", "--shape", CONFIG, "--load", "--type", "q4_0", *QUICK[:3]), 1, "q4_0",
                "quern convert")
        os.environ["TMPDIR"] = os.path.join(tmp, "none")
        refused("load into nothing", run("bench", "--shape", CONFIG, "--load", *QUICK[:3]), 1, "quern-bench-")
        os.environ["TMPDIR"] = tmp
        check("nothing stays", not os.listdir(tmp), os.listdir(tmp))
        del os.environ["TMPDIR"]


def test_bench_refuses():
    for args in (("--load", "--requests", "2"), ("--load", "-n", "4"), ("--requests", "2", "-d", "4"), ("-np", "2"),
                 ("--requests", "2", "-b", "4"), ("--requests", "2", "-n", "0")):
        refused(f"bench {' '.join(args)}", run("bench", *args), 2, "--")
    for option, value in (("-p", "x"), ("-p", "1,"), ("-n", "-1"), ("-t", "0"), ("-b", "0"), ("-d", ""),
                          ("-p", ",".join(["1"] * 17))):
        refused(f"bench {option} {value}", run("bench", option, value), 2, "--")
    refused("output", run("bench", "-o", "xml"), 2, "--output", "xml")
    refused("type", run("bench", "--shape", CONFIG, "--type", "q5", *QUICK), 1, "q5")
    refused("type without a shape", run("bench", "--type", "q4_0"), 2, "--type", "--shape")
    refused("model and shape", run("bench", "-m", "x", "--shape", "y"), 2, "--shape")
    refused("a shape that is none", run("bench", "--shape", TEXT, *QUICK), 1, "JSON")
    refused("blocks that do not divide", run("bench", "--shape", os.path.join(SOURCE, "tests/golden/kl/config.json"),
                                               "--head-type", "q4_k", *QUICK), 1, "q4_k", "128")


def test_real_models():
    for name, most in (("SmolLM2-135M-Instruct.Q4_1.gguf", 0.006), ("gemma-3-270m-q4_k_m.gguf", 0.004)):
        path = os.path.join(REAL, name)
        if not os.path.exists(path):
            skipped(path + " is not there (scripts/fetch-models)")
            continue
        refused(f"{name}: another vocabulary", run("eval", "-f", TEXT, "-c", "64", "--against", path), 1, "vocabular")
        e = measured("-m", path, "-f", TEXT, "-c", "128", "--chunks", "2", "--against-products", "f32")
        check(f"{name}: int8 products are near", 0 < e["kl"] < most and e["same_top"] > 0.9, e)


if __name__ == "__main__":
    test_eval()
    test_eval_refuses()
    test_bench()
    test_bench_requests()
    test_bench_load()
    test_bench_refuses()
    test_real_models()
    finish()
