"""Registration: one call makes an environment known to Gymnasium, and errors name what was wrong."""

import subprocess
import sys
import warnings

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from rollcage.envs import GeneratedTasks, TextEnv, Turn, find_spec, make, register
from rollcage.envs.registration import register_builtin_envs
from rollcage.errors import UserError


class EchoEnv(TextEnv):
    """Says what it is told."""

    def __init__(self, *, loud=False, render_mode=None):
        super().__init__(GeneratedTasks("echo", {"train": 3}, lambda split, index: {}), render_mode=render_mode)
        self.loud = loud

    def begin(self, task):
        return "Say something."

    def advance(self, action):
        return Turn(action.upper() if self.loud else action, 1.0, True, True)


@pytest.fixture
def new_id():
    env_id = "test/Echo-v0"
    yield env_id
    gymnasium.registry.pop(env_id, None)


def test_one_call_makes_a_class_an_environment(new_id):
    register(new_id, EchoEnv, loud=True)
    env = gymnasium.make(new_id)
    env.reset(seed=0)
    assert env.step("hi")[0] == "HI"
    assert gymnasium.make(new_id, loud=False).unwrapped.loud is False


def test_an_importable_class_is_registered_by_name_so_that_other_processes_can_build_it(new_id):
    from rollcage.envs.frozen_lake.env import FrozenLakeEnv

    register(new_id, FrozenLakeEnv, size=5)
    spec = find_spec(new_id)
    assert spec.entry_point == "rollcage.envs.frozen_lake.env:FrozenLakeEnv"
    assert EnvSpec.from_json(spec.to_json()).kwargs == {"size": 5}


def test_a_class_that_cannot_be_imported_by_name_is_kept_as_it_is(new_id):
    class Local(EchoEnv):
        pass

    register(new_id, Local)
    assert find_spec(new_id).entry_point is Local
    assert isinstance(gymnasium.make(new_id).unwrapped, Local)


def test_an_entry_point_in_words_is_imported_at_the_first_make_only(new_id):
    register(new_id, "no.such.module:Env")
    find_spec(new_id)
    with pytest.raises(UserError, match=f"{new_id}: No module named 'no'"):
        make(new_id)


def test_no_wrapper_of_gymnasium_stands_between(new_id):
    register(new_id, EchoEnv)
    assert type(gymnasium.make(new_id)) is EchoEnv


def test_registering_the_builtin_environments_again_changes_nothing():
    before = dict(gymnasium.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_builtin_envs()
    assert dict(gymnasium.registry) == before
    assert {"rollcage/Countdown-v0", "rollcage/FrozenLake-v0", "rollcage/Sokoban-v0"} <= before.keys()


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("rollcage/Sokobahn-v0", "Did you mean 'rollcage/Sokoban-v0'"),
        ("rolcage/Countdown-v0", "Did you mean 'rollcage/Countdown-v0'"),
        ("rollcage/FrozenLake", "Did you mean 'rollcage/FrozenLake-v0'"),
        ("qqqqqq", "module:namespace/Name-v0"),
        ("", "module:namespace/Name-v0"),
    ],
)
def test_an_unknown_id_gets_a_hint(env_id, hint):
    with pytest.raises(UserError, match=hint) as error:
        find_spec(env_id)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=hint):
        make(env_id)


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "echo_of_a_user.py").write_text(
        "from rollcage.envs import register\nregister('user/Echo-v0', 'rollcage.envs.frozen_lake.env:FrozenLakeEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert find_spec("echo_of_a_user:user/Echo-v0").id == "user/Echo-v0"
    assert make("echo_of_a_user:user/Echo-v0", size=5).unwrapped.max_turns == 20
    gymnasium.registry.pop("user/Echo-v0")


def test_a_command_finds_a_module_in_the_folder_where_it_is_called(tmp_path):
    (tmp_path / "echo_beside_a_user.py").write_text(
        "from rollcage.envs import register\nregister('user/Echo-v0', 'rollcage.envs.frozen_lake.env:FrozenLakeEnv')\n"
    )
    command = [
        sys.executable,
        "-P",
        "-m",
        "rollcage",
        "eval",
        "echo_beside_a_user:user/Echo-v0",
    ]  # -P: as an installed command
    arguments = ["--policy", "expert", "--num-tasks", "3", "--json"]
    done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"success_rate": 1.0' in done.stdout


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("1 +", "SyntaxError: invalid syntax"),
        ("raise ValueError('two\\nlines')", "ValueError: two"),
    ],
)
def test_a_module_that_fails_at_import_is_one_line_whatever_it_raises(tmp_path, monkeypatch, code, reason):
    (tmp_path / "broken_module_of_a_user.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="cannot import the module 'broken_module_of_a_user'") as error:
        find_spec("broken_module_of_a_user:user/Echo-v0")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is not None, "the traceback is kept for those who want it"


@pytest.mark.parametrize("module", ["no_such_module", ".relative", "a b", "../path"])
def test_a_module_that_is_not_there_is_one_line(module):
    with pytest.raises(UserError, match="cannot import the module"):
        find_spec(f"{module}:user/Echo-v0")


def test_a_wrong_argument_is_named_with_the_id():
    with pytest.raises(UserError, match=r"rollcage/FrozenLake-v0: .*'sise'"):
        make("rollcage/FrozenLake-v0", sise=4)


def test_a_fresh_interpreter_knows_the_environments_and_loads_nothing_heavy():
    code = (
        "import sys, gymnasium, rollcage; gymnasium.make('rollcage/FrozenLake-v0').reset(seed=0); "
        "gymnasium.make('rollcage/Sokoban-v0').reset(seed=0); "
        "heavy = {'torch', 'transformers', 'docker', 'math_verify', 'fastapi', 'ray'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
