"""What requests to the service carry, checked before anything runs. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from rollcage.sandbox.client.wire import bytes_of
from rollcage.sandbox.types import MIB, SandboxSpec

DAY_S = 86_400.0
MAX_OUTPUT_BYTES = 256 * MIB
"""Of one command, each of stdout and stderr: the answer is held in memory."""

Seconds = Annotated[float, Field(gt=0, le=DAY_S)]
NumBytes = Annotated[int, Field(ge=0, le=MAX_OUTPUT_BYTES)]


def _decoded(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError("must be base64 text")
    return bytes_of(text)


Base64 = Annotated[bytes, BeforeValidator(_decoded), WithJsonSchema({"type": "string", "format": "base64"})]


Name = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A key or an owner."""


class Body(BaseModel):
    """A JSON body."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Create(Body):
    """A sandbox to be; see `Sandboxes.create`."""

    spec: SandboxSpec
    key: Name = ""
    owner: Name = ""
    deadline_s: Seconds = 120.0


class Exec(Body):
    """A command; see `Sandbox.exec`."""

    command: str | list[str]
    timeout_s: Seconds = 60.0
    env: dict[str, str] = {}
    cwd: str = ""
    stdin: Base64 = b""
    max_output_bytes: NumBytes = MIB


class OpenSession(Body):
    """A shell; see `Sandbox.session`."""

    env: dict[str, str] = {}
    cwd: str = ""


class Run(Body):
    """A command of a shell; see `Session.run`."""

    command: str
    timeout_s: Seconds = 60.0
    max_output_bytes: NumBytes = MIB


class Restore(Body):
    """See `Sandbox.restore`."""

    snapshot_id: str = ""


class Fork(Body):
    """See `Sandbox.fork`."""

    key: Name = ""
    snapshot_id: str = ""


class Renew(Body):
    """See `Sandbox.renew`."""

    ttl_s: float | None = Field(default=None, ge=0)


class Drain(Body):
    """See `Sandboxes.drain`."""

    on: bool = True
