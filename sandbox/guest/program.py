"""The agent as one program: how its files get into a Python that has none of them."""

from __future__ import annotations

import json
import marshal
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import rollcage.sandbox.guest.agent

_FOLDER = Path(rollcage.sandbox.guest.agent.__file__).parent
_FILES = ("frames", "archives", "processes", "vitals", "pipes", "job", "loop", "shell", "requests")
"""Each after those that it imports."""


def _module(name: str) -> str:
    return f"{rollcage.sandbox.guest.agent.__name__}.{name}"


_SOURCE = json.dumps([(_module(name), (_FOLDER / f"{name}.py").read_text("utf-8")) for name in _FILES]).encode()
# Compiling the source takes longer than starting Python: where its version is this one's, there is no need to.
_CODE = marshal.dumps(
    [
        (module, SourceFileLoader(module, str(_FOLDER / f"{name}.py")).get_code(module))
        for name, module in ((name, _module(name)) for name in _FILES)
    ]
)
PROGRAM = _CODE + _SOURCE
"""What has to be written to the stdin of `agent_command`, before anything else."""
# A buffer of one byte, so that nothing behind the program is read.
_START = """
import io,marshal,sys,_frozen_importlib_external as f
r=io.BufferedReader(io.FileIO(0,closefd=False),1).read
c,s=r({num_code}),r({num_source})
if f.MAGIC_NUMBER=={magic}:p=marshal.loads(c)
else:
 import json
 p=[(n,compile(t,'<'+n+'>','exec'))for n,t in json.loads(s.decode())]
for n,c in p:
 m=sys.modules[n]=type(sys)(n)
 exec(c,m.__dict__)
del c,s,p
m.main()
"""


def agent_command(python: str = "python3") -> tuple[str, ...]:
    """Return the command that starts the agent, once `PROGRAM` is written to its stdin."""
    start = _START.format(num_code=len(_CODE), num_source=len(_SOURCE), magic=MAGIC_NUMBER)
    return (python, "-I", "-S", "-c", start)
