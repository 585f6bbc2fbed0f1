#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern chat from outside, through a pipe and on a pseudo-terminal, and Ctrl-C in a long prompt.

    tests/cli/test_chat.py QUERN

A reply must be what `quern generate` gives for the same conversation, written out as ChatML here: so the cache
that is kept between turns may change nothing. For Ctrl-C a model with random weights is made, large enough that a
long prompt takes seconds.
"""
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time

from helper import QUERN, SOURCE, check, finish, refused, run

DEMO = os.path.join(SOURCE, "models/demo")
GREEDY = ("--temp", "0", "-n", "24")
FIRST, SECOND = "Tell me a story about a fox.", "And then?"


def chatml(*texts, system=None):
    """The demo's format, up to the header of the next reply."""
    roles = ["user", "assistant"] * len(texts)
    turns = ([("system", system)] if system is not None else []) + list(zip(roles, texts))
    return "".join(f"<|im_start|>{r}\n{t}<|im_end|>\n" for r, t in turns) + "<|im_start|>assistant\n"


def reply(*texts, system=None, n="24", model=()):
    status, out, err = run("generate", "--raw", "-p", chatml(*texts, system=system), "--temp", "0", "-n", n, *model)
    assert status == 0, err
    return out.decode()[:-1]


def chat(lines, *args, stdin=None, **kw):
    return run("chat", *args, stdin=("\n".join(lines) + "\n").encode() if stdin is None else stdin, **kw)


# ---- through a pipe ---------------------------------------------------------------------------------------------

def test_turns():
    one = reply(FIRST)
    two = reply(FIRST, one, SECOND)
    three = reply(FIRST, one, SECOND, two, "Why?")
    out = chat([FIRST, SECOND, "Why?"], *GREEDY)
    check("three turns", out == (0, f"{one}\n{two}\n{three}\n".encode(), ""), out)
    check("no newline at the end", chat([], *GREEDY, stdin=FIRST.encode())[:2] == (0, (one + "\n").encode()))
    status, text, err = chat([FIRST, SECOND, "/regen"], *GREEDY, "--verbose")
    check("regen", text.decode() == f"{one}\n{two}\n{two}\n", text)
    speeds = re.findall(r"prompt (\d+) tokens(?: behind (\d+))?,.*generated (\d+) tokens", err)
    ids = [len(json.loads(run("tokenize", "--parse-special", "--json", "-p", chatml(*t))[1])["ids"])
           for t in ((FIRST,), (FIRST, one, SECOND))]
    check("the cache is kept", len(speeds) == 3 and speeds[0][:2] == (str(ids[0]), "") and int(speeds[1][1]) >= ids[0]
          and sum(map(int, speeds[1][:2])) == ids[1] and speeds[2][:2] == ("1", str(ids[1] - 1)), err)
    system = reply(FIRST, system="Be brief.")
    check("--system", chat([FIRST], *GREEDY, "--system", "Be brief.")[1].decode() == system + "\n")
    out = chat([FIRST, "/reset", "/system Be brief.", FIRST, "/system", "/reset", FIRST], *GREEDY)
    check("/system and /reset", out == (0, f"{one}\n{system}\n{one}\n".encode(), ""), out)
    lines = reply("a\nb\\c\n\"d\"")
    out = chat(['"""a', "b\\c", '"d""""', "a\\", 'b\\c\\', '"d"'], *GREEDY)
    check("several lines", out[1].decode().split("\n")[0] == lines.split("\n")[0] and out[0] == 0, out)
    check("the input ends in a message", chat([], *GREEDY, stdin=b'"""a\nb')[1].decode() == reply("a\nb") + "\n")
    check("a slash between quotes", chat(['"""/x"""'], *GREEDY)[1].decode() == reply("/x") + "\n")
    check("CRLF", chat([], *GREEDY, stdin=(FIRST + "\r\n").encode())[1].decode() == one + "\n")
    sampled = [chat([FIRST, "/regen"], "-n", "20", "--temp", "1", "--seed", "3")[1] for _ in range(2)]
    first, again = sampled[0].decode().rstrip("\n").split("\n")[:2]
    check("regen samples anew", sampled[0] == sampled[1] and first != again, sampled)
    out = chat(["/set temp 0", "/set max-tokens 24", FIRST])
    check("/set", out == (0, (one + "\n").encode(), ""), out)
    status, text, err = chat(["/set max-tokens 3", "/set stats on", FIRST, "/set stats off", FIRST])
    check("/set stats", status == 0 and err.count("generated 3 tokens") == 1, err)
    cut = one[:40]
    out = chat([FIRST, SECOND], *GREEDY, "--stop", one[40:47])
    then = reply(FIRST, cut, SECOND).split(one[40:47])[0]
    check("--stop", out == (0, f"{cut}\n{then}\n".encode(), ""), out)
    out = chat(["/set samplers temp;top-k", "/set", "/set temp 9", "/set top-k 1", FIRST], *GREEDY)
    check("/set samplers", out[:2] == (0, (one + "\n").encode()) and "temperature;top_k" in out[2], out)
    listed = chat(["/set", "/help"])
    check("/set and /help list", listed[0] == 0 and not listed[1] and all(
        w in listed[2] for w in ("top-p", "repeat-penalty", "stats", "/regen", "/load FILE")), listed)
    check("/exit", chat(["/exit", FIRST]) == (0, b"", ""))


