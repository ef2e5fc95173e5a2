"""Tools that an agent calls in text: declared, read from what a model writes, carried out in a sandbox."""

from rollcage.envs.tools.calls import Malformed, ToolCall, example, usage, write_call
from rollcage.envs.tools.declared import BASH, EDIT, PYTHON, SUBMIT, VIEW, Tool
from rollcage.envs.tools.formats import parse_calls
from rollcage.envs.tools.toolbox import Computer, Toolbox

__all__ = [
    "BASH",
    "EDIT",
    "PYTHON",
    "SUBMIT",
    "VIEW",
    "Computer",
    "Malformed",
    "Tool",
    "ToolCall",
    "Toolbox",
    "example",
    "parse_calls",
    "usage",
    "write_call",
]
