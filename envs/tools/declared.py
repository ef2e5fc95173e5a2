"""The tools that environments share, declared as chat templates want them: name, description, JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Tool = Mapping[str, Any]
"""{"name", "description", "parameters": JSON schema of type "object"}: what stands in `TextEnv.tools`."""


def _tool(name: str, description: str, required: Sequence[str] = (), **properties: tuple[str, str]) -> Tool:
    schemas = {key: {"type": kind, "description": text} for key, (kind, text) in properties.items()}
    parameters = {"type": "object", "properties": schemas, "required": list(required)}
    return {"name": name, "description": description, "parameters": parameters}


BASH = _tool(
    "bash",
    "Run a command in a new bash shell; returns its output and exit code. Directory and variables do not stay.",
    ["command"],
    command=("string", "what to run"),
)
PYTHON = _tool(
    "python",
    "Run a Python program; returns its output and exit code.",
    ["code"],
    code=("string", "the program"),
)
VIEW = _tool(
    "view",
    "Show a file with line numbers, or what is in a folder.",
    ["path"],
    path=("string", "file or folder"),
    start_line=("integer", "first line to show, from 1"),
    end_line=("integer", "last line to show"),
)
EDIT = _tool(
    "edit",
    "Replace text that stands exactly once in a file; an empty `old` makes a new file of `new`.",
    ["path", "old", "new"],
    path=("string", "the file"),
    old=("string", "text to replace, spaces and line ends as in the file"),
    new=("string", "what stands there afterwards"),
)
SUBMIT = _tool("submit", "Hand in the work as it stands; this ends the episode.")
