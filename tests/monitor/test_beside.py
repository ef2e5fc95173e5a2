"""The dashboard beside a run: there while the run is, gone with it, even where the run is killed."""

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.monitor.pages.recorded_run import write_config

from rollcage.monitor.beside import dashboard


def answers(address: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(address).port or 0, timeout=10)
    try:
        connection.request("GET", "/api/runs")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def test_it_is_there_meanwhile_and_gone_afterwards(tmp_path: Path) -> None:
    write_config(tmp_path / "run", seed=0, num_updates=1)
    with dashboard(tmp_path) as address:
        assert "/#token=" in address
        assert answers(address)
    assert not answers(address)


def test_a_run_that_is_killed_leaves_none_behind(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom rollcage.monitor.beside import dashboard\n"
        "with dashboard(Path(sys.argv[1])) as address:\n    print(address, flush=True)\n    time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        address = run.stdout.readline().strip()
        assert answers(address)
        os.kill(run.pid, signal.SIGKILL)
    ends_s = time.monotonic() + 20
    while answers(address) and time.monotonic() < ends_s:
        time.sleep(0.1)
    assert not answers(address)


def test_the_command_ends_at_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rollcage", "monitor", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        assert answers(monitor.stdout.readline().split()[-1])
        monitor.send_signal(signal.SIGTERM)
        _, errors = monitor.communicate(timeout=20)
    assert (monitor.returncode, errors) == (0, "")


@pytest.mark.parametrize("arguments", [["nowhere"], [".", "--port", "70000"], [".", "--host", "0.0.0.0"]])
def test_what_cannot_work_is_said_in_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rollcage.__main__ import main

    monkeypatch.chdir(tmp_path)
    assert main(["monitor", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rollcage monitor: ")
