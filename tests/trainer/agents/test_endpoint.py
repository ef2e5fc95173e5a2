"""The client of chat-completions endpoints, against a real HTTP server that misbehaves in every way it can."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate

import pytest

from rollcage.errors import UserError
from rollcage.trainer.agents import endpoint as endpoint_module
from rollcage.trainer.agents.chat import ChatAgent
from rollcage.trainer.agents.endpoint import ChatEndpoint, Reply
from rollcage.trainer.agents.fake_endpoint import FakeEndpoint, RawReply
from rollcage.trainer.engines.base import ContextFull
from rollcage.trainer.rollout.episode import AgentFailed
from rollcage.trainer.types import Sampling

SAMPLING = Sampling(max_new_tokens=32, temperature=0.5)
QUESTION = [{"role": "user", "content": "2 + 2?"}]
Answer = Callable[[list[dict[str, str]]], str | RawReply]


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "FIRST_BACKOFF_S", 0.01)


def scripted(*replies: str | RawReply) -> Answer:
    """Give the replies in turn, the last one for ever."""
    left = list(replies)
    return lambda messages: left.pop(0) if len(left) > 1 else left[0]


def failing(status: int, message: str, code: str = "") -> RawReply:
    return RawReply(status, json.dumps({"error": {"message": message, "code": code}}).encode())


def ask(server: FakeEndpoint, *, model: str = "fake", timeout_s: float = 10.0, times: int = 1) -> list[Reply]:
    async def talk() -> list[Reply]:
        endpoint = ChatEndpoint(server.url, model, timeout_s=timeout_s)
        try:
            await endpoint.start()
            return [await endpoint.chat(QUESTION, SAMPLING, seed=7) for _ in range(times)]
        finally:
            await endpoint.close()

    return asyncio.run(talk())


def test_a_conversation_reaches_the_endpoint_whole_and_in_order() -> None:
    with FakeEndpoint(scripted("four", "eight")) as server:

        async def talk() -> Sequence[str]:
            agent = ChatAgent(ChatEndpoint(server.url, "fake", api_key="secret"), SAMPLING, seed=3)
            return [(await agent.act("2 + 2?")).text, (await agent.act("4 + 4? \ud800")).text]

        assert asyncio.run(talk()) == ["four", "eight"]
    first, second = server.requests
    assert first["messages"] == QUESTION
    assert [m["content"] for m in second["messages"]] == ["2 + 2?", "four", "4 + 4? ?"]
    assert (second["model"], second["max_tokens"], second["temperature"]) == ("fake", 32, 0.5)
    assert first["seed"] != second["seed"]
    assert server.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "fault",
    [
        RawReply(429, b"slow down"),
        RawReply(500, b"oops"),
        RawReply(503, b""),
        RawReply(0),
        RawReply(200, b"<html>not json</html>"),
        RawReply(200, b'{"choices": []}'),
        RawReply(200, b'{"choices": [{"message": null}]}'),
    ],
    ids=["429", "500", "503", "hangs-up", "html", "no-choice", "no-message"],
)
def test_what_may_pass_is_tried_again(fault: RawReply) -> None:
    with FakeEndpoint(scripted(fault, fault, "four")) as server:
        assert [reply.text for reply in ask(server)] == ["four"]
    assert len(server.requests) == 3


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_retry_after_is_honoured(as_date: bool) -> None:
    wait = formatdate(time.time() + 2, usegmt=True) if as_date else "1"
    with FakeEndpoint(scripted(RawReply(429, b"", {"Retry-After": wait}), "four")) as server:
        begin_s = time.monotonic()
        ask(server)
        assert time.monotonic() - begin_s >= 0.9


def test_a_wait_of_hours_is_a_failure_at_once() -> None:
    with FakeEndpoint(scripted("four", RawReply(429, b"come back tomorrow", {"Retry-After": "86400"}))) as server:
        with pytest.raises(AgentFailed, match="come back tomorrow") as caught:
            ask(server, times=2)
    assert (caught.value.kind, caught.value.reason) == ("infra", "endpoint_rate_limit")


def test_an_endpoint_that_breaks_later_fails_the_episode_and_not_the_run() -> None:
    with FakeEndpoint(scripted("four", RawReply(500, b"broken"))) as server:
        with pytest.raises(AgentFailed, match="HTTP 500: broken") as caught:
            ask(server, times=2)
    assert (caught.value.kind, caught.value.reason) == ("infra", "endpoint_error")
    assert len(server.requests) == 1 + 1 + endpoint_module.MAX_RETRIES


def test_a_call_that_hangs_ends_by_its_deadline_and_leaves_no_thread() -> None:
    with FakeEndpoint(scripted("four", RawReply(delay_s=60))) as server:
        before = threading.active_count()
        begin_s = time.monotonic()
        with pytest.raises(AgentFailed, match=r"no answer within 0\.5 s") as caught:
            ask(server, times=2, timeout_s=0.5)
        assert time.monotonic() - begin_s < 3
        assert caught.value.reason == "endpoint_timeout"
        deadline_s = time.monotonic() + 5
        while any(t.name.startswith("endpoint") for t in threading.enumerate()) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not any(t.name.startswith("endpoint") for t in threading.enumerate())
        assert threading.active_count() <= before + 1  # the server's own handler may still sleep


def test_a_slow_answer_is_waited_for() -> None:
    good = json.dumps({"choices": [{"message": {"content": "four"}}]}).encode()
    with FakeEndpoint(scripted(RawReply(200, good, delay_s=1.0))) as server:
        assert [reply.text for reply in ask(server)] == ["four"]


def test_cancelling_a_call_hangs_up_at_once() -> None:
    with FakeEndpoint(scripted(RawReply(delay_s=60))) as server:

        async def cancel() -> None:
            endpoint = ChatEndpoint(server.url, "fake")
            call = asyncio.create_task(endpoint.chat(QUESTION, SAMPLING, seed=0))
            await asyncio.sleep(0.3)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await endpoint.close()

        begin_s = time.monotonic()
        asyncio.run(cancel())
        assert time.monotonic() - begin_s < 3


def test_an_endpoint_that_is_down_is_one_clear_line() -> None:
    with FakeEndpoint(scripted("four")) as server:
        pass
    with pytest.raises(UserError, match=r"127\.0\.0\.1:\d+/v1 cannot be used: connection refused: start the server"):
        ask(server)


def test_an_unknown_model_is_named_with_the_nearest_known_one() -> None:
    with FakeEndpoint(scripted("four"), models=["qwen-4b", "qwen-8b"]) as server:
        with pytest.raises(UserError, match=r"has no model 'qwen-4'\. Did you mean 'qwen-4b'\?"):
            ask(server, model="qwen-4")


def test_an_endpoint_that_lists_no_models_is_asked_all_the_same() -> None:
    with FakeEndpoint(scripted("four"), models=None) as server:
        assert [reply.text for reply in ask(server, model="any")] == ["four"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (failing(401, "Incorrect API key"), r"Incorrect API key; put the right key into \$OPENAI_API_KEY"),
        (RawReply(200, b"<html>hi</html>"), "its reply is not a chat completion .*<html>hi</html>"),
        (RawReply(404, b"nothing here"), r"HTTP 404: nothing here; mend the model's name or the URL"),
        (failing(400, "temperature is not supported"), "HTTP 400: temperature is not supported"),
        (RawReply(500, b"always"), "HTTP 500: always"),
    ],
    ids=["key", "bad-json", "not-found", "refused", "broken"],
)
def test_an_endpoint_that_never_gave_a_good_reply_ends_the_run(reply: RawReply, message: str) -> None:
    with FakeEndpoint(scripted(reply), models=None) as server:
        with pytest.raises(UserError, match=message):
            ask(server)


def test_one_refused_conversation_does_not_end_the_run_even_if_it_was_the_first() -> None:
    def answer(messages: list[dict[str, str]]) -> str | RawReply:
        return failing(400, "flagged", "content_filter") if messages == QUESTION else "hello"

    with FakeEndpoint(answer) as server:
        with pytest.raises(AgentFailed, match="flagged") as caught:
            ask(server)
    assert (caught.value.kind, caught.value.reason) == ("model", "content_filter")


def test_a_conversation_that_outgrew_the_model_is_told_apart() -> None:
    full = failing(400, "This model's maximum context length is 8192 tokens.", "context_length_exceeded")
    with FakeEndpoint(scripted(full)) as server, pytest.raises(ContextFull):
        ask(server)


def test_models_that_want_the_newer_limit_field_get_it() -> None:
    def answer(messages: list[dict[str, str]]) -> str | RawReply:
        if "max_tokens" in server.requests[-1]:
            return failing(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return "four"

    with FakeEndpoint(answer) as server:
        assert [reply.text for reply in ask(server, times=2)] == ["four", "four"]
    assert [request.get("max_completion_tokens") for request in server.requests] == [None, 32, 32]


@pytest.mark.parametrize("content", [None, "", [{"type": "text", "text": ""}]], ids=["null", "empty", "parts"])
def test_a_message_without_text_is_an_empty_action(content: object) -> None:
    body = json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "length"}]}).encode()
    with FakeEndpoint(scripted(RawReply(200, body))) as server:
        assert ask(server) == [Reply("", "length", 0)]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://[::1", "http://host:port/v1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="is not the URL of an endpoint"):
        ChatEndpoint(url, "fake")


def test_the_base_url_may_be_given_short_or_long() -> None:
    urls = ["http://host:8000", "http://host:8000/", "http://host:8000/v1/", "http://host:8000/v1/chat/completions"]
    assert {ChatEndpoint(url, "fake").url for url in urls} == {"http://host:8000/v1"}


def test_a_key_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        ChatEndpoint("http://host", "fake", api_key="line\nbreak")
