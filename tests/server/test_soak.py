#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`quern serve` for a while: right replies, clients that leave, malformed requests and idle connections, all at once.
Memory must stay, no descriptor may be lost, and every reply that comes is the right one.

    tests/server/test_soak.py QUERN [MINUTES]       (a quarter without)

`make soak MINUTES=30` is the long run. QUERN_TEST_DEVICE names another device than the CPU.
"""
import os
import random
import sys
import threading
import time

from served import HOST, Server, check, finish, generated, is_sanitized, read_response, resident

SECONDS = 60 * float(sys.argv[2]) if len(sys.argv) > 2 else 15
DEVICE = os.environ.get("QUERN_TEST_DEVICE")
ON = ("--device", DEVICE, "--batch-invariant") if DEVICE else ()
PROMPTS = [f"Tell me a story about a {a} and a {b}." for a in ("fox", "goose", "mouse") for b in ("lantern", "ladder")]
MALFORMED = [b"\0" * 50, b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n{\"prompt\"",
             b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n",
             b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\n{}}", b"GET /" + b"a" * 40000]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Load:
    def __init__(self, server, want):
        self.server, self.want, self.stop = server, want, threading.Event()
        self.counts = {"good": 0, "left": 0, "malformed": 0, "streamed": 0, "refused": 0}
        self.wrong, self.lock = [], threading.Lock()

    def count(self, name, wrong=None):
        with self.lock:
            self.counts[name] += 1
            if wrong:
                self.wrong.append((name, wrong))

    def good(self, r):
        key = r.choice(list(self.want))
        status, _, got = self.server.chat(key[0], seed=key[1], max_tokens=24)
        text = got["choices"][0]["message"]["content"] if status == 200 else None
        self.count("good", None if text == self.want[key] else (key, status, got))

    def streamed(self, r):
        key = r.choice(list(self.want))
        _, _, events = self.server.stream("/v1/chat/completions", {
            "messages": [{"role": "user", "content": key[0]}], "seed": key[1], "max_tokens": 24})
        text = "".join(c["delta"].get("content", "") for e in events[:-1] for c in e["choices"])
        self.count("streamed", None if text == self.want[key] else (key, events[-2:]))

    def left(self, r):
        c = self.server.start("/v1/chat/completions", {"messages": [{"role": "user", "content": r.choice(PROMPTS) * 8}],
                                                       "max_tokens": 500, "ignore_eos": True, "n": r.choice((1, 3)),
                                                       "stream": r.random() < 0.5})
        time.sleep(r.random() * 0.05)
        c.close()
        self.count("left")

    def malformed(self, r):
        with self.server.connect(timeout=0.05) as c:
            try:
                c.sendall(r.choice(MALFORMED))
                c.recv(1000)
            except OSError:
                pass
        self.count("malformed")

    def refused(self, r):
        status, _, got = self.server.ask("/v1/completions", {"prompt": [r.randrange(2048)] * r.choice((1, 2000)), "n": r.choice((0, 1, 500)),
                                                             "max_tokens": 1, "logit_bias": {str(r.randrange(4096)): 1}})
        self.count("refused", None if status in (200, 400) else (status, got))

    def work(self, seed):
        r = random.Random(seed)
        while not self.stop.is_set():
            r.choices((self.good, self.streamed, self.left, self.malformed, self.refused), (3, 3, 2, 2, 1))[0](r)


def slope(samples):
    """Bytes a second, by least squares."""
    n, t, b = len(samples), sum(x for x, _ in samples), sum(y for _, y in samples)
    over = sum((x - t / n) * (y - b / n) for x, y in samples)
    return over / max(1e-9, sum((x - t / n) ** 2 for x, _ in samples))


def main():
    want = {(p, seed): generated(p, *ON, "--seed", str(seed), "-n", "24")["text"] for p in PROMPTS for seed in range(2)}
    with Server("--parallel", "8", *ON) as s:
        pid, load = s.process.pid, Load(s, want)
        for key in want:
            s.chat(key[0], seed=key[1], max_tokens=24)
        open_before = descriptors(pid)
        threads = [threading.Thread(target=load.work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        samples, begun = [], time.monotonic()
        while time.monotonic() - begun < SECONDS:
            time.sleep(0.25)
            m = s.metrics()
            known = m["plan_bytes"] + (0 if DEVICE else m["kv_cache_bytes"])  # which have limits of their own
            samples.append((time.monotonic() - begun, resident(pid) - known))
        load.stop.set()
        for t in threads:
            t.join()
        idle = s.wait_for(lambda m: not m["requests_processing"] and not m["requests_deferred"] and m["connections"] == 1, 15)
        late = samples[len(samples) // 3:]
        growth = slope(late) * (late[-1][0] - late[0][0])
        print(f"{SECONDS:.0f} s: {load.counts}; {samples[0][1] / 2**20:.1f} MiB at first, {samples[-1][1] / 2**20:.1f} at last, "
              f"grown by {growth / 1024:.0f} KiB in the last two thirds; {open_before} descriptors before, {descriptors(pid)} after")
        check("soak: replies", not load.wrong and min(load.counts.values()) > 0, load.wrong[:2])
        check("soak: nothing is left behind", idle, s.metrics())
        check("soak: descriptors", descriptors(pid) <= open_before + 2, descriptors(pid))
        check("soak: memory", is_sanitized(pid) or growth < max(4 << 20, 0.01 * late[0][1]), growth)


def test_pings():
    """A stream that waits for more than a quarter of a minute says that it is there."""
    long = {"messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 900, "ignore_eos": True}
    with Server("--parallel", "1") as s:
        others = [s.start("/v1/chat/completions", long) for _ in range(200)]
        with s.start("/v1/chat/completions", dict(long, stream=True, max_tokens=2)) as c:
            time.sleep(18)
            for other in others:
                other.close()
            _, _, text = read_response(c)
        check("pings", text.count(b": ping\n\n") == 1 and text.endswith(b"data: [DONE]\n\n"), text)


main()
if SECONDS >= 60:
    test_pings()
finish()
