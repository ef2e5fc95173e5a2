"""The report of a run: pictures, transcripts, and a page that says what happened."""

from pathlib import Path

from rollcage.monitor.report import write_report
from rollcage.monitor.run_folder import RunFolder


def evaluation(when: str, rate: float) -> dict[str, object]:
    sample = {
        "task_id": "test/1",
        "prompt": "Make 80 from 3, 5, 10 <b>",
        "turns": [{"action": f"{when}: <answer>8*10</answer> \ud800", "observation": "Wrong."}],
        "success": when == "after",
        "failure": None,
        "return": float(when == "after"),
    }
    return {
        "when": when,
        "name": "procedural",
        "num_tasks": 100,
        "num_scored": 98,
        "success_rate": rate,
        "success_ci95": [rate - 0.1, rate + 0.1],
        "mean_reward": rate,
        "failures": {"infra": 2},
        "samples": [sample],
    }


def test_the_report_shows_gain_overlap_account_and_the_same_task_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    run = RunFolder(tmp_path)
    run.write("evaluations", evaluation("before", 0.3))
    for version in range(1, 6):
        start_s = 100.0 + version
        run.span("learner", "wait", start_s, start_s + 0.2)
        run.span("learner", "train", start_s + 0.2, start_s + 0.9)
        run.span("learner", "publish", start_s + 0.9, start_s + 1.0)
        for step in range(2):
            run.gauge("sampled_tokens", 100.0 * (2 * version + step), at_s=start_s + step / 2)
            run.gauge("running_episodes", 8, at_s=start_s + step / 2)
        run.metrics(
            {
                "rollout/reward": 0.1 * version,
                "time/elapsed_s": version,
                "account/failed": 2,
                "learner/critic_mean_explained_variance": 0.1 * version,
                "learner/critic_advantage_masked": 0.2,
                "learner/rhythm_gamma_mean": 1.25,
            },
            policy_version=version,
        )
    run.write("evaluations", evaluation("after", 0.55))
    run.close()
    folder = write_report(tmp_path, command="rollcage train countdown-small --seed 3")
    page = (folder / "README.md").read_text()
    assert "**procedural: +25.0 points.**" in page
    assert "infra 2" in page
    assert "trained 70 % of the time, waited for samples 20 %" in page
    assert "In 100 % of the moments" in page
    assert "Critics, at the last update: explained variance 0.50, advantages masked 20%." in page
    assert "Attention rhythm, at the last update: mean factor 1.25." in page
    assert "rollcage train countdown-small --seed 3" in page
    for name in ("curves.png", "timeline.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert (folder / name).stat().st_size > 10_000
    transcripts = (folder / "transcripts.md").read_text()
    assert transcripts.index("**before** (wrong") < transcripts.index("**after** (right")
    assert "&lt;answer&gt;8*10" in transcripts  # shown as text, whatever the model wrote