def test_files():
    one = reply(FIRST)
    with tempfile.TemporaryDirectory() as d:
        file, text = os.path.join(d, "c.json"), os.path.join(d, "t.txt")
        out = chat(["/system S\u00e9", FIRST, f"/save {file}"], *GREEDY)
        system = reply(FIRST, system="S\u00e9")
        check("/save", json.load(open(file)) == [{"role": "system", "content": "S\u00e9"},
              {"role": "user", "content": FIRST}, {"role": "assistant", "content": system}], out)
        two = reply(FIRST, system, SECOND, system="S\u00e9")
        out = chat([f"/load {file}", SECOND], *GREEDY)
        check("/load", out == (0, (two + "\n").encode(), ""), out)
        with open(text, "w") as f:
            f.write("A fact.")
        fact = reply("A fact.\n" + FIRST)
        out = chat([f"/read {text}", FIRST, SECOND], *GREEDY)
        check("/read", out == (0, f"{fact}\n{reply('A fact.' + chr(10) + FIRST, fact, SECOND)}\n".encode(), ""), out)
        chat([f"/save {file}"])
        check("/save of nothing", json.load(open(file)) == [])
        chat(["/system A", "/system B", f"/save {file}"])
        check("/system twice", json.load(open(file)) == [{"role": "system", "content": "B"}])
        lines = f"/system {'x' * 70000}\n/save {file}\n".encode() # more than is written at once
        status, out, err = run(shell=f"trap '' XFSZ; ulimit -f 0; exec '{QUERN}' chat --no-history", stdin=lines)
        check("/save to a full disk", status == 1 and file in err and err.count("\n") == 1, (status, err))
        check("nothing is left behind", sorted(os.listdir(d)) == ["c.json", "t.txt"], os.listdir(d))
        for name, bad in (("no JSON", b"["), ("no messages", b"{}"), ("no role", b'[{"content":"x"}]'),
                          ("number", b"[1]"), ("binary", b"\xff\xfe"), ("two roles", b'[{"role":"a","role":"b"}]')):
            with open(file, "wb") as f:
                f.write(bad)
            status, out, err = chat([FIRST, f"/load {file}", "/regen"], *GREEDY)
            check(f"/load {name}", status == 1 and out.decode() == f"{one}\n{one}\n" and err.count("\n") == 1
                  and file in err, (status, out, err))
        with open(text, "wb") as f:
            f.write(b"ab\xff")
        for line, named in ((f"/read {text}", "byte 2"), ("/read /none", "/none"), ("/load /none", "/none"),
                            (f"/save {d}", d), (f"/save {d}/no/x", "no/x"), ("/save", "/save FILE"), ("/read", "FILE"),
                            ("/regen", "no message"), ("/set temp hot", "hot"), ("/set tmep 1", "did you mean temp?"),
                            ("/set seed", "--seed"), ("/set stats 3", "on or off"), ("/rgen", "did you mean /regen?"),
                            ("/xyzzyplugh", "/help"), ("/clear", "use /reset"), ("/bye", "use /exit"), ("/?", "use /help"),
                             ("/exit now", "/exit"), ("\\ab\xff", "")):
            if line.startswith("/"):
                refused(f"chat {line[:12]}", chat([line]), 1, named)
        refused("invalid UTF-8", chat([], stdin=b"a\xffb\n"), 1, "UTF-8")


