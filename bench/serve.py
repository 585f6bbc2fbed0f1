#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of a server of OpenAI's completions, Quern's or another's, from outside.

    bench/serve.py URL [--requests 128] [--parallel 16] [--prompt 200] [--tokens 100] [--path /health]
                        [--slow N] [--long N]

Sends so many completions, so many of them at a time, of prompts that share no beginning (random tokens, as ids) and
prints tokens and requests a second, and quantiles of the time to the first token and between tokens. With --path
it asks for that instead; --slow adds connections that send a byte in ten seconds; --long measures how streams go on
while a prompt of N tokens comes in. The requests go out from one thread, through Python's standard library alone.
"""
import argparse
import asyncio
import collections
import json
import random
import time


async def request(host, port, method, path, body, on_line):
    reader, writer = await asyncio.open_connection(host, port)
    data = json.dumps(body).encode() if body else b""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    status = int((await reader.readline()).split()[1])
    while line := await reader.readline():
        on_line(line)
    writer.close()
    return status


def quantiles(name, values):
    v = sorted(values)
    at = lambda q: v[min(len(v) - 1, int(q * len(v)))] * 1000  # noqa: E731
    print(f"{name}: p50 {at(0.5):.1f} ms, p90 {at(0.9):.1f}, p99 {at(0.99):.1f}, most {v[-1] * 1000:.1f}")


def middle(values):
    return sorted(values)[len(values) // 2]


async def slow(host, port):
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET /health HTTP/1.1\r\nHost: {host}\r\nX: ".encode())
            while not writer.is_closing():
                await asyncio.sleep(10 * random.random() * 2)
                writer.write(b"a")
                await writer.drain()
        except OSError:
            pass


def completion(r, a, prompt, tokens):
    return {"prompt": [r.randrange(100, a.vocab) for _ in range(prompt)], "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "stream": True}


async def long_prompt(a):
    """Gaps of `parallel` - 1 streams before, and while, one long prompt is read."""
    host, port = a.url.split("//")[1].rstrip("/").rsplit(":", 1)
    r, streams = random.Random(1), [[] for _ in range(a.parallel - 1)]

    async def stream(times, prompt, tokens):
        await request(host, port, "POST", "/v1/completions", completion(r, a, prompt, tokens),
                      lambda line: line.startswith(b"data: {") and times.append(time.perf_counter()))

    running = [asyncio.ensure_future(stream(t, a.prompt, a.long)) for t in streams]
    while min(map(len, streams)) < 20:
        await asyncio.sleep(0.1)
    begun, long = time.perf_counter(), []
    await stream(long, a.long, 1)
    for t in running:
        t.cancel()
    before, during = [], []  # gaps of what a stream writes; in a script of several tokens a character every other has none
    for t in streams:
        gaps = [(x, y - x) for x, y in zip(t[10:], t[11:])]
        median = middle([g for x, g in gaps if x < begun])
        before.append(median)
        during += [g / median for x, g in gaps if begun <= x < long[0]]
    print(f"{len(streams)} streams, a gap of {middle(before) * 1000:.1f} ms; for {long[0] - begun:.1f} s a prompt of {a.long} tokens: "
          f"median {middle(during):.2f} of a stream's own, most {max(during):.2f}, {max(during) / middle(during):.2f} of that median")


async def main(a):
    host, port = a.url.split("//")[1].rstrip("/").rsplit(":", 1)
    r, first, between, whole, tokens, bad = random.Random(1), [], [], [], [0], []
    left = [a.requests]

    async def one():
        body = completion(r, a, a.prompt, a.tokens)
        begun, times = time.perf_counter(), []

        def on_line(line):
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())

        status = await request(host, port, "GET" if a.path else "POST", a.path or "/v1/completions", None if a.path else body, on_line)
        whole.append(time.perf_counter() - begun)
        if status != 200:
            bad.append(status)
        if times:
            first.append(times[0] - begun)
            between.extend(y - x for x, y in zip(times, times[1:]))
            tokens[0] += a.tokens

    async def worker():
        while left[0] > 0:
            left[0] -= 1
            await one()

    others = [asyncio.ensure_future(slow(host, port)) for _ in range(a.slow)]
    await asyncio.sleep(5 if others else 0)
    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(a.parallel)))
    seconds = time.perf_counter() - begun
    print(f"{a.requests} requests, {a.parallel} at a time, {seconds:.2f} s: {a.requests / seconds:.1f} requests/s"
          + (f", {tokens[0] / seconds:.0f} tokens/s" if first else "") + (f"; not 200: {collections.Counter(bad)}" if bad else ""))
    quantiles("a request", whole)
    if first:
        quantiles("first token", first)
        quantiles("between tokens", between)


parser = argparse.ArgumentParser()
parser.add_argument("url")
for name, value in (("requests", 128), ("parallel", 16), ("prompt", 200), ("tokens", 100), ("vocab", 2000), ("slow", 0),
                    ("long", 0)):
    parser.add_argument(f"--{name}", type=int, default=value)
parser.add_argument("--path")
arguments = parser.parse_args()
asyncio.run(long_prompt(arguments) if arguments.long else main(arguments))
