"""Distributions that a seed draws from: lognormal, Gaussian cut at zero, empirical, constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Protocol

_NORMAL = NormalDist()


class Draws(Protocol):
    """A distribution of non-negative numbers (seconds, tokens, turns)."""

    @property
    def mean(self) -> float:
        """Expected value."""
        ...

    def quantile(self, share: float) -> float:
        """Return the value that a ``share`` of (0, 1) of the draws does not exceed."""
        ...


def uniform(seed: int) -> float:
    """Return the number inside (0, 1) that ``seed`` draws."""
    return ((seed >> 11) + 0.5) / 2**52


def draw(draws: Draws, seed: int) -> float:
    """Return the value that ``seed`` (63 bits, as of `key_seed`) draws."""
    return draws.quantile(uniform(seed))


@dataclass(frozen=True)
class Constant:
    """Always ``value``."""

    value: float

    @property
    def mean(self) -> float:
        """See `Draws`."""
        return self.value

    def quantile(self, share: float) -> float:
        """See `Draws`."""
        return self.value


@dataclass(frozen=True)
class Lognormal:
    """A long tail: with sigma = 0.94 the longest of 1,024 draws is about 20 medians.

    Attributes:
        median: of the distribution before the cut.
        sigma: of the logarithm.
        longest: draws beyond it are cut to it (a response that meets its token limit).
    """

    median: float
    sigma: float = 0.94
    longest: float = math.inf

    @property
    def mean(self) -> float:
        """See `Draws`."""
        whole = self.median * math.exp(self.sigma**2 / 2)
        if math.isinf(self.longest) or self.sigma == 0:
            return min(whole, self.longest)
        cut = math.log(self.longest / self.median) / self.sigma
        return whole * _NORMAL.cdf(cut - self.sigma) + self.longest * (1 - _NORMAL.cdf(cut))

    def quantile(self, share: float) -> float:
        """See `Draws`."""
        return min(self.median * math.exp(self.sigma * _NORMAL.inv_cdf(share)), self.longest)

    @classmethod
    def of_mean(cls, mean: float, sigma: float = 0.94) -> Lognormal:
        """Return the uncut distribution with this mean."""
        return cls(mean / math.exp(sigma**2 / 2), sigma)


@dataclass(frozen=True)
class Gaussian:
    """Normal; what would be negative is 0, so that the mean is a little above ``centre`` where ``std`` is large.

    Attributes:
        centre, std: of the distribution before the cut.
    """

    centre: float
    std: float

    @property
    def mean(self) -> float:
        """See `Draws`."""
        if self.std == 0:
            return max(self.centre, 0.0)
        cut = self.centre / self.std
        return self.centre * _NORMAL.cdf(cut) + self.std * _NORMAL.pdf(cut)

    def quantile(self, share: float) -> float:
        """See `Draws`."""
        return max(self.centre + self.std * _NORMAL.inv_cdf(share), 0.0)


@dataclass(frozen=True)
class Empirical:
    """What was measured, each value as likely as any other.

    Attributes:
        values: at least one, in ascending order.
    """

    values: Sequence[float] = field(repr=False)

    @property
    def mean(self) -> float:
        """See `Draws`."""
        return fmean(self.values)

    def quantile(self, share: float) -> float:
        """See `Draws`."""
        return self.values[int(share * len(self.values))]
