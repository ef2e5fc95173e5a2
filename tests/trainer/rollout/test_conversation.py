"""Token in, token out: what the learner trains on are the sampler's own ids (guarantee 1, case T6)."""

from itertools import pairwise
from typing import Any

import pytest

from rollcage.envs.tools import BASH, ToolCall, parse_calls
from rollcage.errors import UserError
from rollcage.trainer.policies import small_policy_path
from rollcage.trainer.policies.tokenizer import build_tokenizer
from rollcage.trainer.rollout.conversation import ChatFormat, Conversation
from rollcage.trainer.types import Generation


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from rollcage.trainer.models import load_tokenizer

    return load_tokenizer(small_policy_path())


def generation(ids: list[int]) -> Generation:
    return Generation(ids, [-0.5] * len(ids), [3] * len(ids), "stop")


def test_t6_ids_of_a_turn_are_a_prefix_of_the_next_and_lists_stay_equal(tokenizer: Any) -> None:
    chat = ChatFormat(tokenizer)
    conversation = Conversation(chat)
    conversation.observe("Make 80 from the numbers 3, 5, 10.")
    prompts = [list(conversation.token_ids)]
    for turn in range(3):
        # ids that decoding and encoding again would not give back: the letters of a word one by one
        sampled = [i for letter in "wrong" for i in chat.encode(letter)] + [tokenizer.eos_token_id]
        text, segment, start, end = conversation.reply(generation(sampled))
        assert text == "wrong"
        assert conversation.segments[segment].token_ids[start:end] == sampled
        conversation.observe(f"No. Attempt {turn + 2}.")
        prompts.append(list(conversation.token_ids))
    for earlier, later in pairwise(prompts):
        assert later[: len(earlier)] == earlier
    (segment,) = conversation.segments
    lists = (segment.token_ids, segment.loss_mask, segment.rollout_logprobs, segment.policy_versions)
    assert len({len(values) for values in lists}) == 1
    assert sum(segment.loss_mask) == 3 * 6
    assert {v for v, m in zip(segment.policy_versions, segment.loss_mask, strict=True) if m} == {3}
    assert {v for v, m in zip(segment.policy_versions, segment.loss_mask, strict=True) if not m} == {-1}


def test_the_conversation_reads_as_the_template_renders_it(tokenizer: Any) -> None:
    chat = ChatFormat(tokenizer)
    conversation = Conversation(chat)
    conversation.observe("one")
    conversation.reply(generation([*chat.encode("two"), tokenizer.eos_token_id]))
    conversation.observe("three")
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert conversation.token_ids == chat.whole(messages)


def test_a_message_cut_by_its_length_is_closed_by_the_template_not_by_the_policy(tokenizer: Any) -> None:
    chat = ChatFormat(tokenizer)
    conversation = Conversation(chat)
    conversation.observe("one")
    conversation.reply(generation(chat.encode("tw")))
    conversation.observe("three")
    segment = conversation.segments[0]
    assert segment.token_ids.count(tokenizer.eos_token_id) >= 1
    assert sum(segment.loss_mask) == len(chat.encode("tw"))


def test_t6_an_engine_without_the_sampled_ids_is_a_hard_error(tokenizer: Any) -> None:
    conversation = Conversation(ChatFormat(tokenizer))
    conversation.observe("one")
    with pytest.raises(ValueError, match="unequal lengths"):
        conversation.reply(Generation([], [-1.0], [0], "stop"))