SPEED = re.compile(r"prompt (\d+) tokens(?: behind (\d+))?,")


def ran(err):
    """Of each reply: tokens that ran, tokens that were there."""
    return [(int(a), int(b or 0)) for a, b in SPEED.findall(err)]


def test_sleep():
    one = reply(FIRST)
    two = reply(FIRST, one, SECOND)
    three = reply(FIRST, one, SECOND, two, "Why?")
    both = ran(chat([FIRST, SECOND], *GREEDY, "--verbose")[2])
    with tempfile.TemporaryDirectory() as d:
        file, other = os.path.join(d, "bed"), os.path.join(d, "other")
        out = chat([FIRST, f"/sleep {file}", "/reset", f"/wake {file}", SECOND], *GREEDY, "--verbose")
        check("/sleep and /wake", out[:2] == (0, f"{one}\n{two}\n".encode()) and ran(out[2]) == both, out)
        out = chat([f"/wake {file}", SECOND, f"/save {other}"], *GREEDY, "--verbose")
        check("/wake in another process runs what is new alone", out[:2] == (0, f"{two}\n".encode())
              and ran(out[2]) == both[1:], (out, both))
        check("/wake brings the messages", [m["content"] for m in json.load(open(other))] == [FIRST, one, SECOND, two])
        out = chat([f"/load {file}", SECOND], *GREEDY, "--verbose")
        check("/load of such a file runs them anew", out[:2] == (0, f"{two}\n".encode())
              and ran(out[2]) == [(sum(both[1]), 0)], (out, both))
        cache = ("--prompt-cache", other)
        os.remove(other)
        check("--prompt-cache, first", chat([FIRST], *GREEDY, *cache)[:2] == (0, f"{one}\n".encode()))
        out = chat([SECOND], *GREEDY, *cache, "--verbose")
        check("--prompt-cache, again", out[:2] == (0, f"{two}\n".encode()) and ran(out[2]) == both[1:], (out, both))
        kept = open(other, "rb").read()
        out = chat(["Why?"], *GREEDY, *cache, "--prompt-cache-ro")
        check("--prompt-cache-ro", out == (0, f"{three}\n".encode(), "") and open(other, "rb").read() == kept, out)
        out = chat(["/regen"], *GREEDY, *cache, "--prompt-cache-ro", "--verbose")
        check("/regen behind sleep", out[:2] == (0, f"{two}\n".encode()) and ran(out[2]) == [(1, sum(both[1]) - 1)], out)
        system = reply(FIRST, one, SECOND, two, "Why?", system="Be brief.")
        out = chat(["Why?"], *GREEDY, *cache, "--prompt-cache-ro", "--system", "Be brief.")
        check("--system with it", out == (0, f"{system}\n".encode(), ""), out)
        status, out, err = run("generate", "--raw", "-p", chatml(FIRST, one, SECOND, two, "Why?"), *GREEDY, *cache,
                               "--prompt-cache-ro", "--json")
        check("quern generate takes it, too", status == 0 and json.loads(out)["text"] == three
              and json.loads(out)["cached_tokens"] >= sum(both[1]), (out, err))
        for name, args, named in (("type of cache", ("--cache-type-k", "f16"), "keys is"),
                                  ("model", ("--products", "f32"), "another model"),
                                  ("context", ("-c", "10"), "context of 10")):
            refused(f"--prompt-cache of another {name}", chat([FIRST], *GREEDY, *cache, *args), 1, other, named,
                    "/load takes the messages" if name != "context" else "")
            refused(f"/wake of another {name}", chat([f"/wake {other}"], *GREEDY, *args), 1, other, named)
            check(f"another {name} leaves the file", open(other, "rb").read() == kept)
        out = chat([f"/wake {other}", FIRST], *GREEDY, "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
        check("a /wake that fails leaves the chat", out[0] == 1 and out[2].count("\n") == 1
              and out[1].decode() == reply(FIRST, model=("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")) + "\n", out)
        with open(other, "wb") as f:
            f.write(kept[:-100] + bytes([kept[-100] ^ 1]) + kept[-99:])
        refused("--prompt-cache, flipped", chat([FIRST], *GREEDY, *cache), 1, other, "not those")
        check("which stays", open(other, "rb").read() != kept and len(open(other, "rb").read()) == len(kept))
        run("generate", "-p", "hi", *GREEDY, "--prompt-cache", file + "2")
        refused("--prompt-cache without messages", chat([FIRST], "--prompt-cache", file + "2"), 1, "no conversation")
        for line, named in (("/sleep", "/sleep FILE"), ("/wake", "/wake FILE"), ("/wake /none", "/none"),
                            (f"/sleep {d}/no/x", "no/x"), (f"/sleep {d}", d), (f"/wake {d}", d),
                            (f"/wake {SOURCE}/README.md", "README.md")):
            refused(f"chat {line[:12]}", chat([line]), 1, named)
        refused("--prompt-cache-ro alone", chat([FIRST], "--prompt-cache-ro"), 2, "--prompt-cache FILE")
        refused("--prompt-cache where nothing can be written", chat([FIRST], "--prompt-cache", d + "/no/x"), 1, "no/x")
        before = sorted(os.listdir(d))
        status, out, err = run(shell=f"trap '' XFSZ; ulimit -f 0; exec '{QUERN}' chat -n 2", stdin=f"hi\n/sleep {d}/full\n".encode())
        check("/sleep to a full disk", status == 1 and "full" in err and err.count("\n") == 1, (status, err))
        check("leaves nothing", sorted(os.listdir(d)) == before, os.listdir(d))


def test_limits():
    long = "once upon a time " * 400
    status, out, err = chat([FIRST, long, "/regen"], *GREEDY)
    counts = [int(n) for n in re.findall(r"\d+", err)]
    check("a prompt beyond the context", status == 1 and out.decode() == f"{reply(FIRST)}\n" * 2
          and err.count("\n") == 1 and 1024 in counts and max(counts) > 1024, (status, out, err))
    refused("a model that cannot chat", chat([FIRST], "-m", os.path.join(SOURCE, "tests/golden/llama/plain")), 1,
            "tokenizer.json")
    refused("a full disk", run(shell=f"echo hi | '{QUERN}' chat -n 4 > /dev/full"), 1, "output")
    refused("a full disk ends it", run(shell=f"printf 'hi\\nho\\nhu\\n' | '{QUERN}' chat -n 4 > /dev/full"), 1, "output")
    refused("stdin closed", run(shell=f"exec '{QUERN}' chat <&-"), 1, "standard input")
    check("an empty input", chat([], stdin=b"") == (0, b"", ""))
    check("empty lines", chat(["", "", FIRST], *GREEDY)[1].decode() == reply(FIRST) + "\n")


# ---- on a terminal ----------------------------------------------------------------------------------------------

class Terminal:
    def __init__(self, state, *args, columns=0, **env):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.environ.update({"XDG_STATE_HOME": state, "TERM": "xterm", "HOME": state, "NO_COLOR": "1", **env})
            os.chdir(state)
            os.execv(QUERN, [QUERN, "chat", *args])

    def read(self, seconds):
        ready, _, _ = select.select([self.fd], [], [], seconds)
        try:
            data = os.read(self.fd, 65536) if ready else b""
        except OSError:
            data = b""
        self.seen += data.decode("utf-8", "replace")
        return data

    def expect(self, text, seconds=60):
        """Waits for the text; gives what came before it, and the seconds that it took."""
        begun = time.monotonic()
        while text not in self.seen and time.monotonic() - begun < seconds:
            self.read(0.05)
        before, found, rest = self.seen.partition(text)
        self.seen = rest if found else self.seen
        return (before if found else None), time.monotonic() - begun

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self, seconds=10):
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            self.read(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)
        return None

    def ticks(self):
        with open(f"/proc/{self.pid}/stat") as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))


