# SPDX-License-Identifier: Apache-2.0
"""What the tests of `quern serve` share: a server on a port of its own, and clients made of sockets alone."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from helper import QUERN, SOURCE, check, finish, make_adapter, refused, run, skipped  # noqa: E402,F401

HOST = b"Host: localhost\r\n"


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_sanitized(pid):
    """Sanitizers keep what was freed for a while: resident memory says nothing."""
    with open(f"/proc/{pid}/maps") as f:
        return re.search(r"lib[at]san", f.read()) is not None


class Server:
    """`quern serve`, which is ready; its log is in .log. Ends with SIGTERM at the end of a `with`."""

    def __init__(self, *args, env=None):
        self.process = subprocess.Popen([QUERN, "serve", "--port", "0", *args], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                        env=dict(os.environ, **(env or {})))
        self.log, self.url = [], None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        if not self.ready.wait(60) or not self.url:
            raise RuntimeError(f"quern serve {args}: {''.join(self.log)}")
        self.port = int(self.url.rsplit(":", 1)[1])

    def read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if not self.url and (found := re.match(r"quern: .+ at (http://\S+)$", line)):
                self.url = found.group(1)
                self.ready.set()
        self.ready.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        status = self.stop()
        out = self.process.stdout.read()
        check("the server ends with 0 and printed nothing", status == 0 and not out, (status, out, self.log[-5:]))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(45)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.reader.join(5)

    def connect(self, receive_buffer=0, timeout=60):
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(timeout)
        s.connect(("127.0.0.1", self.port))
        return s

    def raw(self, data, timeout=20):
        """(status, headers, body) of the first response to these bytes; status 0: closed without one."""
        with self.connect(timeout=timeout) as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # refused while it was being sent: what was said is there to be read
            return read_response(s, head=data.startswith(b"HEAD"))

    def ask(self, path, body=None, headers="", method=None, timeout=120):
        """(status, headers, JSON or text)"""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        head = f"{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}Content-Length: {len(data)}\r\n"
        host = b"" if "Host:" in headers else HOST
        status, fields, text = self.raw(head.encode() + host + b"\r\n" + data, timeout)
        kind = fields.get("content-type", "")
        return status, fields, json.loads(text) if kind == "application/json" else text.decode()

    def chat(self, content, **fields):
        return self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def complete(self, prompt, **fields):
        return self.ask("/v1/completions", {"prompt": prompt, **fields})

    def start(self, path, body, headers=b"", **kw):
        """A connection on which the request was sent."""
        data = json.dumps(body).encode()
        s = self.connect(**kw)
        s.sendall(b"POST %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n" % (path.encode(), HOST, headers, len(data)) + data)
        return s

    def stream(self, path, body):
        """(status, headers, events); an event is JSON, or the text of what is none."""
        with self.start(path, dict(body, stream=True)) as s:
            status, fields, text = read_response(s)
        return status, fields, events_of(text.decode())

    def metrics(self, key=None):
        status, _, text = self.ask("/metrics", headers=f"Authorization: Bearer {key}\r\n" if key else "")
        assert status == 200, status
        return {m[0]: float(m[1]) for m in re.findall(r"^quern:(\S+) (\S+)$", text, re.M)}

    def wait_for(self, condition, seconds=20):
        """The metrics once they fulfil the condition; None when they do not."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            m = self.metrics()
            if condition(m):
                return m
            time.sleep(0.01)
        return None


def events_of(text):
    events = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            rest = block[6:]
            events.append(json.loads(rest) if rest.startswith("{") else rest)
        elif block:
            events.append(block)
    return events


def read_some(s):
    try:
        return s.recv(65536)
    except ConnectionError:
        return b""


def read_response(s, head=False):
    data = b""
    while b"\r\n\r\n" not in data:
        more = read_some(s)
        if not more:
            return 0, {}, data
        data += more
    start, _, body = data.partition(b"\r\n\r\n")
    lines = start.decode("latin-1").split("\r\n")
    status = int(lines[0].split()[1])
    if status == 100:
        return read_response(Rest(s, body))
    fields = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
    if fields.get("transfer-encoding") == "chunked":
        return status, fields, read_chunks(s, body)
    length = 0 if head or status == 204 else int(fields.get("content-length", 1 << 40))
    while len(body) < length:
        more = read_some(s)
        if not more:
            break
        body += more
    return status, fields, body[:length]


class Rest:
    """A socket of which some was read already."""

    def __init__(self, s, data):
        self.s, self.data = s, data

    def recv(self, n):
        data, self.data = self.data, b""
        return data or self.s.recv(n)


def read_chunks(s, data):
    """The body of a chunked response, also of one that breaks off."""
    out = b""
    while True:
        line, found, rest = data.partition(b"\r\n")
        size = int(line, 16) if found else 0
        if found and size == 0:
            return out
        if found and len(rest) >= size + 2:
            out, data = out + rest[:size], rest[size + 2:]
            continue
        more = read_some(s)
        if not more:
            return out
        data += more


def generated(prompt, *args, model=()):
    """What `quern generate` says to it, as JSON."""
    status, out, err = run("generate", "-p", prompt, "--json", *model, *args)
    assert status == 0, err
    return json.loads(out)
