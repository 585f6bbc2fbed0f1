#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`quern serve` and clients that are wrong, slow, hostile or gone: each is refused with what is wrong, none stops it.

    tests/server/test_protocol.py QUERN
"""
import json
import os
import signal
import socket
import tempfile
import threading
import time

from served import HOST, Server, check, events_of, finish, make_adapter, read_response, refused, run

FOX = "Tell me a story about a fox and a lantern."
BODY = b'{"prompt":"x","max_tokens":2}'
FOREVER = {"messages": [{"role": "user", "content": FOX}], "ignore_eos": True, "max_tokens": 900, "stream": True}


def post(fields, body=b"", path=b"/v1/completions", host=HOST):
    return b"POST " + path + b" HTTP/1.1\r\n" + host + fields + b"\r\n" + body


def get(path, fields=b"", host=HOST):
    return b"GET " + path + b" HTTP/1.1\r\n" + host + fields + b"\r\n"


def chunked(*chunks):
    return b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)


LENGTH, TE, EVIL = b"Content-Length: %d\r\n" % len(BODY), b"Transfer-Encoding: chunked\r\n", b"Origin: http://evil.example\r\n"
RAW = [  # name, bytes, status; 0: closed without a word
    ("plain", get(b"/health"), 200),
    ("HTTP/1.0", b"GET /health HTTP/1.0\r\n" + HOST + b"\r\n", 200),
    ("spaces around values", get(b"/health", b"X:a\r\nY:   b  \r\nZ:\r\n"), 200),
    ("a header of 15 KiB", get(b"/health", b"X: " + b"a" * 15000 + b"\r\n"), 200),
    ("a header of 17 KiB", get(b"/health", b"X: " + b"a" * 17000 + b"\r\n"), 431),
    ("a header of 1 MB", get(b"/health", b"X: " + b"a" * 1000000 + b"\r\n"), 431),
    ("a path of 30 KB", get(b"/" + b"a" * 30000), 414),
    ("200 fields", get(b"/health", b"".join(b"X%d: a\r\n" % i for i in range(200))), 431),
    ("length and chunks", post(LENGTH + TE, chunked(BODY, b"")), 400),
    ("two lengths", post(LENGTH + LENGTH, BODY), 400),
    ("a list of lengths", post(b"Content-Length: 5, 5\r\n", b"aaaaa"), 400),
    ("a negative length", post(b"Content-Length: -5\r\n", b"aaaaa"), 400),
    ("a length of 2^64 + 1", post(b"Content-Length: 18446744073709551617\r\n"), 413),
    ("chunk -2", post(TE, b"-2\r\naa\r\n0\r\n\r\n"), 400),
    ("a chunk of 2^65", post(TE, b"20000000000000000\r\naa\r\n0\r\n\r\n"), 413),
    ("a chunk that is longer than it says", post(TE, b"2\r\naab\r\n0\r\n\r\n"), 400),
    ("chunks", post(TE, chunked(BODY[:9], BODY[9:], b"")), 200),
    ("gzip, chunked", post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501),
    ("chunks, with a space before the colon", post(LENGTH + b"Transfer-Encoding : chunked\r\n", BODY), 400),
    ("chunks in HTTP/1.0", post(TE, chunked(BODY, b"")).replace(b"1.1", b"1.0"), 400),
    ("a body of 9 MB", post(b"Content-Length: 9000000\r\n", b"a" * 9000000), 413),
    ("a body of 9 MB, expected", post(b"Content-Length: 9000000\r\nExpect: 100-continue\r\n"), 413),
    ("chunks without an end", post(TE, chunked(*[b"a" * 65536] * 200)), 413),
    ("an expected body", post(LENGTH + b"Expect: 100-continue\r\n", BODY), 200),
    ("no Host", b"GET /health HTTP/1.1\r\n\r\n", 400),
    ("two Hosts", get(b"/health", HOST), 400),
    ("another Host", get(b"/health", host=b"Host: evil.example\r\n"), 403),
    ("another Host, with a port", get(b"/health", host=b"Host: evil.example:80\r\n"), 403),
    ("localhost.evil.example", get(b"/health", host=b"Host: localhost.evil.example\r\n"), 403),
    ("localhost:80:80", get(b"/health", host=b"Host: localhost:80:80\r\n"), 403),
    ("an address", get(b"/health", host=b"Host: 192.168.1.7:8080\r\n"), 200),
    ("an IPv6 address", get(b"/health", host=b"Host: [::1]:8080\r\n"), 200),
    ("a foreign page", get(b"/health", EVIL), 403),
    ("a foreign page asks for leave", get(b"/v1/models", EVIL).replace(b"GET", b"OPTIONS"), 403),
    ("a foreign page that sends no JSON", post(EVIL + b"Content-Type: text/plain\r\n" + LENGTH, BODY), 403),
    ("a page without an origin", get(b"/health", b"Origin: null\r\n"), 403),
    ("http://localhost.evil.example", get(b"/health", b"Origin: http://localhost.evil.example\r\n"), 403),
    ("a page at an address", get(b"/health", b"Origin: http://10.0.0.1\r\n"), 403),
    ("a page of this machine", get(b"/health", b"Origin: http://localhost:3000\r\n"), 200),
    ("a page of 127.0.0.1", get(b"/health", b"Origin: https://127.0.0.1\r\n"), 200),
    ("%2e%2e", get(b"/x/%2e%2e/health"), 404),
    ("..", get(b"/x/../health"), 404),
    ("%00", get(b"/health%00"), 404),
    ("%0d%0a", get(b"/health%0d%0aX:%20y"), 404),
    ("a whole address", get(b"http://evil.example/health"), 404),
    ("a query", get(b"/health?a=b"), 400),
    ("NUL in the path", get(b"/health\0x"), 400),
    ("NUL in a value", get(b"/health", host=b"Host: localhost\0.evil.example\r\n"), 400),
    ("NUL in a name", get(b"/health", b"X\0Y: a\r\n"), 400),
    ("CR in a value", get(b"/health", b"X: a\rY: b\r\n"), 400),
    ("LF alone", b"GET /health HTTP/1.1\nHost: localhost\n\n", 400),
    ("a value in two lines", get(b"/health", b"X: a\r\n b\r\n"), 400),
    ("a space in the path", get(b"/hea lth"), 0),
    ("HTTP/0.9", b"GET /health\r\n\r\n", 400),
    ("HTTP/2.0", get(b"/health").replace(b"1.1", b"2.0"), 505),
    ("HTTP/1.9", get(b"/health").replace(b"1.1", b"1.9"), 505),
    ("nothing there", get(b"/v1/embeddings"), 404),
    ("DELETE", get(b"/health").replace(b"GET", b"DELETE"), 405),
    ("GET of a chat", get(b"/v1/chat/completions"), 405),
    ("HEAD", get(b"/health").replace(b"GET", b"HEAD"), 200),
]

HUGE = "9223372036854775808"
FIELDS = [  # (chat, fields, what the message has)
    (True, '"n":1000000', ["n", "1..128", "1000000"]), (True, '"n":0', ["n", "1..128"]),
    (True, '"top_k":-5', ["top_k", "-5"]), (True, '"temperature":NaN', ["JSON"]),
    (True, '"temperature":"hot"', ["temperature", "hot"]), (True, '"temperature":-1', ["temperature"]),
    (True, '"temperature":1e400', ["temperature", "too large"]), (True, f'"max_tokens":{HUGE}', ["max_tokens"]),
    (True, '"max_tokens":0', ["max_tokens"]), (True, '"max_tokens":1.5', ["max_tokens", "1.5"]),
    (True, '"max_tokens":1,"max_completion_tokens":2', ["max_completion_tokens", "differ"]),
    (True, '"top_p":1.01', ["top_p"]), (True, '"min_p":-0.1', ["min_p"]), (True, '"seed":1e17', ["seed"]),
    (True, '"repeat_penalty":0', ["repeat_penalty"]), (True, '"presence_penalty":1e9', ["presence_penalty"]),
    (True, '"logit_bias":{"2048":1}', ["logit_bias.2048", "0..2047"]), (True, '"logit_bias":{"-1":1}', ["0..2047"]),
    (True, '"logit_bias":{"5x":1}', ["0..2047"]), (True, '"logit_bias":{"1":1e7}', ["logit_bias.1", "1000000"]),
    (True, '"logit_bias":{"1":1,"1":2}', ["twice"]), (True, '"logit_bias":[1]', ["logit_bias"]),
    (True, '"stop":""', ["stop"]), (True, '"stop":[1]', ["stop[0]"]), (True, '"stop":"' + "a" * 2000 + '"', ["stop", "1024"]),
    (True, '"stop":' + json.dumps(["a"] * 65), ["stop[64]", "64"]), (True, '"stop":"a\\u0000b"', ["NUL"]),
    (True, '"top_logprobs":3', ["top_logprobs", "logprobs"]), (True, '"logprobs":true,"top_logprobs":21', ["0..20"]),
    (True, '"logprobs":"all"', ["logprobs", "0..1000"]), (True, '"samplers":"magic"', ["samplers", "magic", "top_k"]), (True, '"stream":1', ["stream"]),
    (True, '"stream_options":{"include_usage":true}', ["stream_options"]),
    (True, '"stream":true,"stream_options":{"x":1}', ["stream_options.x", "include_usage"]),
    (True, '"grammar":"' + "(" * 60000 + '"', ["grammar: not supported", "temperature"]),
    (True, '"tools":[]', ["tools: not supported"]), (True, '"response_format":{"type":"json_object"}', ["response_format"]),
    (True, '"prompt":"x"', ["prompt: not supported"]), (True, '"frobnicate":null', ["frobnicate: not supported"]),
    (True, '"chat_template_kwargs":{"messages":[]}', ["chat_template_kwargs.messages"]),
    (True, '"chat_template_kwargs":7', ["chat_template_kwargs"]), (True, '"model":7', ["model"]),
    (True, '"messages":[{"role":"user","content":"x"}]', ["twice"]),
    (False, '"echo":true', ["echo"]), (False, '"suffix":"x"', ["suffix: not supported"]), (False, '"best_of":2', ["best_of"]),
    (False, '"logprobs":21', ["0..20"]), (False, '"messages":[]', ["messages: not supported", "prompt"]),
]
PROMPTS = ['5', '{}', 'true', '[5000]', '[-1]', '[1.5]', '[[5000]]', '["a",[1]' + ',[1]' * 130 + ']', '[["a"]]', '""', '[]', '[[]]',
           '[1,"a"]', 'null']
MESSAGES = ['[]', '5', '[5]', '[{}]', '[{"role":"user"}]', '[{"role":"user","content":null}]', '[{"role":"root","content":"a"}]',
            '[{"role":"user","content":5}]', '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]',
            '[{"role":"user","content":[{"type":"text"}]}]', '[{"role":"user","content":"a","tool_calls":[]}]', 'null']


def wrong_json(s, name, path, text, parts):
    status, _, got = s.ask(path, text if isinstance(text, bytes) else text.encode())
    message = got["error"]["message"] if isinstance(got, dict) else got
    check(name, status == 400 and got["error"]["code"] == 400 and got["error"]["type"] == "invalid_request_error"
          and all(p in message for p in parts), (status, got))


def test_raw(s):
    for name, data, status in RAW:
        got, fields, body = s.raw(data)
        check(f"raw: {name}", got == status, (got, fields, body[:200]))
        ours = fields.get("content-type") == "application/json" and "HEAD" not in name
        check(f"raw: {name}, in words", not ours or got == 200 or json.loads(body)["error"]["code"] == got, body)
    status, fields, _ = s.raw(get(b"/v1/models", b"Origin: http://localhost:3000\r\n").replace(b"GET", b"OPTIONS"))
    check("a page of this machine asks for leave", status == 204 and fields["access-control-allow-origin"] == "http://localhost:3000"
          and "Authorization" in fields["access-control-allow-headers"], fields)
    status, fields, _ = s.raw(get(b"/health").replace(b"GET", b"PUT"))
    check("what may be asked", fields.get("allow") == "GET, HEAD, OPTIONS", fields)
    with s.connect() as c:  # several requests, at once, on one connection
        c.sendall(get(b"/health") + post(LENGTH, BODY) + get(b"/nothing"))
        data = b""
        while data.count(b"HTTP/1.1 ") < 3:
            data += c.recv(65536)
        check("three at once", [int(p[:3]) for p in data.split(b"HTTP/1.1 ")[1:]] == [200, 200, 404], data)


def test_fields(s):
    for chat, fields, parts in FIELDS:
        rest = '"messages":[{"role":"user","content":"a"}]' if chat else '"prompt":"a"'
        wrong_json(s, f"field {fields[:40]}", "/v1/chat/completions" if chat else "/v1/completions",
                   "{" + rest + "," + fields + "}", parts)
    for prompt in PROMPTS:
        wrong_json(s, f"prompt {prompt[:30]}", "/v1/completions", '{"prompt":' + prompt + "}", ["prompt"])
    for messages in MESSAGES:
        wrong_json(s, f"messages {messages[:60]}", "/v1/chat/completions", '{"messages":' + messages + "}", ["messages"])
    for name, text in (("depth", "[" * 10000), ("depth, closed", "[" * 10000 + "]" * 10000), ("nothing", ""), ("half", '{"prompt":"a'),
                       ("not UTF-8", b'{"prompt":"\xff"}'), ("an array", "[1]"), ("two", "{}{}"), ("lone surrogate", '{"prompt":"\\ud800"}'),
                       ("many values", '{"prompt":[' + "1," * 600000 + "1]}")):
        wrong_json(s, f"JSON: {name}", "/v1/completions", text, [])
    status, _, got = s.complete("Tell me. " * 2000, max_tokens=5)
    n = len(run("tokenize", "-p", "Tell me. " * 2000, "--ids")[1].split())
    check("a prompt beyond the context", status == 400 and str(n) in got["error"]["message"] and "1024" in got["error"]["message"], got)
    status, _, got = s.complete([1] * 1024, max_tokens=5)
    check("a prompt that fills the context", status == 200 and got["choices"][0]["finish_reason"] == "length"
          and got["usage"]["completion_tokens"] <= 1, got)
    check("null is absent", s.chat("a", max_tokens=1, stop=None, temperature=None, n=None, response_format=None)[0] == 200)
    check("what changes nothing is taken", s.chat("a", max_tokens=1, user="me", response_format={"type": "text"})[0] == 200)


def leave(s, path, body):
    """(it ran, nothing runs any more, tokens made) of a client that leaves once its reply has begun, or its prompt."""
    before = s.metrics()["tokens_predicted_total"]
    c = s.start(path, body)
    runs = "prompt" in body or s.wait_for(lambda m: m["requests_processing"] and m["tokens_predicted_total"] > before + 5, 2)
    c.close()
    idle = s.wait_for(lambda m: not m["requests_processing"] and not m["requests_deferred"], 5)
    return runs, idle, (idle or s.metrics())["tokens_predicted_total"] - before


def test_leaving(s):
    """Clients that leave while they wait, in the prompt and in the reply: nothing of theirs goes on."""
    for name, body, path in (("a stream", FOREVER, "/v1/chat/completions"), ("a whole reply", dict(FOREVER, stream=False), "/v1/chat/completions"),
                             ("several replies", dict(FOREVER, n=4), "/v1/chat/completions"),
                             ("the prompt", {"prompt": [5] * 1000, "max_tokens": 20, "n": 8}, "/v1/completions")):
        for _ in range(5):  # a reply takes a third of a second: on a busy machine it may end before we leave
            runs, idle, made = leave(s, path, body)
            early = runs and made < (160 if name == "the prompt" else 850)
            if early:
                break
        check(f"leaving {name}: nothing runs any more", idle, s.metrics())
        check(f"leaving {name}: it ran, and not to its end", early, (runs, made))
    check("leaving: it is in the log", any(" 499 " in line for line in s.log), s.log[-5:])


def test_slow_reader(s):
    body = dict(FOREVER, logprobs=True, top_logprobs=20)
    before = s.metrics()["tokens_predicted_total"]
    with s.start("/v1/chat/completions", body, receive_buffer=4096) as c:
        idle = s.wait_for(lambda m: m["tokens_predicted_total"] > before + 20 and not m["requests_processing"])
        made = s.metrics()["tokens_predicted_total"] - before
        check("slow reader: it is given up", idle and 20 < made < 890, made)
        status, _, text = read_response(c)
        check("slow reader: what it gets breaks off", status == 200 and b"[DONE]" not in text, text[-200:])


def test_full(_):
    """More than can wait: 429 with Retry-After, and those that wait are answered."""
    with Server("--parallel", "1") as s:
        clients = [s.start("/v1/chat/completions", dict(FOREVER, max_tokens=40, stream=False)) for _ in range(340)]
        full = s.wait_for(lambda m: m.get('requests_total{status="429"}', 0) >= 30)
        check("full: some are refused", full, s.metrics())
        refusals = [c for c in clients if socket_has_news(c)]
        answers = [read_response(c) for c in refusals]
        late = [a for a in answers if a[0] == 429]
        check("full: 429 with Retry-After", len(late) >= 30 and all(a[1]["retry-after"] == "1" and json.loads(a[2])["error"]["type"]
              == "rate_limit_error" for a in late) and {a[0] for a in answers} <= {200, 429}, [a[0] for a in answers])
        for c in clients[20:]:
            c.close()
        kept = [read_response(c) for c in clients[:20] if c not in refusals]
        check("full: those that wait are answered", all(a[0] == 200 for a in kept), [a[0] for a in kept])
        begun = time.monotonic()
        check("full: afterwards all is well", s.chat("a", max_tokens=1)[0] == 200 and time.monotonic() - begun < 1)


def socket_has_news(c):
    c.setblocking(False)
    try:
        return bool(c.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        c.settimeout(60)


def half_a_request(s):
    """A connection whose request the server has begun: it waits for the body."""
    c = s.connect()
    c.sendall(post(LENGTH + b"Expect: 100-continue\r\n"))
    check("half a request", c.recv(4096).startswith(b"HTTP/1.1 100 "))
    return c


def test_drain(_):
    """What was begun ends, nothing else begins, and a connection that stays says so."""
    s = Server()
    kept = s.connect()
    kept.sendall(get(b"/health"))
    check("drain: before", read_response(kept)[0] == 200)
    half = half_a_request(s)  # however fast the stream ends, this one has begun and waits for us
    c = s.start("/v1/chat/completions", dict(FOREVER, max_tokens=400))
    s.wait_for(lambda m: m["requests_processing"])
    s.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 10
    while time.monotonic() < end:  # until it listens no more
        try:
            s.connect().close()
        except ConnectionError:
            break
    kept.sendall(get(b"/health") + post(LENGTH, BODY))
    status, fields, _ = read_response(kept)
    check("drain: health", status == 503 and fields.get("connection") == "close", (status, fields))
    half.sendall(BODY)
    status, fields, _ = read_response(half)
    check("drain: the other half", status == 503 and fields.get("connection") == "close", (status, fields))
    status, _, text = read_response(c)
    events = events_of(text.decode())
    check("drain: the stream ends", status == 200 and events[-1] == "[DONE]" and len(events) > 200, text[-100:])
    check("drain: status 0", s.process.wait(45) == 0, s.log[-3:])
    hurried = Server()
    half = half_a_request(hurried)
    c = hurried.start("/v1/chat/completions", FOREVER)
    hurried.wait_for(lambda m: m["requests_processing"])
    hurried.process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    hurried.process.send_signal(signal.SIGTERM)
    check("drain: a second signal ends it at once", hurried.process.wait(45) == -signal.SIGTERM, hurried.log[-3:])


def test_keys(_):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "keys")
        with open(path, "w") as f:
            f.write("file-key-1\n\nfile-key-2\r\n")
        with Server("--api-key", "secret-key", "--api-key-file", path, env={"QUERN_API_KEY": "env-key"}) as s:
            for name, field, want in (
                    ("none", "", 401), ("wrong", "Authorization: Bearer wrong\r\n", 401), ("empty", "Authorization: Bearer \r\n", 401),
                    ("a prefix", "Authorization: Bearer secret-ke\r\n", 401), ("longer", "Authorization: Bearer secret-key2\r\n", 401),
                    ("very long", f"Authorization: Bearer {'a' * 5000}\r\n", 401), ("basic", "Authorization: Basic secret-key\r\n", 401),
                    ("other case", "Authorization: Bearer Secret-Key\r\n", 401),
                    ("right", "Authorization: Bearer secret-key\r\n", 200), ("bearer", "authorization: bearer secret-key\r\n", 200),
                    ("x-api-key", "X-Api-Key: secret-key\r\n", 200), ("of the file", "Authorization: Bearer file-key-2\r\n", 200),
                    ("of the environment", "Authorization: Bearer env-key\r\n", 200)):
                for route in ("/v1/models", "/metrics"):
                    status, fields, got = s.ask(route, headers=field)
                    check(f"key {name} for {route}", status == want, (status, got))
                    check(f"key {name}, asked for", want == 200 or fields["www-authenticate"] == "Bearer", fields)
                status, _, got = s.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=field)
                check(f"key {name} for completions", status == want, (status, got))
            check("no key for /health", s.ask("/health")[0] == 200)
            check("no key for what is not there", s.ask("/nothing")[0] == 401)
            check("no key in the log", not any("key" in line.split("metrics")[0] for line in s.log if " at http" not in line), s.log[-3:])
        refused("an empty key file", run("serve", "--api-key-file", os.devnull), 1, "/dev/null")
        with open(path, "w") as f:
            f.write("\n\n")
        refused("a key file without keys", run("serve", "--api-key-file", path), 1, path, "no key")
    refused("a key with a space", run("serve", "--api-key", "a b"), 1, "key 1")
    refused("beyond this machine without a key", run("serve", "--host", "0.0.0.0"), 1, "0.0.0.0", "--api-key-file", "--insecure")
    refused("beyond this machine without a key, IPv6", run("serve", "--host", "::"), 1, "--insecure")
    with Server("--host", "0.0.0.0", "--insecure", "--allow-host", "box.example", "--allow-origin", "https://page.example") as s:
        check("--insecure", s.ask("/health")[0] == 200)
        check("--allow-host", s.ask("/health", headers="Host: box.example:80\r\n")[0] == 200
              and s.ask("/health", headers="Host: fox.example\r\n")[0] == 403)
        status, fields, _ = s.ask("/health", headers="Origin: https://page.example\r\n")
        check("--allow-origin", status == 200 and fields["access-control-allow-origin"] == "https://page.example"
              and s.ask("/health", headers="Origin: http://page.example\r\n")[0] == 403, fields)
        refused("a port that is taken", run("serve", "--port", str(s.port), "--host", "127.0.0.1"), 1, str(s.port), "in use; --port names another")
    refused("a model that is none", run("serve", "--port", "0", "-m", "/nothing"), 1, "/nothing")
    refused("a name that is too long", run("serve", "--alias", "a" * 300), 1, "--alias", "255")
    refused("a host that is none", run("serve", "--host", "no.such.host.invalid"), 1, "no.such.host.invalid")
    refused("a context beyond the model's", run("serve", "--port", "0", "-c", "5000"), 1, "5000", "1024")


def test_log(s):
    s.chat("SECRETPROMPT", max_tokens=2)
    s.raw(get(b"/%1b[31m\x1b[31m\xffx"))
    s.ask("/health")
    time.sleep(0.1)
    check("log: no prompt", not any("SECRETPROMPT" in line for line in s.log))
    check("log: no control characters", all(line.rstrip("\n").isprintable() and line.isascii() for line in s.log), s.log[-2:])
    check("log: paths", any(" /%1b[31m%1B[31m%FFx 404 " in line for line in s.log), s.log[-3:])
    check("log: counts", any("/v1/chat/completions 200 prompt " in line and "+ 2 tokens" in line for line in s.log), s.log[-3:])


def slow_clients(s, n):
    """Connections that send a byte now and then, as long as they are there; when each was closed."""
    begun, closed = time.monotonic(), {}
    clients = {}
    for i in range(n):
        c = s.connect()
        start = [b"", b"GET /health HTTP/1.1\r\nX: ", post(b"Content-Length: 100\r\n", b"{")[:-1]][i % 3]
        if start:
            c.sendall(start)
        clients[i] = c
    stop = threading.Event()

    def trickle():
        while clients and not stop.wait(0.5):
            for i, c in list(clients.items()):
                try:
                    if i % 3 == 1:
                        c.send(b"a")
                    c.settimeout(0.0)
                    if not c.recv(100):
                        raise ConnectionError
                except BlockingIOError:
                    pass
                except OSError:
                    closed[i] = time.monotonic() - begun
                    clients.pop(i).close()

    thread = threading.Thread(target=trickle)
    thread.start()
    return closed, stop, thread


def test_guesses(demo):
    """Requests that guess say what they say without."""
    asked = [dict(content="Tell me a story, story, story", max_tokens=20, temperature=t, seed=5) for t in (0, 1)]
    said = []
    for args in ((), ("--prompt-lookup-num-tokens", "4"), ("--draft-model", demo)):
        with Server(*args) as s:
            said.append([s.chat(**a)[2]["choices"][0]["message"]["content"] for a in asked])
            m = s.metrics()
            draft = "--draft-model" in args
            check(f"{args}: right guesses", m["right_guesses_total"] > 10 if draft else not args or
                  m["guessed_tokens_total"] >= m["right_guesses_total"], m)
    check("guesses", said[0] == said[1] == said[2] and all(said[0]), said)


def test_adapters():
    """Adapters are models of their own, and run beside each other; the model's name is without one of several."""
    story = dict(content="Tell me a story about a fox.", max_tokens=16, temperature=0)
    said = lambda reply: (reply[2]["model"], reply[2]["choices"][0]["message"]["content"])
    with tempfile.TemporaryDirectory() as d:
        a, b = os.path.join(d, "a"), os.path.join(d, "b")
        make_adapter(a, 0.4)
        make_adapter(b, -0.5)
        with Server("--alias", "base") as s:
            plain = said(s.chat(**story))
        with Server("--alias", "base", "--adapter", a) as s:
            only = said(s.chat(**story))
            check("one adapter is the default", only[0] == "base" and only[1] != plain[1], only)
        with Server("--alias", "base", "--adapter", a, "--adapter", b) as s:
            names = [m["id"] for m in s.ask("/v1/models")[2]["data"]]
            check("adapters: models", names == ["base", "a", "b"], names)
            replies = {}
            ask = lambda name: replies.update({name: said(s.chat(**story, model=name))})
            threads = [threading.Thread(target=ask, args=(name,)) for name in names]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            check("adapters: side by side", replies["base"] == plain and replies["a"] == ("a", only[1])
                  and replies["b"][0] == "b" and replies["b"][1] != plain[1], replies)
            status, _, out = s.chat(**story, model="c")
            check("adapters: another name", status == 404 and '"base", "a", "b"' in out["error"]["message"], out)


with Server() as server:
    closed, stop, thread = slow_clients(server, 60)
    for test in (test_raw, test_fields, test_log, test_leaving, test_slow_reader):
        test(server)
    test_full(server)
    test_drain(server)
    test_keys(server)
    test_adapters()
    test_guesses(os.path.join(os.path.dirname(__file__), "../../models/demo"))
    end = time.monotonic() + 16
    while len(closed) < 40 and time.monotonic() < end:
        time.sleep(0.1)
    stop.set()
    thread.join()
    headers = [t for i, t in closed.items() if i % 3 != 2]
    check("slow: no header within 10 s is closed", len(headers) == 40 and all(9 < t < 16 for t in headers), closed)
finish()