def test_terminal(edited):
    one = reply(FIRST)
    with tempfile.TemporaryDirectory() as state:
        t = Terminal(state, *GREEDY)
        check("a prompt appears", t.expect("> ")[0] is not None)
        t.type(FIRST + "\r")
        got = t.expect("\n> ")[0]
        check("a turn", got is not None and one in got.replace("\r", ""), got)
        t.type("/regen\r")
        check("/regen", one in (t.expect("\n> ")[0] or "").replace("\r", ""))
        before = t.ticks()
        time.sleep(1)
        check("idle", t.ticks() - before <= 1)
        t.type("half a line\x03")
        check("Ctrl-C at the prompt", t.expect("Ctrl-C again")[0] is not None and t.expect("> ")[0] is not None)
        t.type('"""a\r')
        check("a line more", t.expect("\n. ")[0] is not None)
        t.type('b"""\r')
        check("a message of two lines", reply(FIRST, one, "a\nb")[:20] in (t.expect("\n> ")[0] or ""))
        t.type("/set stats on\r")
        t.expect("\n> ")
        if edited:
            t.type("\x1b[A\x1b[A\x1b[A\r") # three lines up: /regen
            check("a line of the history", "generated" in (t.expect("\n> ")[0] or ""))
            paste = "\x1b[200~/one\rtwo \u00e9 \U0001f98a\x1b[1m\r\r\tthree\r\x1b[201~"
            t.type("/reset\r")
            t.expect("\n> ")
            t.type(paste)
            shown = t.expect("three")[0]
            check("a paste waits for Enter", shown is not None and "\n> " not in shown and "\u240a" in shown, shown)
            t.type("\r")
            t.expect("\n> ")
            t.type("\x1b[A") # once more, from the history
            t.expect("three")
            t.type("\r")
            t.expect("\n> ")
            os.write(t.fd, b"\x1b[200~a\xffb\x1b[201~") # is refused, and leaves nothing in the line
            file = os.path.join(state, "pasted.json")
            t.type(f"/save {file}\r")
            t.expect("messages in")
            t.expect("\n> ")
            said = [m["content"] for m in json.load(open(file)) if m["role"] == "user"]
            check("a paste is one message, also from the history",
                  said == ["/one\ntwo \u00e9 \U0001f98a[1m\n\n\tthree"] * 2, said)
        t.type("\x04")
        ended = t.end()
        check("Ctrl-D ends", ended == 0, (ended, t.seen))
        file = os.path.join(state, "quern/history")
        lines = open(file).read().split("\n")
        check("the history file", os.stat(file).st_mode & 0o777 == 0o600 and os.listdir(state + "/quern") == ["history"]
              and lines[:3] == [FIRST, "/regen", '"""a\u240ab"""'] and "half a line" not in lines, lines)
        with open(file, "a") as f:
            f.write("\x1b]0;evil\x07\nab\x00c\n" + "".join(f"line {i}\n" for i in range(1200)) + "/help")
        t = Terminal(state, *GREEDY)
        t.expect("> ")
        if edited:
            t.type("\x1b[A\r")
            check("history of the last chat", t.expect("/regen")[0] is not None)
            t.expect("\n> ")
        t.type("\x03")
        t.expect("> ")
        t.type("\x03")
        check("Ctrl-C twice ends", t.end() == 0)
        lines = open(file).read().split("\n")
        check("the history is cut and clean", not edited or (len(lines) == 1001 and lines[-2] == "/help"
              and not any("\x1b" in x for x in lines)), (len(lines), lines[-3:]))
        t = Terminal(state, *GREEDY, "--no-history")
        t.expect("> ")
        t.type("secret\r")
        t.expect("\n> ")
        t.type("/exit\r")
        check("--no-history", t.end() == 0 and "secret" not in open(file).read())


