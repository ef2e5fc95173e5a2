"""The texts that are analysed: given, from a data file, or recorded episodes; as token ids with the response marked."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcage.envs.prompts import question_of
from rollcage.errors import UserError
from rollcage.trainer.replay import read_records, read_trajectory
from rollcage.trainer.rollout.conversation import ChatFormat, Conversation
from rollcage.trainer.types import Generation, Trajectory

ANSWER_FIELDS = ("solution", "response", "completion", "answer", "output")
"""Where a data row's response is looked for, in this order."""


@dataclass(frozen=True, slots=True)
class Text:
    """One sequence.

    Attributes:
        name: for people.
        token_ids: [T].
        response: bool [T]; the tokens that are analysed. Never the first: nothing predicts it.
    """

    name: str
    token_ids: list[int]
    response: list[bool]

    def cut(self, length: int) -> Text:
        """Return its first ``length`` tokens."""
        return Text(self.name, self.token_ids[:length], self.response[:length])


def plain_text(tokenizer: Any, text: str, name: str, prompt: str = "") -> Text:
    """Return a text, all of it response where no ``prompt`` comes before.

    With a prompt, and where the tokenizer has a chat template, the two are a user's message and the reply to it.
    """
    if prompt and getattr(tokenizer, "chat_template", None):
        chat = ChatFormat(tokenizer)
        before = chat.first(prompt)
        reply = [*chat.encode(text), int(tokenizer.eos_token_id)]
    else:
        before = list(tokenizer.encode(_valid(prompt + "\n"))) if prompt else []
        reply = list(tokenizer.encode(_valid(text), add_special_tokens=not prompt))
    if not before:
        before, reply = reply[:1], reply[1:]
    return Text(name, before + reply, [False] * len(before) + [True] * len(reply))


def data_texts(tokenizer: Any, path: Path, num: int, seed: int = 0, drop: str = "") -> list[Text]:
    """Return questions with their responses from ``num`` rows of a JSON-lines file, drawn at random, in file order.

    Args:
        tokenizer: the model's.
        path: each row holds a question (`rollcage.envs.prompts.question_of`) and a response (`ANSWER_FIELDS`), or
            only a ``text``.
        num: how many; all rows where there are fewer.
        seed: of the draw.
        drop: regular expression; what matches is taken out of the responses.

    Raises:
        UserError: the file, a row or the expression cannot be read.
    """
    try:
        pattern = re.compile(drop) if drop else None
    except re.error as error:
        raise UserError(f"--drop {drop!r} is no regular expression ({error}).") from None
    try:
        lines = [line for line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line[1].strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a file of JSON lines.") from None
    chosen = sorted(random.Random(seed).sample(range(len(lines)), min(num, len(lines))))
    texts = []
    for number, line in (lines[place] for place in chosen):
        question, response = _row(f"{path}:{number}", line)
        if pattern is not None:
            response = pattern.sub("", response)
        texts.append(plain_text(tokenizer, response, f"{path.name}:{number}", question))
    if not texts:
        raise UserError(f"{path}: holds no row; give a file of JSON lines.")
    return texts


def recorded_texts(tokenizer: Any, source: Path, trajectory_id: str | None, num: int, seed: int = 0) -> list[Text]:
    """Return recorded episodes: all with one id or task id, or ``num`` of them drawn at random, in file order.

    Records with token ids are taken as they are; else the conversation is encoded again, which may split what was
    sampled into other tokens.

    Raises:
        UserError: there is no such record, or one cannot be read.
    """
    found: list[Text] = []
    for place, record in read_records(source):
        if trajectory_id is not None and trajectory_id not in (str(record.get("id")), record.get("task_id")):
            continue
        trajectory, _, _ = read_trajectory(place, record)
        group, member = trajectory.sample_id
        found += _episode(tokenizer, trajectory, f"{group}.{member} {trajectory.task_id}")
    if not found:
        which = "no episode" if trajectory_id is None else f"no episode with the id or task id {trajectory_id!r}"
        raise UserError(f"{source}: {which} that says anything.")
    if trajectory_id is not None or len(found) <= num:
        return found
    return [found[place] for place in sorted(random.Random(seed).sample(range(len(found)), num))]


def _row(place: str, line: str) -> tuple[str, str]:
    """Return the question ("" for none) and the response of a row."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place}: not valid JSON ({error}).") from None
    if not isinstance(row, Mapping):
        raise UserError(f"{place}: expected an object, found {type(row).__name__}.")
    if isinstance(row.get("text"), str):
        return "", row["text"]
    try:
        question = question_of(row)
    except ValueError as error:
        raise UserError(f"{place}: {error}, or a text in the field text.") from None
    for field in ANSWER_FIELDS:
        if isinstance(row.get(field), str) and row[field].strip():
            return question, row[field]
    raise UserError(f"{place}: no response: expected a text in one of the fields {', '.join(ANSWER_FIELDS)}.")


def _episode(tokenizer: Any, trajectory: Trajectory, name: str) -> Iterator[Text]:
    """Yield each stretch of an episode in which the model said something."""
    segments = trajectory.segments
    if not segments and trajectory.turns:
        chat = ChatFormat(tokenizer)
        conversation = Conversation(chat)
        observation = trajectory.prompt
        for turn in trajectory.turns:
            conversation.observe(observation)
            ids = chat.encode(turn.action)
            if turn.finish_reason == "stop":
                ids.append(int(tokenizer.eos_token_id))
            conversation.reply(Generation(ids, [0.0] * len(ids), [0] * len(ids), "stop"))
            observation = turn.observation
        segments = conversation.segments
    for number, segment in enumerate(segments):
        response = [place > 0 and bool(said) for place, said in enumerate(segment.loss_mask)]
        if any(response):
            yield Text(name + (f" part {number}" if len(segments) > 1 else ""), list(segment.token_ids), response)


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