def test_a_template_that_rewrites_history_starts_a_new_segment_at_every_turn(tokenizer: Any) -> None:
    class Forgetful:
        """Adds a marker only to the newest question, as templates do that hide earlier reasoning."""

        chat_template = "yes"
        eos_token_id = tokenizer.eos_token_id

        def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
            return "|".join(m["content"] for m in messages) + " /think "

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return str(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    chat = ChatFormat(Forgetful())
    assert not chat.continuable
    conversation = Conversation(chat)
    conversation.observe("one")
    conversation.reply(generation(chat.encode("two")))
    conversation.observe("three")
    assert len(conversation.segments) == 2
    assert conversation.token_ids == chat.encode("one|two|three /think ")


def test_every_token_has_a_text(tokenizer: Any) -> None:
    chat = ChatFormat(tokenizer)
    texts = chat.token_texts()
    assert len(texts) == len(tokenizer)
    assert texts[tokenizer.eos_token_id] == tokenizer.eos_token, "special ones too"
    assert "".join(texts[token_id] for token_id in chat.encode("The answer is 42.")) == "The answer is 42."


def test_text_that_no_utf8_can_hold_is_encoded_all_the_same(tokenizer: Any) -> None:
    assert ChatFormat(tokenizer).first("\ud800 and \x00")


def test_a_tokenizer_without_template_or_end_is_refused() -> None:
    class Bare:
        chat_template = None
        eos_token_id = 0

    with pytest.raises(UserError, match="chat template"):
        ChatFormat(Bare())


HARMONY = (
    "<|channel|>analysis<|message|>Where am I?<|end|><|start|>assistant<|channel|>commentary to=functions.bash "
    '<|constrain|>json<|message|>{"command": "pwd"}'
)
HARMONY_TEMPLATE = (
    "{%- for m in messages -%}{%- if m['role'] == 'assistant' -%}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + m['content'] -}}"
    "{{- '<|return|>' if loop.last else '<|end|>' -}}"
    "{%- else -%}{{- '<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}"
)
CALLS = {
    "harmony": HARMONY,
    "hermes": '<tool_call>{"name": "bash", "arguments": {"command": "pwd"}}</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "bash", "arguments": {"command": "pwd"}}]',
    "llama": '<|python_tag|>{"name": "bash", "parameters": {"command": "pwd"}}',
}
MARKS = ["start", "end", "message", "channel", "constrain", "call", "return", "python_tag"]


@pytest.fixture(scope="module")
def marking_tokenizer() -> Any:
    """A tokenizer to which every format's marks are special tokens, with a template in Harmony's layout."""
    tokenizer = build_tokenizer(["a text"])
    tokenizer.add_special_tokens(
        {
            "eos_token": "<|return|>",
            "additional_special_tokens": [
                *(f"<|{mark}|>" for mark in MARKS),
                "<tool_call>",
                "</tool_call>",
                "[TOOL_CALLS]",
            ],
        }
    )
    tokenizer.chat_template = HARMONY_TEMPLATE
    return tokenizer


@pytest.mark.parametrize("said", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("end", ["<|return|>", "<|call|>", ""])
def test_calls_whose_marks_are_special_tokens_reach_the_environment_without_what_ends_the_message(
    said: str, end: str, marking_tokenizer: Any
) -> None:
    chat = ChatFormat(marking_tokenizer)
    ids = chat.encode(said + end)
    assert not set(marking_tokenizer.all_special_ids).isdisjoint(ids)
    assert set(ids) & chat.stop_ids == ({ids[-1]} if end else set()), "the engine stops there, and nowhere before"
    conversation = Conversation(chat)
    conversation.observe("Go on.")
    text, *_ = conversation.reply(generation(ids))
    assert text == said
    assert parse_calls(text, [BASH]) == [ToolCall("bash", {"command": "pwd"})]


@pytest.mark.parametrize(("end", "closed_by"), [("<|call|>", ""), ("<|return|>", ""), ("", "<|end|>")])
def test_harmony_goes_on_token_by_token_and_each_message_ends_once(
    end: str, closed_by: str, marking_tokenizer: Any
) -> None:
    chat = ChatFormat(marking_tokenizer)
    assert chat.continuable
    conversation = Conversation(chat)
    conversation.observe("one")
    conversation.reply(generation(chat.encode(HARMONY + end)))
    conversation.observe("two")
    [segment] = conversation.segments
    assert marking_tokenizer.decode(segment.token_ids) == (
        f"<|start|>user<|message|>one<|end|><|start|>assistant{HARMONY}{end}{closed_by}"
        "<|start|>user<|message|>two<|end|><|start|>assistant"
    )


def test_padding_and_the_like_are_never_part_of_an_action(tokenizer: Any) -> None:
    chat = ChatFormat(tokenizer)
    assert chat.decode([*chat.encode("<|user|>4"), tokenizer.pad_token_id, *chat.encode("2<|end|>")]) == "42"
