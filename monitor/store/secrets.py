"""Configuration values that nobody shall see on a page: masked by their names."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"

_SECRET = re.compile(
    r"(^|[_.\-])(api_?key|key|token|access_token|auth|authorization|password|passwd|passphrase|secret|credentials?|"
    r"bearer|cookie|webhook)$|password|secret",
    re.IGNORECASE,
)
_IN_TEXT = re.compile(
    r"(?i)(--?[\w.-]*(?:key|token|password|passwd|secret|credentials?|webhook)(?:\s+|=)"
    r"|(?<![a-z])(?:api[_-]?key|token|password|passwd|secret)=)(\S+)"
    r"|(://[^/\s:@]*:)[^/\s@]+(?=@)"
)


def masked(value: Any) -> Any:
    """Return ``value`` with whatever is called like a secret masked, at every depth.

    In text, what follows such a name (``--api-key X``, ``password=X``) and passwords in addresses are masked.
    """
    if isinstance(value, dict):
        return {
            key: MASK if _SECRET.search(str(key)) and item not in (None, "", 0, False) else masked(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    if isinstance(value, str):
        return _IN_TEXT.sub(lambda found: (found[1] or found[3]) + MASK, value)
    return value
