"""One cycle: create, use, injure, recover, delete; after each step the promises that it puts to the test."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from rollcage.errors import RollcageError
from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.chaos.caller import Caller
from rollcage.sandbox.chaos.injuries import DEADLY, injure, may_end_so, spec_of
from rollcage.sandbox.chaos.keeper import Keeper
from rollcage.sandbox.chaos.ledger import Ledger
from rollcage.sandbox.chaos.proxy import OWNER
from rollcage.sandbox.chaos.schedule import Injury, Plan
from rollcage.sandbox.chaos.witness import Witness, until
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.drivers.base import Driver
from rollcage.sandbox.errors import SandboxNotFound
from rollcage.sandbox.types import ExecResult, RestartPolicy, State

CREATE_S = 30.0
NUM_TRIES = 4
SETTLE_S = 60.0
"""Longest recovery: the manager's patience with a daemon that hangs, several times over."""
TTL_S = 150.0
OPERATION_S = 40.0


@dataclass(frozen=True)
class Stage:
    """Where the cycles take place.

    Attributes:
        image: of the sandboxes.
        client: of the manager.
        keeper: of its process.
        witness, driver: at the daemon itself.
        ledger: of the run.
        seed: of the run.
        no_starts: see `rollcage.sandbox.chaos.proxy.Proxy.no_starts`.
        restart_daemon: kills the daemon and starts it again, where it is the harness's own.
    """

    image: str
    client: Client
    keeper: Keeper
    witness: Witness
    driver: Driver
    ledger: Ledger
    seed: int
    no_starts: Callable[[int], AbstractAsyncContextManager[None]]
    restart_daemon: Callable[[], Awaitable[None]] | None = None


