"""rollcage/ALFWorld-v0: household tasks in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollcage.envs.alfworld.engine import NOTHING, Game, State
from rollcage.envs.alfworld.games import GameTasks, OpenGame, find_source, open_game
from rollcage.envs.alfworld.planner import find_plan
from rollcage.envs.answers import outside_thinking
from rollcage.envs.core import TextEnv, Turn
from rollcage.envs.tasks import Task
from rollcage.errors import UserError

_INSTRUCTIONS = (
    "You have a task in a household. Each turn, answer with one command, such as <answer>go to desk 1</answer>; "
    "<answer>help</answer> lists the kinds of commands."
)


class Episode(NamedTuple):
    """Where an episode stands: the state, and commands that win from it as far as they are known."""

    state: State
    plan: tuple[str, ...] | None


class ALFWorldEnv(TextEnv):
    """Find, clean, heat, cool, light and put away things in a household.

    ## Description
    ALFWorld's text games: rooms with furniture and things, and one of six kinds of tasks. The games are the official
    ones, their rules are ALFRED's PDDL, translated by TextWorld's Fast Downward, and what is said comes from their own
    grammar. What is said, what is admissible and what wins is the same as in alfworld itself, whatever is played; only
    it takes less time: a game is translated once and kept in a cache on disk, and a step is a few operations on sets of
    bits. No state is global, so that games may be played in any number of threads and processes.

    ## Action Space
    `UnicodeText`. Thinking does not count (`rollcage.envs.answers`). What counts is the content of the last
    ``<answer>`` tag, which must be closed, or, where there is no tag, the whole message: one command, as written in
    ``admissible_commands`` (whitespace around it does not matter, case does). Anything else is answered with "Nothing
    happens." and changes nothing.

    ## Observation Space
    `UnicodeText`. First how to answer, the room and the task; then only what follows from the newest command. With
    ``show_admissible`` each ends with the list of admissible commands.

    ## Rewards
    1 when the task is done; plus ``progress_reward`` times the change of ``goal_progress``, minus ``step_penalty`` for
    every turn.

    ## Episode End
    Terminated when the task is done (success); truncated after ``max_turns``.

    ## Info
    - ``task_type``: one of the six, such as "pick_heat_then_place_in_recep".
    - ``valid_action``: whether the last command was admissible (true at the reset).
    - ``admissible_commands``: the commands that are admissible now, sorted.
    - ``goal_progress``: share of the goal's conditions that hold, 0 to 1, for the things with which most of them do. It
      may be above 0 at the reset (a lamp is on the table already).

    ## Tasks
    Splits train (3,553 games), valid_seen (140) and valid_unseen (134), and valid_train where the data have it. The
    official games come from alfworld's own download; see `rollcage data alfworld`.

    ## Policies
    ``expert`` follows the walkthrough that comes with a game. Where that was left, or there is none, it searches a plan
    from the state as it is, and raises UserError where the game cannot be won any more (with something in your hand
    that fits nowhere). ``expert_plan()`` returns all of its commands. ``random_action`` is an admissible command.

    ## Placement
    Any. For ``sandbox``, the image must have the games, and what translates them: ``rollcage sandbox images build env
    --requirement envs/alfworld/requirements.txt --data FOLDER/alfworld``. (``--extra alfworld`` brings much more.)

    ## Arguments
    - ``dataset``: "official", or "sample": 60 small games of our own, of the same types and under the same rules.
    - ``data_dir``: the only folder in which the official games are looked for.
    - ``split``: "train", "valid_seen" or "valid_unseen".
    - ``task_types``: only games of this type, or of these; None for all.
    - ``show_admissible``: list the admissible commands in every observation.
    - ``instructions``: begin the first observation with how to answer; without it, observations are alfworld's own.
    - ``progress_reward``: for all of the goal's conditions together; taken back where they are undone.
    - ``step_penalty``: subtracted for every turn.
    - ``max_turns``: turns until truncation; None for no limit.
    - ``render_mode``: None or "ansi".

    Raises:
        UserError: the games are not on this machine, or an argument is wrong.
        MissingExtra: at the first `reset`, where the extra ``alfworld`` is not installed.

    ## Version History
    - v0: first version.
    """

    tasks: GameTasks
    state: Episode

    def __init__(
        self,
        *,
        dataset: str = "official",
        data_dir: str | Path | None = None,
        split: str = "train",
        task_types: str | Sequence[str] | None = None,
        show_admissible: bool = False,
        instructions: bool = True,
        progress_reward: float = 0.0,
        step_penalty: float = 0.0,
        max_turns: int | None = 50,
        render_mode: str | None = None,
    ) -> None:
        tasks = GameTasks(f"alfworld-{dataset}", find_source(dataset, data_dir), task_types)
        super().__init__(tasks, split=split, max_turns=max_turns, render_mode=render_mode)
        self.show_admissible, self.instructions = show_admissible, instructions
        self.progress_reward, self.step_penalty = progress_reward, step_penalty

    def begin(self, task: Task) -> str:
        """See `TextEnv.begin`."""
        game, walkthrough = self._open()
        self.state = Episode(game.start, walkthrough or None)
        introduction = game.introduction()
        return self._shown(f"{_INSTRUCTIONS}\n\n{introduction}" if self.instructions else introduction)

    def reset_info(self) -> Mapping[str, Any]:
        """See `TextEnv.reset_info`."""
        return self._own_info(valid_action=True)

    def advance(self, action: str) -> Turn:
        """See `TextEnv.advance`."""
        game, (state, plan) = self._game, self.state
        command = _command(action)
        operator = game.commands(state).get(command)
        reward = 0.0 - self.step_penalty
        said = NOTHING
        if operator is not None:
            after, said = game.play(state, operator)
            reward += self.progress_reward * (game.progress(after) - game.progress(state))
            self.state = Episode(after, plan[1:] or None if plan and plan[0] == command else None)
        won = game.won(self.state.state)
        info = self._own_info(valid_action=operator is not None)
        return Turn(self._shown(said), reward + won, won, won, info)

    def expert_plan(self) -> list[str]:
        """Return commands that do the task from here.

        Raises:
            UserError: none were found.
        """
        if self.state.plan is None:
            self.state = Episode(self.state.state, tuple(find_plan(self._game, self.state.state)))
        return list(self.state.plan or ())

    def expert(self) -> str:
        """See `TextEnv.expert`."""
        plan = self.expert_plan()
        if not plan:
            raise UserError("the task is done: no command is left to give.")
        return f"<answer>{plan[0]}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        """See `TextEnv.random_action`."""
        commands = sorted(self._game.commands(self.state.state))
        return f"<answer>{commands[int(rng.integers(len(commands)))]}</answer>"

    def exploits(self) -> Sequence[str]:
        """Return whole plans in one message, and the last step of one alone."""
        plan = self.expert_plan()
        last = plan[-1:] if len(plan) > 1 else []
        return ("\n".join(plan), ", ".join(plan), f"<answer>{'; '.join(plan)}</answer>", *last)

    def _open(self) -> OpenGame:
        return open_game(self.tasks.source, self.task.id)

    @property
    def _game(self) -> Game:
        return self._open().game

    def _shown(self, said: str) -> str:
        if not self.show_admissible:
            return said
        return f"{said}\n\nAdmissible commands: {', '.join(sorted(self._game.commands(self.state.state)))}."

    def _own_info(self, *, valid_action: bool) -> dict[str, Any]:
        state = self.state.state
        return {
            "task_type": self.task.data["task_type"],
            "valid_action": valid_action,
            "admissible_commands": sorted(self._game.commands(state)),
            "goal_progress": self._game.progress(state),
        }


def _command(action: str) -> str:
    text = outside_thinking(action)
    _, opened, inside = text.rpartition("<answer>")
    if opened:
        text, closed, _ = inside.partition("</answer>")
        if not closed:
            return ""
    return text.strip()
