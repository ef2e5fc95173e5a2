"""The official games as `alfworld-download` lays them out: ``json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcage.envs.alfworld.source import LICENCE, PLACEHOLDER, SPLITS, TASK_TYPES, GameText, Row
from rollcage.errors import UserError

_GAME = "game.tw-pddl"
_GOAL = re.compile(r"(Your task is to: )([\w ,'-]+)(\.)")


@dataclass(frozen=True)
class DownloadSource:
    """A folder with a sub-folder for every split."""

    folder: Path
    licence: str = LICENCE

    @classmethod
    def find(cls, folder: Path) -> DownloadSource | None:
        """Return the games in ``folder`` or its ``json_2.1.1``, or None where there are none."""
        for root in (folder / "json_2.1.1", folder):
            if any((root / split).is_dir() and next((root / split).glob(f"*/*/{_GAME}"), None) for split in SPLITS):
                return cls(root.absolute())
        return None

    def rows(self) -> Mapping[str, Sequence[Row]]:
        """See `Source.rows`; as in alfworld, without tasks that move a receptacle or slice, of which there are none."""
        return {
            split: [
                {"id": name, "game": name, "task_type": path.parts[-3].partition("-")[0]}
                for path in sorted((self.folder / split).glob(f"*/*/{_GAME}"))
                if path.parts[-3].partition("-")[0] in TASK_TYPES and "Sliced" not in path.parts[-3]
                for name in (f"{path.parts[-3]}/{path.parts[-2]}",)
            ]
            for split in SPLITS
            if (self.folder / split).is_dir()
        }

    def text(self, task_id: str) -> GameText:
        """See `Source.text`."""
        path = self.folder / task_id / _GAME
        try:
            game = json.loads(path.read_text(encoding="utf-8"))
            grammar, goal = game["grammar"], _GOAL.search(game["grammar"])
            if goal:  # then all games share one grammar, which is read once
                grammar = grammar[: goal.start(2)] + PLACEHOLDER + grammar[goal.end(2) :]
            return GameText(
                game["pddl_domain"],
                game["pddl_problem"],
                grammar,
                goal and goal[2],
                tuple(game.get("walkthrough") or ()),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: cannot be read as a game ({error!r}); download the games again.") from None
