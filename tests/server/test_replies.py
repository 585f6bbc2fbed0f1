#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `quern serve` says: that of `quern generate` with the same settings, in OpenAI's form, whole and streamed.

    tests/server/test_replies.py QUERN

With QUERN_TEST_MODELS also with a larger model.
"""
import os
import socket
import subprocess
import threading
import time

from served import HOST, QUERN, Server, check, finish, generated, read_response, run, skipped

FOX = "Tell me a story about a fox and a lantern."
GOOSE = "Tell me a story about a goose and a ladder."
LONG = "Tell me a story about a fox. " * 12


def text_of(reply):
    return reply["choices"][0].get("text", reply["choices"][0].get("message", {}).get("content"))


def joined(events, index=0):
    """The text of a stream's choice, and its last finish_reason."""
    text, reason = "", None
    for e in events:
        for c in e["choices"] if isinstance(e, dict) else []:
            if c["index"] == index:
                text += c["delta"].get("content", "") if "delta" in c else c["text"]
                reason = c["finish_reason"] or reason
    return text, reason


def test_chat(s):
    want = generated(FOX, "--temp", "0")
    status, fields, got = s.chat(FOX, temperature=0)
    check("chat: status", status == 200 and fields["content-type"] == "application/json", got)
    check("chat: text", text_of(got) == want["text"], (text_of(got), want["text"]))
    check("chat: form", got["object"] == "chat.completion" and got["id"].startswith("chatcmpl-") and got["model"] == "demo"
          and got["choices"][0]["message"]["role"] == "assistant" and got["choices"][0]["index"] == 0, got)
    check("chat: usage", got["usage"]["prompt_tokens"] == want["prompt_tokens"]
          and got["usage"]["completion_tokens"] == want["generated_tokens"]
          and got["usage"]["total_tokens"] == want["prompt_tokens"] + want["generated_tokens"], got["usage"])
    check("chat: finish", got["choices"][0]["finish_reason"] == want["finish"] == "stop", got)
    want = generated(FOX, "--temp", "0", "-n", "7", "--system", "Be kind.")
    messages = [{"role": "developer", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": FOX}]}]
    _, _, got = s.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_completion_tokens": 7})
    check("chat: parts, developer, max_completion_tokens", text_of(got) == want["text"]
          and got["choices"][0]["finish_reason"] == "length", got)
    _, _, got = s.chat("a", temperature=0, max_tokens=3, chat_template_kwargs={"add_generation_prompt": False})
    check("chat: template variables count", got["usage"]["prompt_tokens"]
          < s.chat("a", temperature=0, max_tokens=3)[2]["usage"]["prompt_tokens"], got)


def test_stream(s):
    want = generated(FOX, "--temp", "0")
    body = {"messages": [{"role": "user", "content": FOX}], "temperature": 0, "stream_options": {"include_usage": True}}
    status, fields, events = s.stream("/v1/chat/completions", body)
    check("stream: header", status == 200 and fields["content-type"] == "text/event-stream", fields)
    check("stream: first", events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, events[0])
    check("stream: text", joined(events) == (want["text"], "stop"), joined(events))
    check("stream: it comes in pieces", len(events) > want["generated_tokens"] // 2, len(events))
    check("stream: end", events[-1] == "[DONE]" and events[-2]["choices"] == []
          and events[-2]["usage"]["completion_tokens"] == want["generated_tokens"], events[-2:])
    check("stream: usage is null before", all(e["usage"] is None for e in events[:-2]), events[0])
    check("stream: one id", len({e["id"] for e in events[:-1]}) == 1, "")
    _, _, events = s.stream("/v1/completions", {"prompt": "Once upon", "temperature": 0, "max_tokens": 20})
    want = generated("Once upon", "--raw", "--temp", "0", "-n", "20")
    check("stream: completions", joined(events) == (want["text"], "length") and events[-1] == "[DONE]"
          and all("usage" not in e for e in events[:-1]), events[-3:])


def test_completions(s):
    want = generated("Once upon", "--raw", "--temp", "0", "-n", "12")
    status, _, got = s.complete("Once upon", temperature=0, max_tokens=12)
    check("completions: text", status == 200 and text_of(got) == want["text"] and got["object"] == "text_completion", got)
    ids, others = ([int(i) for i in run("tokenize", "-p", p, "--ids")[1].split()] for p in ("Once upon", "A fox"))
    check("completions: tokens", text_of(s.complete(ids, temperature=0, max_tokens=12)[2]) == want["text"], ids)
    other = generated("A fox", "--raw", "--temp", "0", "-n", "12")
    for name, prompt in (("texts", ["Once upon", "A fox"]), ("lists", [ids, others])):
        _, _, got = s.complete(prompt, temperature=0, max_tokens=12)
        check(f"completions: {name}", [c["text"] for c in got["choices"]] == [want["text"], other["text"]]
              and got["usage"]["prompt_tokens"] == want["prompt_tokens"] + other["prompt_tokens"]
              and got["usage"]["completion_tokens"] == 24, got)


def test_settings(s):
    """Each equals the option of the command; a seed gives the same text alone and beside others."""
    for name, fields, args in (
            ("temperature", {"temperature": 1.3}, ["--temp", "1.3"]), ("top_k", {"top_k": 3}, ["--top-k", "3"]),
            ("top_p", {"top_p": 0.5}, ["--top-p", "0.5"]), ("min_p", {"min_p": 0.2}, ["--min-p", "0.2"]),
            ("top_p 0", {"top_p": 0}, ["--top-p", "0"]), ("the model's own", {}, []),
            ("repeat_penalty", {"repeat_penalty": 1.5}, ["--repeat-penalty", "1.5"]),
            ("presence_penalty", {"presence_penalty": 1.5}, ["--presence-penalty", "1.5"]),
            ("frequency_penalty", {"frequency_penalty": 1.2}, ["--frequency-penalty", "1.2"]),
            ("logit_bias", {"logit_bias": {"300": 5, "301": -100}}, ["--logit-bias", "300+5", "--logit-bias", "301-inf"]),
            ("logit_bias, a list", {"logit_bias": [[300, 5], [301, False]]}, ["--logit-bias", "300+5", "--logit-bias", "301-inf"]),
            ("samplers", {"samplers": ["top_k", "temperature"], "top_k": 3}, ["--samplers", "top_k;temperature", "--top-k", "3"]),
            ("n_predict", {"max_tokens": None, "n_predict": 9}, ["-n", "9"]),
            ("ignore_eos", {"ignore_eos": True, "max_tokens": 300}, ["--ignore-eos", "-n", "300"])):
        args = ["-n", "40", "--seed", "11", *args]
        want = generated(FOX, *args)["text"]
        got = text_of(s.chat(FOX, **{"seed": 11, "max_tokens": 40, **fields})[2])
        check(f"settings: {name}", got == want, (got, want))
    _, _, got = s.chat(FOX, seed=5, n=3, max_tokens=30)
    check("settings: n", [c["message"]["content"] for c in got["choices"]]
          == [generated(FOX, "--seed", str(5 + i), "-n", "30")["text"] for i in range(3)]
          and [c["index"] for c in got["choices"]] == [0, 1, 2], got)
    check("settings: n counts a prompt once", got["usage"]["prompt_tokens"] == generated(FOX, "-n", "1")["prompt_tokens"]
          and got["usage"]["completion_tokens"] == 90, got["usage"])
    _, _, events = s.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": FOX}], "seed": 5, "n": 2,
                                                     "max_tokens": 30})
    check("settings: n, streamed", [joined(events, i)[0] for i in (0, 1)]
          == [c["message"]["content"] for c in got["choices"][:2]], events)
    texts = {text_of(s.chat(FOX, max_tokens=30, temperature=2)[2]) for _ in range(3)}
    check("settings: without a seed texts differ", len(texts) > 1, texts)


def test_stop(s):
    whole = generated(FOX, "--temp", "0")["text"]
    for stop in ("bridges", ["bridges"], ["never", "bridges"], "ridges the"[:6]):
        first = stop if isinstance(stop, str) else stop[-1]
        want = whole[:whole.index(first)]
        _, _, got = s.chat(FOX, temperature=0, stop=stop)
        check(f"stop {stop}", text_of(got) == want and got["choices"][0]["finish_reason"] == "stop", got)
        _, _, events = s.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": FOX}],
                                                         "temperature": 0, "stop": stop})
        check(f"stop {stop}, streamed", joined(events) == (want, "stop"), joined(events))


