"""The text space of every Rollcage environment: any Python string, whatever it holds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rollcage.errors import UserError

_SAMPLE_RANGES = ((0x20, 0x7F), (0xA0, 0x2FF), (0x370, 0x5FF), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF))


class UnicodeText(gymnasium.Space[str]):
    """All strings of at most ``max_length`` characters, empty, NUL and lone surrogates included.

    `gymnasium.spaces.Text` needs an explicit alphabet and refuses everything outside it, which no language model
    keeps to; this space accepts all of Unicode.

    Args:
        max_length: longest accepted string, in characters; None for no limit.
        seed: seed of the space's own generator, used by `sample`.

    Raises:
        UserError: ``max_length`` is negative.

    >>> "\\ud800 any text \\x00" in UnicodeText()
    True
    """

    def __init__(self, max_length: int | None = None, seed: int | np.random.Generator | None = None) -> None:
        if max_length is not None and max_length < 0:
            raise UserError(f"max_length must be at least 0, or None, not {max_length}.")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed length, so it cannot become a flat array."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return up to 32 random characters of several scripts; ``mask`` and ``probability`` are not used."""
        longest = 32 if self.max_length is None else min(32, self.max_length)
        length = int(self.np_random.integers(0, longest + 1))
        ranges = self.np_random.integers(0, len(_SAMPLE_RANGES), length)
        return "".join(chr(int(self.np_random.integers(*_SAMPLE_RANGES[r]))) for r in ranges)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string within the length limit."""
        return isinstance(x, str) and (self.max_length is None or len(x) <= self.max_length)

    def __repr__(self) -> str:
        """Return the constructor call."""
        return f"UnicodeText(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        """Spaces are equal where their limits are."""
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    __hash__ = None  # type: ignore[assignment]  # mutable (it holds a generator), as Gymnasium's own spaces
