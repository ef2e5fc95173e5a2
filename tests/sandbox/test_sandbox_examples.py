"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

COMMANDS = ("looking", "opened", "running", "copying", "naming")
MODULES = ["archive", "opening", "manager.manager", "service.gate", *(f"commands.{it}" for it in COMMANDS)]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_are_true(module: str) -> None:
    result = doctest.testmod(import_module(f"rollcage.sandbox.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