class Cycle:
    """Runs one cycle.

    Args:
        stage: where.
        plan: what it does.
    """

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self._stage, self._plan, self._ledger = stage, plan, stage.ledger
        self._call = Caller(plan.number, stage.ledger)
        self._key = self._owner = f"{OWNER}{plan.number}"
        self._token = random.Random(f"{stage.seed}/{plan.number}/token").randbytes(48_000)
        self._has_checkpoint = False
        self._story: list[str] = []

    async def run(self) -> str:
        """Run it; returns what happened, in a line."""
        killer = asyncio.create_task(self._kill_manager())
        try:
            box = await self._create()
            if box is not None:
                await self._use(box)
                await self._suffer(box)
                await self._leave(box)
            await self._leave_nothing()
        finally:
            if "manager killed" not in self._story:
                killer.cancel()
            await asyncio.wait([killer])
        if not killer.cancelled():
            killer.result()
        return "; ".join(self._story)

    async def _kill_manager(self) -> None:
        if self._plan.kill_after_s is not None:
            await asyncio.sleep(self._plan.kill_after_s)
            self._story.append("manager killed")
            await self._restart_manager()

    async def _restart_manager(self) -> None:
        try:
            await self._stage.keeper.kill()
        except RollcageError as error:
            self._ledger.check("comes back", self._plan.number, False, str(error))
        else:
            self._ledger.check("comes back", self._plan.number, True, "")

    async def _create(self) -> Sandbox | None:
        """Create it, with several callers of one key; again, by the same key, where none of them got it."""
        spec, began_s = spec_of(self._plan, self._stage.image, TTL_S), asyncio.get_running_loop().time()

        async def create() -> Sandbox:
            return await self._stage.client.create(spec, key=self._key, owner=self._owner, deadline_s=CREATE_S)

        for _ in range(NUM_TRIES):
            await self._stage.keeper.up()
            calls = [self._call("create", create, CREATE_S) for _ in range(self._plan.num_callers)]
            answers = await asyncio.gather(*calls)
            boxes = [answer.value for answer in answers if answer.value is not None]
            ids = {box.id for box in boxes}
            if ids:
                text = f"{len(answers)} callers of one key got {len(ids)} sandboxes: {sorted(ids)}"
                self._ledger.check("one per key", self._plan.number, len(ids) == 1, text)
                break
            self._story.append(f"create: {answers[0]}")
        else:
            return None
        await self._learn_generation(boxes[0])
        await self._check_only(boxes[0].id)
        self._story.append(f"created in {asyncio.get_running_loop().time() - began_s:.1f} s")
        return boxes[0]

    async def _learn_generation(self, box: Sandbox) -> None:
        """From now on calls to it are made to its present life; where nobody says which that is, nothing is known."""
        self._call.generation = 0
        for _ in range(NUM_TRIES):
            await self._stage.keeper.up()
            info = (await self._call("info", box.info, 20.0)).value
            if info is not None:
                self._call.generation = info.generation
                return

    async def _check_only(self, sandbox_id: str) -> None:
        """After a while for the removal of what earlier tries left, the key has one sandbox, with one container."""

        async def holds() -> bool:
            return self._sandboxes() == {sandbox_id} and len(self._stage.witness.containers_of(sandbox_id)) == 1

        held = await until(holds, SETTLE_S)
        text = f"{self._key} is {sandbox_id}, but has containers of {sorted(self._sandboxes())}"
        self._ledger.check("one per key", self._plan.number, held or not self._sandboxes(), text)

    def _sandboxes(self) -> set[str]:
        return self._stage.witness.sandboxes_of(self._key)

    async def _use(self, box: Sandbox) -> None:
        for use in self._plan.uses:
            await self._stage.keeper.up()
            if use == "exec":
                await self._exec(box, "echo hello; echo oops >&2; exit 3", b"hello\n", 3)
            elif use == "deadline":
                command = "echo begun; sleep 60 & wait"
                answer = await self._call("exec", lambda c=command: box.exec(c, timeout_s=1.0), 1.0)  # type: ignore[misc]
                self._judge(answer.value, b"begun\n", None)
            elif use == "session":
                await self._session(box)
            elif use == "files":
                await self._files(box)
            else:
                await self._fork(box)
        if self._plan.snapshot:
            await self._stage.keeper.up()
            put = await self._call("put", lambda: box.put(self._token, "deep/checkpoint", timeout_s=20.0), 20.0)
            if put.ok:
                self._has_checkpoint = (await self._call("snapshot", box.snapshot, OPERATION_S)).ok

    async def _exec(self, box: Sandbox, command: str, stdout: bytes, exit_code: int, *, sure: bool = True) -> bool:
        """Run a command whose result is known; returns whether it was that. Where it is not ``sure``, it may fail."""
        answer = await self._call("exec", lambda: box.exec(command, timeout_s=5.0), 5.0)
        if sure:
            self._judge(answer.value, stdout, exit_code)
        return answer.value is not None and (answer.value.stdout, answer.value.exit_code) == (stdout, exit_code)

    def _judge(self, result: ExecResult | None, stdout: bytes, exit_code: int | None) -> None:
        """A result is the right one; ``exit_code`` None: of a command that was killed at its deadline."""
        if result is not None:
            right = result.timed_out if exit_code is None else result.exit_code == exit_code
            self._ledger.check("answer", self._plan.number, right and result.stdout == stdout, f"wrong: {result}")

    async def _session(self, box: Sandbox) -> None:
        session = (await self._call("session", box.session, 30.0)).value
        if session is None:
            return
        shell = session
        first = await self._call("session run", lambda: shell.run("x=41; cd /tmp", timeout_s=5.0), 5.0)
        if first.ok:
            second = await self._call("session run", lambda: shell.run("echo $((x + 1)) $PWD", timeout_s=5.0), 5.0)
            self._judge(second.value, b"42 /tmp\n", 0)
        await self._call("session close", shell.close, OPERATION_S)

    async def _files(self, box: Sandbox) -> None:
        if (await self._call("put", lambda: box.put(self._token, "new/folder/file", timeout_s=20.0), 20.0)).ok:
            await self._check_file(box, "new/folder/file", "answer")

    async def _check_file(self, box: Sandbox, path: str, promise: str) -> bool:
        """Read a file, which must be what was written; returns whether it could be read."""
        answer = await self._call("read", lambda: box.read(path), 60.0)
        if answer.value is not None or type(answer.error).__name__ == "NoSuchPath":
            got = f"{path} is {'gone' if answer.value is None else f'{len(answer.value)} other bytes'}"
            self._ledger.check(promise, self._plan.number, answer.value == self._token, got)
        return answer.ok

    async def _fork(self, box: Sandbox) -> None:
        if not (await self._call("put", lambda: box.put(self._token, "forked", timeout_s=20.0), 20.0)).ok:
            return
        fork = (await self._call("fork", lambda: box.fork(key=f"{self._key}-fork"), 120.0)).value
        if fork is not None:
            known = self._call.generation
            await self._learn_generation(fork)
            await self._check_file(fork, "forked", "restored")
            self._call.generation = known
            await self._call("delete", fork.delete, OPERATION_S)

    async def _suffer(self, box: Sandbox) -> None:
        """Injure it; then it is usable again, or has failed and says so, and files are as its policy promises."""
        await self._stage.keeper.up()
        if not self._call.generation:
            await self._learn_generation(box)
        before, began_s = self._call.generation, asyncio.get_running_loop().time()
        injury: str = self._plan.injury
        if self._plan.restart_daemon and self._stage.restart_daemon is not None:
            injury = "daemon restart"
            await self._stage.restart_daemon()
        elif self._plan.injury is Injury.SNAPSHOT_KILL:
            taking = asyncio.create_task(self._call("snapshot", box.snapshot, OPERATION_S))
            await asyncio.sleep(random.Random(self._token).uniform(0.0, 0.4))
            await self._restart_manager()
            await taking
        else:
            (container, *_) = [*self._stage.witness.containers_of(box.id), ""]
            driver, up, is_frozen = self._stage.driver, self._stage.keeper.up, self._plan.injury is Injury.PAUSE
            async with self._stage.no_starts(self._plan.number) if is_frozen else nullcontext():
                await injure(self._call, box, container, self._plan.injury, driver, up)
        deadly = injury in DEADLY or injury == "daemon restart"
        state = await self._settled(box, before if deadly else -1)
        self._story.append(f"{injury}: {state}")
        self._ledger.outcomes[f"{injury}: {state}"] += 1
        if state is not State.READY:
            return
        if self._call.generation > before:
            self._ledger.recoveries_s.append(asyncio.get_running_loop().time() - began_s)
            self._story[-1] += f", life {self._call.generation}"
        is_restored = self._plan.restart is RestartPolicy.RESTORE or injury is Injury.RESTORE
        if self._has_checkpoint and (is_restored or self._call.generation == before):
            await until(lambda: self._check_file(box, "deep/checkpoint", "restored"), SETTLE_S)

    async def _settled(self, box: Sandbox, ended: int) -> State | None:
        """Wait until it is usable, in a later life than ``ended``, or has failed; None where it does neither."""
        found: State | None = None

        async def holds() -> bool:
            nonlocal found
            await self._stage.keeper.up()
            answer = await self._call("info", box.info, 20.0)
            if answer.value is None:
                found = State.DELETED if isinstance(answer.error, SandboxNotFound) else None
                return found is not None
            found = answer.value.state
            if found is State.READY:
                sure = self._plan.injury is not Injury.FORK_BOMB  # of which some processes may still be about
                is_new = answer.value.generation > ended
                return is_new and await self._exec(box, "echo again", b"again\n", 0, sure=sure)
            return may_end_so(self._plan, found)

        held = await until(holds, SETTLE_S)
        text = f"{box.id} is {found} {SETTLE_S:g} s after {self._plan.injury} (policy {self._plan.restart})"
        self._ledger.check("settles", self._plan.number, held, text)
        return found

    async def _leave(self, box: Sandbox) -> None:
        await self._stage.keeper.up()
        if self._plan.abandon and (await self._call("renew", lambda: box.renew(1.0), 20.0)).ok:
            self._story.append("abandoned")
            return
        for _ in range(NUM_TRIES):
            await self._stage.keeper.up()
            if (await self._call("delete", box.delete, OPERATION_S)).ok:
                self._story.append("deleted")
                return

    async def _leave_nothing(self) -> None:
        """Delete what creations that nobody waits for any more may have made; then all of it is gone."""

        async def holds() -> bool:
            await self._stage.keeper.up()
            listed = await self._call("list", lambda: self._stage.client.list_sandboxes(owner=self._owner), 20.0)
            for info in listed.value or ():
                is_left = self._plan.abandon and info.state is not State.FAILED  # which stays for a while, to tell why
                if not (is_left and 0 < info.expires_at - info.created_at < TTL_S):
                    attached = await self._call("attach", lambda i=info.id: self._stage.client.attach(i), 20.0)  # type: ignore[misc]
                    if attached.value is not None:
                        await self._call("delete", attached.value.delete, OPERATION_S)
            return listed.value == [] and not self._sandboxes()

        held = await until(holds, SETTLE_S)
        self._ledger.check("gone", self._plan.number, held, f"containers of {sorted(self._sandboxes())} remain")