def on_screen(text, columns):
    """What a terminal shows of it: lines, as cursor movements and clearing leave them."""
    lines, row, column = [""], 0, 0
    for back, place, clear, char in re.findall(r"\x1b\[(\d+)D|\x1b\[(\d+)G|(\x1b\[K)|(.|\n)", text.replace("\r\n", "\n"), re.S):
        if back:
            column = max(0, column - int(back))
        elif place:
            column = int(place) - 1
        elif char in "\b\r" and char:
            column = max(0, column - 1) if char == "\b" else 0
        elif clear:
            lines[row] = lines[row][:column]
        elif char == "\n":
            lines.append("")
            row, column = row + 1, 0
        else:
            if column == columns:
                lines.append("")
                row, column = row + 1, 0
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1:]
            column += 1
    return lines


def test_wrapping():
    """The words are the reply's, each line is as full as it can be, and what was no break stays none."""
    long = reply(FIRST, n="120")
    for columns in (17, 40, 300):
        with tempfile.TemporaryDirectory() as state:
            t = Terminal(state, "--temp", "0", "-n", "120", columns=columns)
            t.expect("> ")
            t.type(FIRST + "\r")
            t.expect("\n")
            got = t.expect("\n> ")[0] or ""
            shown = on_screen(got.removesuffix("\r"), columns)
            t.type("\x04")
            t.end()
        lines = []
        for line in long.split("\n"):
            now = ""
            for word in line.split(" "):
                fits = len(now) + bool(now) + len(word) < columns
                now, done = (f"{now} {word}" if now else word, None) if fits or not now else (word, now)
                lines += [done] if done is not None else []
            lines.append(now)
        check(f"lines of {columns} columns", [x.rstrip() for x in shown] == [x.rstrip() for x in lines], (shown, lines))


