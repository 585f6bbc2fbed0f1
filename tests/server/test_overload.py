#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`quern serve` with twenty times the requests that it can answer: each gets the right reply or a 429 that says when to
come again, memory stays, nothing is lost, and when the crowd has gone the next one is answered at once.

    tests/server/test_overload.py QUERN [SECONDS]       (5 without)
"""
import json
import selectors
import statistics
import sys
import time

from served import HOST, Server, check, finish, generated, is_sanitized, resident

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 5
TIMES, TOKENS, MOST = 20, 40, 2000
PROMPTS = [f"Tell me a story about a {a}." for a in ("fox", "goose", "mouse", "lantern", "ladder")]


class Client:
    """One request on a connection of its own, sent at once."""

    def __init__(self, server, number):
        self.key = (PROMPTS[number % len(PROMPTS)], number % 2)
        body = json.dumps({"messages": [{"role": "user", "content": self.key[0]}], "seed": self.key[1],
                           "max_tokens": TOKENS}).encode()
        self.socket, self.data, self.begun = server.connect(), b"", time.monotonic()
        self.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\n" + HOST +
                            b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.socket.setblocking(False)

    def read(self):
        """Whether the connection has ended."""
        try:
            more = self.socket.recv(65536)
        except BlockingIOError:
            return False
        except ConnectionError:
            more = b""
        self.data += more
        return not more

    def result(self, want):
        """"good" or "busy"; else what was wrong."""
        head, _, body = self.data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 200 "):
            text = json.loads(body)["choices"][0]["message"]["content"]
            return "good" if text == want[self.key] else f"{self.key}: {text}"
        retry = b"\r\nretry-after: " in head.lower()
        return "busy" if head.startswith(b"HTTP/1.1 429 ") and retry and b'"error"' in body else str(self.data[:300])


class Crowd:
    def __init__(self, server, want):
        self.server, self.want, self.selector = server, want, selectors.DefaultSelector()
        self.sent, self.results, self.refused_after = 0, {}, []

    def send(self):
        client = Client(self.server, self.sent)
        self.selector.register(client.socket, selectors.EVENT_READ, client)
        self.sent += 1

    def read(self, seconds):
        for key, _ in self.selector.select(max(0, seconds)):
            client = key.data
            if client.read():
                result = client.result(self.want)
                self.results[result] = self.results.get(result, 0) + 1
                if result == "busy":
                    self.refused_after.append(time.monotonic() - client.begun)
                self.leave(client)

    def leave(self, client):
        self.selector.unregister(client.socket)
        client.socket.close()

    def waiting(self):
        return [key.data for key in list(self.selector.get_map().values())]


def main():
    want = {(p, seed): generated(p, "--seed", str(seed), "-n", str(TOKENS))["text"] for p in PROMPTS for seed in range(2)}
    with Server("--parallel", "4") as s:
        begun, n = time.monotonic(), 0
        while time.monotonic() - begun < 1:
            for _ in range(4):
                status, _, got = s.chat(PROMPTS[0], seed=0, max_tokens=TOKENS)
                assert status == 200, got
                n += 1
        rate = TIMES * n / (time.monotonic() - begun)
        crowd, samples = Crowd(s, want), []
        begun, raised = time.monotonic(), 0
        while (now := time.monotonic() - begun) < SECONDS:
            if crowd.sent < now * rate:
                crowd.send()
            crowd.read(0 if crowd.sent < now * rate else crowd.sent / rate - now)
            if "busy" not in crowd.results and now > raised + 0.5:  # it has got faster than when it was timed
                rate, raised = min(2 * rate, MOST), now
            if now > len(samples) / 4:
                m = s.metrics()
                samples.append(resident(s.process.pid) - m["plan_bytes"] - m["kv_cache_bytes"])
        sent_rate, waiting = crowd.sent / SECONDS, crowd.waiting()
        for client in waiting[1::2]:  # half of those that wait give up
            crowd.leave(client)
        left = len(waiting[1::2])
        first = time.monotonic()
        before = sum(crowd.results.values())
        while sum(crowd.results.values()) == before and time.monotonic() - first < 20:
            crowd.read(0.1)
        first = time.monotonic() - first
        while crowd.selector.get_map() and time.monotonic() - begun < SECONDS + 120:
            crowd.read(0.1)
        one = time.monotonic()
        status, _, got = s.chat(PROMPTS[1], seed=1, max_tokens=TOKENS)
        one = time.monotonic() - one
        sanitized = is_sanitized(s.process.pid)
        idle = s.wait_for(lambda m: not m["requests_processing"] and not m["requests_deferred"] and m["connections"] == 1, 15)
    late = samples[len(samples) // 3:]
    refused = statistics.median(crowd.refused_after or [0])
    print(f"{SECONDS:.0f} s: {rate:.0f} requests a second wanted, {sent_rate:.0f} sent, of {rate / TIMES:.0f}; {crowd.results}, {left} left; "
          f"a refusal took {refused * 1000:.1f} ms, the first answer after it {first:.2f} s, a new one {one:.2f} s; "
          f"{late[0] / 2**20:.1f} MiB, at last {late[-1] / 2**20:.1f}")
    check("overload: every reply is right, or a 429 with Retry-After", set(crowd.results) == {"good", "busy"},
          [r for r in crowd.results if r not in ("good", "busy")][:2])
    check("overload: nothing is lost", sum(crowd.results.values()) + left == crowd.sent, (crowd.sent, crowd.results, left))
    check("overload: it answers at once afterwards", first < 1 and one < 1 and status == 200, (first, one, got))
    check("overload: nothing is left behind", idle, None)
    check("overload: memory", sanitized or max(late) - late[0] < max(8 << 20, 0.02 * late[0]), (late[0], max(late)))


main()
finish()
