"""The documentation pages: one for each environment, made of its docstring, complete, and linked in README's index."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import load_env_creator

from rollcage.__main__ import main
from rollcage.envs import RowTasks, TextEnv, register
from rollcage.envs.cli import describe, markdown_page
from rollcage.envs.registration import find_spec

ROOT = Path(__file__).parents[2]
ENV_IDS = sorted(env_id for env_id in gymnasium.registry if env_id.startswith("rollcage/"))
SECTIONS = (
    "Description",
    "Action Space",
    "Observation Space",
    "Rewards",
    "Episode End",
    "Info",
    "Arguments",
    "Version History",
)


def missing_sections(page: str) -> list[str]:
    """Return the sections that a page lacks, or has without a word in them."""
    found = dict(re.findall(r"^## (.+?)\n+((?:(?!## ).*\n?)*)", page, re.MULTILINE))
    return [name for name in SECTIONS if not found.get(name, "").strip()]


def unexplained_arguments(page: str, creator: object) -> list[str]:
    """Return the arguments that the section about them does not name."""
    section = page.partition("\n## Arguments\n")[2].partition("\n## ")[0]
    return [name for name in inspect.signature(creator).parameters if f"``{name}``" not in section]  # type: ignore[arg-type]


def page_of(env_id: str) -> str:
    return markdown_page(describe(find_spec(env_id), {}))


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_every_environment_has_a_complete_page(env_id: str) -> None:
    creator = load_env_creator(str(find_spec(env_id).entry_point))
    page = page_of(env_id)
    assert missing_sections(page) == []
    assert unexplained_arguments(page, creator) == []
    summary = (inspect.getdoc(creator) or "").partition("\n")[0]
    assert page.startswith(f"# {env_id}\n\n{summary}\n")
    assert max(map(len, page.splitlines())) <= 200


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_the_page_in_the_repository_is_the_docstrings_and_the_index_links_it(env_id: str) -> None:
    path = f"envs/pages/{env_id.partition('/')[2]}.md"
    how = f"make it anew:  rollcage envs {env_id} --markdown >{path}"
    assert (ROOT / path).is_file(), how
    assert (ROOT / path).read_text(encoding="utf-8") == page_of(env_id), how
    assert f"| [`{env_id}`]({path}) |" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_page_is_about_an_environment_that_is_gone() -> None:
    pages = {f"rollcage/{path.stem}" for path in (ROOT / "envs" / "pages").glob("*.md")}
    assert pages <= set(ENV_IDS)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_page_without_a_section_or_with_an_empty_one_is_found(name: str) -> None:
    page = page_of("rollcage/Countdown-v0")
    heading = f"## {name}\n"
    assert missing_sections(page.replace(heading, "")) == [name]
    body = page.partition(heading)[2].partition("\n## ")[0]
    assert missing_sections(page.replace(body, "\n")) == [name]


def test_an_argument_that_is_not_explained_is_found() -> None:
    class Undocumented(TextEnv):
        """Says nothing.

        ## Arguments
        - ``known``: explained.
        """

        def __init__(self, known: int, unknown: int) -> None: ...

    assert unexplained_arguments(inspect.getdoc(Undocumented) or "", Undocumented) == ["unknown"]


def test_the_command_prints_the_page_of_ones_own_too(capsys: pytest.CaptureFixture[str]) -> None:
    class Own(TextEnv):
        """Mine."""

        def __init__(self, needed: int, size: int = 3) -> None:
            super().__init__(RowTasks("own", {"train": [{}]}))

    register("page/Own-v0", Own, needed=7)
    try:
        assert main(["envs", "page/Own-v0", "--markdown"]) == 0
    finally:
        del gymnasium.registry["page/Own-v0"]
    page = capsys.readouterr().out
    assert page.startswith("# page/Own-v0\n\nMine.\n\n## Making One\n")
    assert '    "page/Own-v0",\n    needed=7,\n    size=3,\n)' in page
    for wrong in (["envs", "--markdown"], ["envs", "rollcage/QA-v0", "--markdown", "--json"]):
        assert main(wrong) == 2
        assert "--markdown needs the id" in capsys.readouterr().err
