"""What can go wrong with a sandbox: flat, typed, one root."""

from __future__ import annotations

from rollcage.errors import RollcageError, UserError


class SandboxError(RollcageError):
    """Root of the sandbox manager's errors."""


class SandboxNotFound(SandboxError):
    """There is no sandbox, session or snapshot of this id (or it has been deleted)."""


class SandboxUnavailable(SandboxError):
    """The sandbox cannot take the call: it died, is stopped, or does not answer.

    Attributes:
        state: the sandbox's state, such as "FAILED".
        exit_code: of its main process, None where it still runs or nobody knows.
        oom_killed: whether the kernel killed its main process for memory.
        log_tail: the last lines that its main process wrote.
    """

    def __init__(
        self,
        message: str,
        *,
        state: str = "",
        exit_code: int | None = None,
        oom_killed: bool = False,
        log_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.state, self.exit_code, self.oom_killed, self.log_tail = state, exit_code, oom_killed, log_tail


class SandboxRestarted(SandboxError):
    """The sandbox was replaced by a new life while the call was in flight; what the call did is lost with the old one.

    Attributes:
        generation: the new life's number.
    """

    def __init__(self, message: str, *, generation: int = 0) -> None:
        super().__init__(message)
        self.generation = generation


class StartFailed(SandboxError):
    """The sandbox did not become ready; nothing of it is left.

    Attributes:
        log_tail: the last lines that its main process wrote.
    """

    def __init__(self, message: str, *, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


class StartTimeout(StartFailed):
    """It was not ready by the start deadline."""


class DeadlineExceeded(SandboxError):
    """A call did not end by its outer deadline."""


class HostUnavailable(SandboxError):
    """A Docker host does not answer, answers too slowly (its circuit breaker is open), or is drained or quarantined."""


class Overloaded(SandboxError):
    """No host had room before the deadline of a creation."""


class DiskPressure(SandboxError):
    """A host has too little free disk for new sandboxes, or a sandbox's own file system is full."""


class NoSuchPath(SandboxError):
    """A path in the sandbox does not exist, or is not of the kind that was asked for."""


class UnsafePath(SandboxError):
    """An archive member leads out of its folder: "..", an absolute path, a link, or a device."""


class BadArchive(SandboxError):
    """What should be a tar archive is none, is empty, or is cut short."""


class InternalError(SandboxError):
    """What must not happen: a bug in the manager, its service or its agent. The service's log says more."""


class DaemonUnreachable(SandboxError, UserError):
    """No Docker daemon answers at the endpoint."""


class DaemonForbidden(SandboxError, UserError):
    """A Docker daemon is there, but this user may not talk to it."""


class ImageMissing(SandboxError, UserError):
    """The image is not on the host and could not be pulled."""


class BadSpec(SandboxError, UserError):
    """A specification asks for something that does not exist or that this host cannot give."""


class ServiceUnreachable(SandboxError, UserError):
    """No sandbox service answers at the address, or it went away during the call.

    Attributes:
        may_have_happened: the call may have been carried out; False: it certainly was not.
    """

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class Unauthorized(SandboxError, UserError):
    """The sandbox service refused the token, or there was none."""


class BadRequest(SandboxError, UserError):
    """The arguments of a call are none, or the service did not understand a request, or it was too large."""


class GuestLost(SandboxError):
    """The connection to the inside of a container ended: the manager finds out why and raises what its callers know."""
