"""`rollcage rhythm` as a user meets it, on the small policy that ships."""

import json
from pathlib import Path

import pytest

from rollcage.__main__ import main
from rollcage.trainer.analysis.texts import data_texts, plain_text, recorded_texts
from rollcage.trainer.models import load_tokenizer
from rollcage.trainer.policies import small_policy_path

WORDS = "90-89=1, 31*1=31 no\n90+31=121, 121-89=32 no\n89-31=58, 90-58=32 no\n<answer>31*(90-89)</answer>"
EPISODE = {
    "id": "8.7",
    "env_id": "rollcage/Countdown-v0",
    "task_id": "train/1",
    "prompt": "Make 30 from the numbers 90, 31, 89.",
    "turns": [
        {"action": WORDS, "observation": "Wrong: 31 is not 30. <script>alert(1)</script>", "finish_reason": "stop"},
        {"action": "31-1=30 yes", "observation": "", "finish_reason": "length"},
    ],
}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["rhythm", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_text_with_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    options = ("--perturb", 2, "--horizon", 5, "--h-hi", 50, "--output", output, "--json")
    code, out, _ = run(capsys, "small", "--text", WORDS, "--prompt", EPISODE["prompt"], *options)
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert set(summary["couplings"]) == {"entropy_at_waad_peaks", "receiver_heads_agree", "waad_peaks_lead"}
    assert all(
        coupling["ci95"] is None for coupling in summary["couplings"].values()
    )  # one text says nothing of others
    assert [(effect["kind"], effect["num_tokens"]) for effect in summary["perturbation"]] == [
        ("anchor", 2),
        ("preplan", 2),
        ("random", 2),
    ]
    assert sorted(file.name for file in output.iterdir()) == [
        "couplings.png",
        "rhythm.html",
        "rhythm.json",
        "text-0.png",
    ]
    assert (output / "text-0.png").read_bytes().startswith(b"\x89PNG")
    (text,) = json.loads((output / "rhythm.json").read_text())["texts"]
    said = [text["tokens"][position] for position in text["positions"]]
    assert "".join(said).startswith(WORDS)
    assert len(text["waad"]) == len(text["fai"]) == len(text["anchors"]) == len(said)


def test_recorded_episodes_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "episodes.jsonl").write_text(json.dumps(EPISODE) + "\n" + json.dumps(EPISODE | {"id": "9.0"}) + "\n")
    code, out, _ = run(capsys, "small", "--run", tmp_path, "--num", 2, "--output", tmp_path / "out")
    assert code == 0
    assert "token entropy at WAAD peaks" in out
    assert str(tmp_path / "out" / "rhythm.html") in out
    assert "<script" not in (tmp_path / "out" / "rhythm.html").read_text().lower()
    code, out, _ = run(
        capsys, "small", "--run", tmp_path, "--trajectory", "9.0", "--output", tmp_path / "out", "--show", 0
    )
    assert code == 0
    assert "texts    1 (" in out


def test_an_episode_is_encoded_as_the_sampler_saw_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small_policy_path())
    (tmp_path / "episodes.jsonl").write_text(json.dumps(EPISODE) + "\n")
    (text,) = recorded_texts(tokenizer, tmp_path, None, 5)
    said = [token for token, mine in zip(text.token_ids, text.response, strict=True) if mine]
    assert tokenizer.decode(said, skip_special_tokens=True) == WORDS + "31-1=30 yes"
    assert said.count(tokenizer.eos_token_id) == 1  # the second message was cut: no end was sampled
    kept = EPISODE | {"segments": [{"token_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}]}
    (tmp_path / "episodes.jsonl").write_text(json.dumps(kept) + "\n")
    assert recorded_texts(tokenizer, tmp_path, None, 5)[0].response == [False, True, True]


def test_rows_of_a_data_file(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small_policy_path())
    file = tmp_path / "rows.jsonl"
    rows = [{"question": f"Make {n}.", "answer": f"{n}<<{n}>> is it"} for n in range(20)] + [{"text": "31-1=30"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    everything = data_texts(tokenizer, file, 99, drop="<<.*?>>")
    assert len(everything) == 21
    assert "3 is it" in tokenizer.decode(everything[3].token_ids)
    some = data_texts(tokenizer, file, 5, seed=1, drop="<<.*?>>")
    assert len(some) == 5
    assert some == data_texts(tokenizer, file, 5, seed=1, drop="<<.*?>>") != data_texts(tokenizer, file, 5, seed=2)
    bare = plain_text(tokenizer, "31-1=30", "x")
    assert not bare.response[0]
    assert all(bare.response[1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("small",), "one of --text, --text-file, --data and --run"),
        (("small", "--text", "a", "--data", "b"), "not 2 of them"),
        (("--text", "a"), "say which MODEL"),
        (("smal", "--text", "a"), "did you mean 'small'"),
        (("small", "--text", " "), "the text is empty"),
        (("small", "--text", "short"), "every text is too short"),
        (("small", "--text-file", "absent.txt"), "absent.txt: cannot be read"),
        (("small", "--data", "absent.jsonl"), "absent.jsonl: cannot be read"),
        (("small", "--data", "bad.jsonl"), "bad.jsonl:1: no response"),
        (("small", "--data", "bad.jsonl", "--drop", "("), "is no regular expression"),
        (("small", "--text", "a", "--trajectory", "1"), "--trajectory goes with --run"),
        (("small", "--text", "a", "--h-lo", "101"), "--h-lo 101 lies behind"),
        (("small", "--text", "a", "--q", "2"), "must be a share"),
        (("small", "--run", "."), "holds neither"),
        (("--run", "."), "has no checkpoints"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"question": "why?"}\n')
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last.startswith("rollcage rhythm: ")
    assert message.lower() in last.lower()


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rhythm", "--help"])
    assert "rollcage rhythm smollm2 --data gsm8k_test.jsonl" in capsys.readouterr().out
