#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own Python package as a client of `quern serve`; skipped where it is not installed.

    tests/server/test_openai.py QUERN
"""
from served import Server, check, finish, generated, skipped

try:
    import openai
except ImportError:
    openai = None

FOX = "Tell me a story about a fox and a lantern."
MESSAGES = [{"role": "user", "content": FOX}]


def raises(name, kind, part, call):
    try:
        call()
        check(name, False, "nothing was raised")
    except kind as e:
        check(name, part in str(e), e)


def main(s):
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="k", max_retries=0)
    want = generated(FOX, "--temp", "0", "-n", "30")
    got = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=30)
    check("chat", got.choices[0].message.content == want["text"] and got.choices[0].finish_reason == "length", got)
    check("usage", got.usage.prompt_tokens == want["prompt_tokens"] and got.usage.completion_tokens == 30
          and got.usage.prompt_tokens_details.cached_tokens == 0, got.usage)
    check("models", [m.id for m in client.models.list()] == ["demo"])
    text, usage = "", None
    for chunk in client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=30, stream=True,
                                                stream_options={"include_usage": True}):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    check("stream", text == want["text"] and usage.completion_tokens == 30, (text, usage))
    got = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2,
                                         seed=1, n=2, stop=["zzz"], logit_bias={"5": -100}, presence_penalty=0.5,
                                         extra_body={"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"x": 1}})
    content = got.choices[1].logprobs.content
    check("logprobs", len(content) == 3 and len(content[0].top_logprobs) == 2 and content[0].logprob <= 0
          and bytes(content[0].bytes).decode() == content[0].token, content)
    got = client.completions.create(model="demo", prompt=["Once upon", "A fox"], max_tokens=4, logprobs=1, temperature=0)
    check("completions", len(got.choices) == 2 and len(got.choices[0].logprobs.tokens) == 4
          and got.choices[0].text == generated("Once upon", "--raw", "--temp", "0", "-n", "4")["text"], got)
    raises("another model", openai.NotFoundError, "gpt-4o", lambda: client.chat.completions.create(model="gpt-4o", messages=MESSAGES))
    raises("tools", openai.BadRequestError, "tools: not supported", lambda: client.chat.completions.create(
        model="demo", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}]))
    raises("a wrong value", openai.BadRequestError, "temperature", lambda: client.chat.completions.create(
        model="demo", messages=MESSAGES, temperature=-1))
    raises("a wrong key", openai.AuthenticationError, "key", lambda: openai.OpenAI(
        base_url=keyed.url + "/v1", api_key="wrong").models.list())
    check("a key", len(openai.OpenAI(base_url=keyed.url + "/v1", api_key="right").models.list().data) == 1)
    before = s.metrics()["tokens_predicted_total"]
    stream = client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=900, stream=True,
                                            extra_body={"ignore_eos": True})
    for i, _ in enumerate(stream):
        if i == 10:
            stream.close()
            break
    idle = s.wait_for(lambda m: not m["requests_processing"], 5)
    check("cancel in mid-stream", idle and idle["tokens_predicted_total"] - before < 850, idle)


if openai:
    with Server() as server, Server("--api-key", "right") as keyed:
        main(server)
else:
    skipped("the Python package openai is not installed")
finish()