def test_logprobs(s):
    want = generated(FOX, "--temp", "0", "-n", "6", "--logprobs", "3")
    _, _, got = s.chat(FOX, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3)
    content = got["choices"][0]["logprobs"]["content"]
    plain = [{k: v for k, v in t.items() if k != "id"} for t in want["logprobs"]]
    for t in plain:
        t["top_logprobs"] = [{k: v for k, v in u.items() if k != "id"} for u in t["top_logprobs"]]
    check("logprobs: chat", content == plain, (content, plain))
    body = {"messages": [{"role": "user", "content": FOX}], "temperature": 0, "max_tokens": 6, "logprobs": True,
            "top_logprobs": 3}
    _, _, events = s.stream("/v1/chat/completions", body)
    streamed = [t for e in events[:-1] for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
    check("logprobs: streamed", streamed == plain, streamed)
    _, _, got = s.chat(FOX, temperature=0, max_tokens=6, logprobs=True)
    check("logprobs: without the others", [t["top_logprobs"] for t in got["choices"][0]["logprobs"]["content"]] == [[]] * 6, got)
    want = generated("Once upon", "--raw", "--temp", "0", "-n", "6", "--logprobs", "2")["logprobs"]
    _, _, got = s.complete("Once upon", temperature=0, max_tokens=6, logprobs=2)
    lists = got["choices"][0]["logprobs"]
    check("logprobs: completions", lists["tokens"] == [t["token"] for t in want]
          and lists["token_logprobs"] == [t["logprob"] for t in want]
          and lists["top_logprobs"] == [{u["token"]: u["logprob"] for u in t["top_logprobs"]} for t in want], lists)
    check("logprobs: offsets", lists["text_offset"] == [len("".join(lists["tokens"][:i])) for i in range(6)], lists)
    check("logprobs: none", s.chat(FOX, max_tokens=2)[2]["choices"][0]["logprobs"] is None, "")


def test_cache(s):
    first = s.chat(LONG, temperature=0, max_tokens=5)[2]
    again = s.chat(LONG, temperature=0, max_tokens=5)[2]
    before, cached = first["usage"]["prompt_tokens_details"]["cached_tokens"], again["usage"]["prompt_tokens_details"]["cached_tokens"]
    n = first["usage"]["prompt_tokens"]
    check("cache: what is known is not run", before < 64 <= cached < n and text_of(first) == text_of(again), (n, before, cached))


def test_many(s):
    """Many at once, each with the text that it would have alone, and the figures of all."""
    m = s.metrics()
    want = {seed: generated(FOX, "--seed", str(seed), "-n", "25")["text"] for seed in range(4)}
    wrong = []

    def one(i):
        _, _, got = s.chat(FOX, seed=i % 4, max_tokens=25)
        if text_of(got) != want[i % 4]:
            wrong.append((i, got))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check("many: texts", not wrong, wrong[:1])
    after = s.metrics()
    tokens = sum(len(t) > 0 for t in want.values())
    check("many: metrics", after["tokens_predicted_total"] - m["tokens_predicted_total"] == 600 and tokens == 4
          and after["time_to_first_token_seconds_count"] - m["time_to_first_token_seconds_count"] == 24
          and after["inter_token_latency_seconds_count"] - m["inter_token_latency_seconds_count"] == 24 * 24
          and after["e2e_request_latency_seconds_count"] - m["e2e_request_latency_seconds_count"] == 24
          and after['requests_total{status="200"}'] - m['requests_total{status="200"}'] >= 24
          and after["requests_processing"] == after["requests_deferred"] == 0, (m, after))
    check("many: prompts", after["prompt_tokens_total"] + after["cached_tokens_total"]
          - m["prompt_tokens_total"] - m["cached_tokens_total"] == 24 * generated(FOX, "-n", "1")["prompt_tokens"], after)


def test_models(s):
    status, _, got = s.ask("/v1/models")
    check("models", status == 200 and [m["id"] for m in got["data"]] == ["demo"] and got["object"] == "list"
          and got["data"][0]["max_model_len"] == 1024, got)
    for name in ("demo", "DEMO"):
        check(f"model {name}", s.chat("a", model=name, max_tokens=1)[0] == 200)
    status, _, got = s.chat("a", model="gpt-4o", max_tokens=1)
    check("another model", status == 404 and "gpt-4o" in got["error"]["message"] and "demo" in got["error"]["message"]
          and got["error"]["type"] == "not_found_error", got)


def test_loading(path):
    """While the model is read it listens already, and says 503."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([QUERN, "serve", "-m", path, "--port", str(port)], stderr=subprocess.DEVNULL)
    seen, end = [], time.monotonic() + 60
    while 200 not in seen and time.monotonic() < end:
        for route, body in (("/v1/completions", b'{"prompt":"a","max_tokens":1}'), ("/v1/models", None), ("/health", None)):
            head = f"{'POST' if body else 'GET'} {route} HTTP/1.1\r\nContent-Length: {len(body or b'')}\r\n".encode()
            try:
                with socket.create_connection(("127.0.0.1", port), 10) as c:
                    c.sendall(head + HOST + b"\r\n" + (body or b""))
                    seen.append(read_response(c)[0])
            except ConnectionRefusedError:
                time.sleep(0.002)
    process.terminate()
    check("loading: 503, then 200", seen[:3] == [503] * 3 and set(seen) == {503, 200} and process.wait(40) == 0, seen[-9:])


def test_real():
    folder = os.environ.get("QUERN_TEST_MODELS", "")
    path = os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not folder or not os.path.exists(path):
        skipped("QUERN_TEST_MODELS names no folder with SmolLM2-135M-Instruct.Q4_1.gguf")
        return
    test_loading(path)
    with Server("-m", path, "-c", "2048", "--alias", "org/smol", "--parallel", "4") as s:
        want = generated("Where is Rome?", "--temp", "0", "-n", "24", model=("-m", path))
        _, _, got = s.chat("Where is Rome?", temperature=0, max_tokens=24, model="smol")
        check("real: text", text_of(got) == want["text"] and got["model"] == "org/smol", (got, want))
        check("real: usage", got["usage"]["prompt_tokens"] == want["prompt_tokens"], got["usage"])


with Server() as server:
    for test in (test_chat, test_stream, test_completions, test_settings, test_stop, test_logprobs, test_cache, test_many,
                 test_models):
        test(server)
test_real()
finish()
