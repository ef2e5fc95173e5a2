"""The options of a loss or an advantage estimator: its keyword-only numbers, switches and words, checked by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rollcage.errors import did_you_mean

_ABOVE = {"dual_clip": 1.0, "cap": 0.0, "w_max": 0.0}
"""Options that must be above a bound; all other numbers must be at least 0."""

_AT_MOST = {"gamma": 1.0, "lam": 1.0}


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of ``function``: name -> type. What is no number, bool or Literal is an input, not an option.

    >>> from rollcage.trainer.learner.losses import cispo
    >>> options_of(cispo)
    {'e_lo': <class 'float'>, 'e_hi': <class 'float'>}
    """
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    types = {name: _without_none(hints[name]) for name in names}
    return {name: kind for name, kind in types.items() if kind in (float, bool) or get_origin(kind) is Literal}


def option_faults(what: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Iterable[str]:
    """Yield what is wrong with ``options``; ``what`` names the function's kind and name, as in ``loss 'tis'``."""
    known = options_of(function)
    for name, value in options.items():
        kind = known.get(name)
        if kind is None:
            names = ", ".join(known) or "it has none"
            yield f"unknown option of {what}: {name!r} (known: {names}){did_you_mean(name, known).rstrip('.')}"
        elif get_origin(kind) is Literal:
            words = [str(word) for word in get_args(kind)]
            if value not in words:
                hint = did_you_mean(str(value), words).rstrip(".")
                yield f"option {name} of {what} must be one of {', '.join(words)}, not {value!r}{hint}"
        elif kind is bool:
            if not isinstance(value, bool):
                yield f"option {name} of {what} must be true or false, not {value!r}"
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            yield f"option {name} of {what} must be a number of at least 0, not {value!r}"
        elif name in _ABOVE and value <= _ABOVE[name]:
            yield f"option {name} of {what} must be above {_ABOVE[name]:g}, not {value}"
        elif name in _AT_MOST and value > _AT_MOST[name]:
            yield f"option {name} of {what} must be at most {_AT_MOST[name]:g}, not {value}"


def _without_none(kind: Any) -> Any:
    rest = [part for part in get_args(kind) if part is not NoneType]
    return rest[0] if NoneType in get_args(kind) and len(rest) == 1 else kind
