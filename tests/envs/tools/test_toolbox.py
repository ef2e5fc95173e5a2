"""The tools bash, python, view and edit, carried out in a real sandbox (of processes: no Docker is needed)."""

import pytest

from rollcage.envs.tools import Toolbox, ToolCall
from rollcage.envs.tools.toolbox import shorten
from rollcage.sandbox.sync import SyncSandboxes
from rollcage.sandbox.types import SandboxSpec


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    with SyncSandboxes(folder=tmp_path_factory.mktemp("tools"), endpoints=("process:",)) as sandboxes:
        box = sandboxes.create(SandboxSpec())
        yield box
        box.delete()


@pytest.fixture
def tools(box):
    box.exec("rm -rf ./*")
    return Toolbox(box, timeout_s=10.0, max_output_chars=1000)


def run(tools, name, **arguments):
    return tools.call(ToolCall(name, arguments))


def test_bash_shows_both_outputs_in_their_order_and_the_exit_code(tools):
    assert run(tools, "bash", command="echo a; echo b >&2; echo c; exit 3") == "a\nb\nc\n(exit code 3)"
    assert run(tools, "bash", command="true") == "(exit code 0)"
    assert run(tools, "bash", command="kill -9 $$") == "(ended by signal 9)"
    assert run(tools, "bash", command="if").endswith("(exit code 2)")
    assert run(tools, "bash", command=r"printf '\377ok'") == "\ufffdok\n(exit code 0)"


def test_bash_is_bash_and_every_command_starts_anew(tools):
    assert (
        run(tools, "bash", command="[[ a == a ]] && mkdir d && cd d && x=1 && pwd | grep -c /d$") == "1\n(exit code 0)"
    )
    assert run(tools, "bash", command='echo "${x-unset}"; ls') == "unset\nd\n(exit code 0)"


def test_long_output_loses_its_middle_and_says_so(tools):
    told = run(tools, "bash", command="seq 100000")
    assert len(told) <= 1000
    assert told.startswith("1\n2\n")
    assert told.endswith("100000\n(exit code 0)")
    assert "characters left out" in told


def test_a_message_has_so_much_time_and_what_was_said_until_then_is_kept(box):
    tools = Toolbox(box, timeout_s=1.0)
    told = run(tools, "bash", command="echo started; sleep 60")
    assert told == "started\n(killed: a message's commands may take 1 s together)"
    tools.begin_turn()
    assert run(tools, "bash", command="echo again") == "again\n(exit code 0)"


def test_a_command_longer_than_the_kernel_takes_is_refused_in_words(tools):
    assert "write a file with the tool edit" in run(tools, "bash", command="#" * 200_000)


def test_python_runs_a_program(tools):
    assert run(tools, "python", code="import sys\nprint(6 * 7)\nsys.exit(4)") == "42\n(exit code 4)"
    assert "ZeroDivisionError" in run(tools, "python", code="1 / 0")


def test_view_shows_lines_with_their_numbers_or_a_folder(tools):
    run(tools, "bash", command="mkdir -p d/e; printf 'a\\nb\\nc\\n' >d/f; touch d/empty; printf '\\0' >d/bin")
    assert run(tools, "view", path="d/f") == "     1\ta\n     2\tb\n     3\tc"
    assert run(tools, "view", path="d/f", start_line=2, end_line=2) == "     2\tb"
    assert run(tools, "view", path="d/f", start_line=2, end_line=99) == "     2\tb\n     3\tc"
    assert run(tools, "view", path="d/f", start_line=9) == "d/f has 3 lines: there are none from 9 to 3."
    assert run(tools, "view", path="d") == "bin\ne/\nempty\nf\n"
    assert run(tools, "view", path="d/e") == "(an empty folder)"
    assert run(tools, "view", path="d/empty") == "(an empty file)"
    assert "is no text file" in run(tools, "view", path="d/bin")
    assert "No such file" in run(tools, "view", path="d/none")


def test_edit_replaces_what_stands_there_once_and_makes_new_files(tools):
    assert run(tools, "edit", path="new/a.txt", old="", new="one two\n") == "new/a.txt is written."
    assert run(tools, "edit", path="new/a.txt", old="two", new="three\ntwo") == "new/a.txt is written."
    assert run(tools, "bash", command="cat new/a.txt") == "one three\ntwo\n(exit code 0)"
    assert "is not in new/a.txt" in run(tools, "edit", path="new/a.txt", old="four", new="")
    assert "stands 3 times in" in run(tools, "edit", path="new/a.txt", old="e", new="")
    assert "is there already" in run(tools, "edit", path="new/a.txt", old="", new="x")
    assert "is a folder" in run(tools, "edit", path="new", old="", new="x")
    assert "cannot be read" in run(tools, "edit", path="none", old="x", new="y")
    assert "cannot be written" in run(tools, "edit", path="new/a.txt/b", old="", new="y")
    assert run(tools, "bash", command="cat new/a.txt") == "one three\ntwo\n(exit code 0)"


def test_edit_keeps_a_files_mode_and_bytes_that_are_no_text(tools):
    run(tools, "bash", command=r"printf '\377one\r\n' >f; chmod 755 f")
    assert run(tools, "edit", path="f", old="one", new="two") == "f is written."
    assert run(tools, "bash", command="stat -c %a f; od -c f | head -1 | tr -s ' '") == (
        "755\n0000000 377 t w o \\r \\n\n(exit code 0)"
    )


def test_paths_are_never_options_or_code(tools):
    assert "written" in run(tools, "edit", path="-n $(touch evil) 'x", old="", new="y\n")
    assert run(tools, "view", path="-n $(touch evil) 'x") == "     1\ty"
    assert "evil" not in run(tools, "bash", command="ls -- [!-]* 2>/dev/null").splitlines()


def test_shorten_never_exceeds_its_limit():
    for length in (0, 5, 59, 60, 61, 1000):
        for limit in (60, 100):
            assert len(shorten("x" * length, limit)) <= limit
