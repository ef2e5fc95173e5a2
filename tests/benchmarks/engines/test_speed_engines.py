"""``rollcage bench engines`` on a handful of requests."""

import json

import pytest

from rollcage.benchmarks.engines.speed import main
from rollcage.errors import UserError


def test_every_contender_is_measured_on_every_work_and_the_report_shows_it(tmp_path, capsys):
    report = tmp_path / "engines.md"
    assert main(["--scale", "0.03", "--repetitions", "1", "--report", str(report)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["rates"]) == {"at_once", "stream", "groups"}
    for work in result["rates"].values():
        for contender in ("local_engine", "vllm_engine", "generate", "generate_with_logprobs"):
            assert work[contender]["tokens_per_s"] > 0
        assert work["title"] in report.read_text()


def test_bad_arguments_are_one_line():
    with pytest.raises(UserError, match="above 0"):
        main(["--repetitions", "0"])