def test_completion():
    with tempfile.TemporaryDirectory() as state:
        os.mkdir(os.path.join(state, "folder"))
        for name in ("notes one.txt", "notes two.txt", "folder/inside.txt", ".hidden"):
            with open(os.path.join(state, name), "w") as f:
                f.write("A fact.")
        t = Terminal(state, *GREEDY)
        t.expect("> ")
        t.seen = "> "
        for typed, tail in (("/sy\t", "/system "), ("/read ~/fo\t", "/read ~/folder/"), ("/read fold\ti\t", "/read folder/inside.txt"),
                            ("/read not\t", "/read notes "), ("/set top\tk\t", "/set top-k "), ("/read .\t", "/read .hidden")):
            t.type(typed)
            begun = time.monotonic()
            while on_screen(t.seen, 200)[-1].rstrip() != ("> " + tail).rstrip() and time.monotonic() - begun < 20:
                t.read(0.05)
            check(f"Tab behind {typed!r}", on_screen(t.seen, 200)[-1].rstrip() == ("> " + tail).rstrip(), t.seen)
            t.type("\x15") # Ctrl-U: the line away
            while on_screen(t.seen, 200)[-1].rstrip() != ">" and time.monotonic() - begun < 20:
                t.read(0.05)
            t.seen = "> "
        t.type("/re\t")
        check("Tab lists what fits", t.expect("/read   /regen  /reset")[0] is not None, t.seen)
        t.type("\x15hello\tthere\x15/read ~/notes one.txt\r")
        check("~ is at home", t.expect("bytes of")[0] is not None and t.expect("\n> ")[0] is not None, t.seen)
        t.type("\x04")
        check("the end of it", t.end() == 0)
    with tempfile.TemporaryDirectory() as state:
        t = Terminal(state, *GREEDY, NO_COLOR="", TERM="xterm-256color")
        check("a coloured prompt", t.expect("\x1b[32m>\x1b[0m")[0] is not None, t.seen)
        t.type("/reset\r")
        check("a dim note", t.expect("\x1b[2m(a new conversation)\x1b[0m")[0] is not None, t.seen)
        t.type("/load nothing\r")
        check("a red error", t.expect("\x1b[31mquern:\x1b[0m nothing")[0] is not None, t.seen)
        t.type("\x04")
        t.end()
        t = Terminal(state, *GREEDY, "--prompt-cache", "bed")
        t.expect("> ")
        t.type(FIRST + "\r")
        t.expect("\n> ")
        t.type("\x04")
        t.end()
        t = Terminal(state, *GREEDY, "--prompt-cache", "bed")
        check("a chat that goes on says so", t.expect("(2 messages from bed)")[0] is not None, t.seen)
        t.expect("> ")
        t.type("/sleep bed2\r")
        check("/sleep says so", t.expect("(2 messages sleep in bed2)")[0] is not None, t.seen)
        t.type("/wake bed2\r")
        check("/wake says so", t.expect("(2 messages from bed2)")[0] is not None, t.seen)
        t.type("\x04")
        t.end()
        t = Terminal(state, *GREEDY, NO_COLOR="", TERM="dumb")
        check("no colour on a dumb terminal", "\x1b[32m" not in (t.expect("> ")[0] or "\x1b[32m"))
        t.type("\x04")
        t.end()


