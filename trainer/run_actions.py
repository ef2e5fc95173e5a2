"""What a run does when its endpoint is asked: pause, and resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from rollcage.monitor.endpoint import Action
from rollcage.recorder import Recorder
from rollcage.trainer.pause import Pause

ACTION_S = 20.0
"""Longest wait of the endpoint's thread for the run's event loop."""


class RunActions:
    """Pause and resume, as actions that are called in other threads.

    Args:
        pause: the run's switch.
        recorder: hears of every change, as events ``paused`` and ``resumed``.
    """

    def __init__(self, pause: Pause, recorder: Recorder) -> None:
        self._pause, self._recorder = pause, recorder

    def actions(self) -> dict[str, Action]:
        """Return the actions by name; called in the run's event loop."""
        loop = asyncio.get_running_loop()

        def in_loop(change: Callable[[], dict[str, Any]]) -> Action:
            def act(arguments: Mapping[str, Any]) -> dict[str, Any]:
                async def changed() -> dict[str, Any]:
                    return change()

                return asyncio.run_coroutine_threadsafe(changed(), loop).result(ACTION_S)

            return act

        return {"pause": in_loop(self._pause_now), "resume": in_loop(self._resume_now)}

    def _pause_now(self) -> dict[str, Any]:
        done = self._pause.pause()
        if done:
            self._recorder.event("paused", num_pauses=self._pause.num)
        told = "no sample and no update is begun until it is resumed; what is under way is finished"
        return {"done": done, "message": told if done else "it is paused already"}

    def _resume_now(self) -> dict[str, Any]:
        done = self._pause.resume()
        if done:
            self._recorder.event("resumed", paused_s=round(self._pause.total_s, 3), num_pauses=self._pause.num)
        return {"done": done, "message": "it goes on" if done else "it is not paused"}
