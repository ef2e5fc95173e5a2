"""The small policies' tokenizers: they lose nothing, and are short on their games."""

from __future__ import annotations

import sys

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rollcage.envs.countdown.env import CountdownEnv
from rollcage.envs.frozen_lake.env import FrozenLakeEnv
from rollcage.trainer.policies import SMALL_POLICIES, small_policy_path


@pytest.fixture(scope="module", params=SMALL_POLICIES)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(small_policy_path(request.param))


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def test_every_character_of_unicode_comes_back(tokenizer: PreTrainedTokenizerFast) -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    for start in range(0, len(characters), 8192):
        text = "".join(characters[start : start + 8192])
        assert tokenizer.decode(ids_of(tokenizer, text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "a\x00b",
        " ",
        "  two  spaces  ",
        "\r\n\t\n",
        "👩‍👩‍👧‍👦 e\u0301 é",
        "١٢٣ ½ ²",
        "<answer>",
        "a , b . c !",
        "\ufeff\ufffd",
    ],
)
def test_text_comes_back_unchanged(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(ids_of(tokenizer, text)) == text
    assert tokenizer.decode(ids_of(tokenizer, text), skip_special_tokens=True) == text


def test_a_lone_surrogate_is_refused_not_lost(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises((TypeError, UnicodeEncodeError)):
        tokenizer("\ud800")


def test_numbers_are_never_merged(tokenizer: PreTrainedTokenizerFast) -> None:
    for number in range(2000):
        ids = ids_of(tokenizer, str(number))
        assert [tokenizer.decode([token]) for token in ids] == list(str(number))
    assert not [token for token in tokenizer.get_vocab() if len(token) > 1 and any(c.isdigit() for c in token)]


def test_operators_of_an_expression_are_tokens_of_their_own(tokenizer: PreTrainedTokenizerFast) -> None:
    expression = "((12+3)*4-56)/(7-(8+9))=0"
    assert [tokenizer.decode([token]) for token in ids_of(tokenizer, expression)] == list(expression)


def test_a_countdown_prompt_costs_few_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_policy_path())
    env = CountdownEnv(num_numbers=4)
    for index in range(50):
        prompt = env.begin(env.tasks.task("test", index))
        assert len(ids_of(tokenizer, prompt)) <= 24, prompt


def test_a_turn_on_the_lake_costs_a_token_for_each_cell_and_one_for_the_move() -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_policy_path("small-frozenlake"))
    env = FrozenLakeEnv()
    for index in range(50):
        task = env.tasks.task("test", index)
        rules, _ = env.reset(options={"task": task.id})
        assert len(ids_of(tokenizer, rules)) <= 16 + 16, rules
        action = env.expert()
        assert len(ids_of(tokenizer, action)) == 1, action
        observation, *_ = env.step("stay")
        cells = [tokenizer.decode([token]).strip() for token in ids_of(tokenizer, observation)[-16:]]
        assert "".join(cells) == "".join(observation.split("\n\n")[1].split())


def test_the_ids_of_a_conversation_only_grow(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Make 80 from the numbers 3, 5, 10: use every number exactly once."},
        {"role": "assistant", "content": "3+5=8, 8+10=18 no\n<answer>(3+5)+10</answer>"},
        {"role": "user", "content": "Wrong: the expression is 18, not 80. Attempts left: 1."},
        {"role": "assistant", "content": "3+5=8, 8*10=80 yes\n<answer>(3+5)*10</answer>"},
        {"role": "user", "content": " 42 "},
    ]
    before: list[int] = []
    for length in range(1, len(messages) + 1):
        for ask in (False, True):
            ids = tokenizer.apply_chat_template(
                messages[:length], tokenize=True, add_generation_prompt=ask, return_dict=False
            )
            assert ids[: len(before)] == before
            if not ask or messages[length - 1]["role"] == "user":
                before = ids


def test_sampled_ids_and_the_template_agree(tokenizer: PreTrainedTokenizerFast) -> None:
    """What a policy samples after the generation prompt, up to its end, is what the template writes for it."""
    question, answer = {"role": "user", "content": "Make 80"}, {"role": "assistant", "content": "3+5=8"}
    asked = tokenizer.apply_chat_template([question], tokenize=True, add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template([question, answer], tokenize=True, return_dict=False)
    assert whole == [*asked, *ids_of(tokenizer, "3+5=8"), tokenizer.eos_token_id]


def test_special_tokens_are_set(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.is_fast
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id} - {None}) == 3
    assert len(tokenizer) <= 512