# ---- Ctrl-C -----------------------------------------------------------------------------------------------------

def make_model(folder, hidden=512, layers=8, ffn=1408, vocab=2048):
    """A Llama with random bf16 weights of about +-0.01 and the demo's tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        with open(os.path.join(DEMO, name)) as f, open(os.path.join(folder, name), "w") as g:
            g.write(f.read())
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "llama", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn,
                   "num_hidden_layers": layers, "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128,
                   "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 65536, "rope_theta": 10000.0,
                   "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}, f)
    tensors = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, shape in (("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]),
                            ("self_attn.q_proj", [hidden, hidden]), ("self_attn.k_proj", [hidden // 2, hidden]),
                            ("self_attn.v_proj", [hidden // 2, hidden]), ("self_attn.o_proj", [hidden, hidden]),
                            ("mlp.gate_proj", [ffn, hidden]), ("mlp.up_proj", [ffn, hidden]),
                            ("mlp.down_proj", [hidden, ffn])):
            tensors[f"{p}{name}.weight"] = shape
    source, exponent = random.Random(1), bytes(0x3c if b < 128 else 0xbc for b in range(256))
    header, data, at = {}, [], 0
    for name, shape in sorted(tensors.items()):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = bytearray(source.randbytes(size))
        values[1::2] = values[1::2].translate(exponent)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        data.append(values)
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(data)


def stop_after(wait, *args, stdin):
    """Runs, sends SIGINT after so many seconds; the status, what was said, and the seconds it took to end."""
    with subprocess.Popen([QUERN, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        p.stdin.write(stdin)
        p.stdin.close()
        time.sleep(wait)
        running = p.poll() is None
        begun = time.monotonic()
        p.send_signal(signal.SIGINT)
        status = p.wait(60)
        taken = time.monotonic() - begun
        return running and not p.stdout.read(), status, p.stderr.read(), taken


def check_prompt(kind, folder, long):
    """Ctrl-C while a long prompt runs: nothing has been written then. On a busy machine loading may not be over."""
    taken = []
    for wait in (0.7, 1, 1.5, 3, 6, 12):
        if len(taken) == 3 or (taken and min(taken) < 0.25): # on a busy machine the first may be late
            break
        silent, status, err, seconds = stop_after(wait, "generate", "-m", folder, "-p", "-", stdin=long.encode())
        check(f"Ctrl-C in a prompt of a {kind} model after {wait} s", silent and status == 130
              and err in (b"quern: cancelled\n", b"quern: loading was cancelled\n"), (silent, status, err))
        if b"loading" not in err:
            taken.append(seconds)
    print(f"Ctrl-C in a prompt of a {kind} model:", ", ".join(f"{1000 * t:.0f}" for t in taken), "ms")
    check(f"Ctrl-C takes 0.25 s at most, {kind}", taken and min(taken) < 0.25, taken)


def test_interrupt():
    long = "once upon a time " * 7000
    with tempfile.TemporaryDirectory() as folder: # one matrix product of a chunk takes a tenth of a second and more
        make_model(folder, hidden=2048, layers=2, ffn=8192)
        check_prompt("wide", folder, long)
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        check_prompt("deep", folder, long)
        for wait in (1, 2, 4, 8, 16): # until a token has come, on a busy machine, too
            with subprocess.Popen([QUERN, "generate", "-m", folder, "-p", "hi", "--temp", "0", "--json"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
                time.sleep(wait)
                p.send_signal(signal.SIGINT)
                out, err = p.communicate(timeout=60)
            if p.returncode == 130 and out and json.loads(out)["generated_tokens"]:
                break
        got = json.loads(out or b"{}")
        check("Ctrl-C under --json prints what there is", p.returncode == 130 and got.get("finish") == "cancelled"
              and got["generated_tokens"] > 0 and got["text"] and err == b"quern: cancelled\n", (out, err))
        running, status, err, seconds = stop_after(0.8, "chat", "-m", folder, "--temp", "0",
                                                   stdin=(long + "\nho\n").encode())
        check("Ctrl-C in a pipe", running and status == 130, (running, status, err))
        with open(os.path.join(folder, "long.txt"), "w") as f:
            f.write(long)
        t = Terminal(folder, "-m", folder, "--temp", "0")
        t.expect("> ")
        t.type("hi\r")
        t.expect("\n")
        while len(t.seen) < 30 and t.read(60): # the reply, which would not end
            pass
        t.type("\x03")
        before, seconds = t.expect("(stopped)")
        check("Ctrl-C stops a reply", before is not None and t.expect("> ")[0] is not None, (before, seconds))
        file = os.path.join(folder, "saved.json")
        t.type(f"/save {file}\r")
        check("once", "Ctrl-C again" not in (t.expect("(2 messages")[0] or "Ctrl-C again"))
        t.expect("> ")
        said = json.load(open(file))
        check("and keeps what was said", [m["role"] for m in said] == ["user", "assistant"]
              and len(said[1]["content"]) >= 20, said)
        t.type(f"/read {folder}/long.txt\r")
        t.expect("> ")
        t.type("Well?\r")
        check("a bar", t.expect("] 512 of ")[0] is not None)
        t.type("\x03")
        before, seconds = t.expect("(stopped)")
        check("Ctrl-C stops a prompt", before is not None and t.expect("> ")[0] is not None, (before, seconds))
        t.type(f"/save {file}\r")
        t.expect("> ")
        check("which leaves the conversation", json.load(open(file)) == said)
        t.type("/exit\r")
        check("end", t.end() == 0)


def main():
    test_turns()
    test_files()
    test_sleep()
    test_limits()
    test_wrapping()
    if os.environ.get("QUERN_LIBEDIT", "true") == "true":
        test_completion()
    test_terminal(os.environ.get("QUERN_LIBEDIT", "true") == "true")
    test_interrupt()
    finish()


main()
