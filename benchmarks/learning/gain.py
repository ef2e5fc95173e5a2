"""Learning, measured: a preset is trained for several seeds; the gain on held-out tasks is reported with its spread."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rollcage.command import CommandParser
from rollcage.monitor.report import shares
from rollcage.monitor.run_folder import read_metrics, read_rows
from rollcage.monitor.store import RunReader

# 97.5 % quantiles of Student's t distribution by degrees of freedom (any statistics textbook's table)
_T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def main(argv: Sequence[str]) -> int:
    """``rollcage bench learning``: train one preset for several seeds, one after the other."""
    parser = CommandParser(
        "rollcage bench learning",
        "Train a preset for several seeds; reports success on held-out tasks before and after, and the gain's spread.",
        "rollcage bench learning\n"
        "rollcage bench learning --seeds 0 1 2 --output benchmarks/results\n"
        "rollcage bench learning --preset frozenlake-small --seeds 0 1 --output benchmarks/results\n"
        "rollcage bench learning --preset countdown-small --override=--rollout.async-ratio=0",
    )
    parser.add_argument("--preset", default="countdown-small", help="preset of rollcage train (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    parser.add_argument("--override", action="append", default=[], metavar="--FIELD=VALUE", help="of the preset")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="where the runs go (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder of learning.md and learning.json: its section is replaced")
    parser.add_argument("--note", default="", help="what the page shall say of this run (what else the machine did)")
    arguments = parser.parse_args(argv)
    results = []
    for seed in arguments.seeds:
        run = arguments.runs / f"{arguments.preset}-{seed}"
        resumed = (run / "config.json").is_file()
        command = [sys.executable, "-m", "rollcage", "train"]
        if resumed:
            command += ["--resume", str(run)]
        else:
            command += [arguments.preset, "--seed", str(seed), "--out", str(run), *arguments.override]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        results.append(summarize(seed, run))
    section = {
        "command": " ".join(["rollcage bench learning", *_without_note(argv)]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "note": arguments.note,
        "results": results,
    }
    sys.stdout.write(format_section(arguments.preset, section))
    if arguments.output:
        write_page(arguments.output, arguments.preset, section)
    return 0


def _without_note(argv: Sequence[str]) -> list[str]:
    """Return the command's arguments without ``--note`` and its text, which the page shows by itself."""
    words = list(argv)
    if "--note" in words:
        at = words.index("--note")
        del words[at : at + 2]
    return words


def summarize(seed: int, run: Path) -> dict[str, Any]:
    """Return what one run reached: success by evaluation and time, and how fast it went."""
    metrics = read_metrics(run)
    success: dict[str, dict[str, Any]] = {}
    for row in read_rows(run, "evaluations"):
        success.setdefault(row["name"], {})[row["when"]] = [
            row["success_rate"],
            *row["success_ci95"],
            row["num_scored"],
        ]
    train_s = metrics[-1]["time/elapsed_s"]
    with RunReader(run) as reader:
        time = shares(reader)
    return {
        "seed": seed,
        "success": success,
        "updates": len(metrics),
        "turns": [metrics[0]["rollout/turns"], metrics[-1]["rollout/turns"]],
        "train_s": train_s,
        "trajectories_per_s": sum(row["rollout/num_samples"] for row in metrics) / train_s,
        "staleness": mean(row["rollout/staleness"] for row in metrics),
        "learner_busy": time["train"],
        "overlap": time["overlap"],
        "failed": metrics[-1]["account/failed"],
        "curve": [[round(row["time/elapsed_s"], 1), row["rollout/success"]] for row in metrics],
    }


def gain_ci95(gains: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, low and high end of the 95 % interval of the mean gain over seeds (Student's t; NaN for one)."""
    if len(gains) < 2:
        return gains[0], float("nan"), float("nan")
    half = _T975.get(len(gains) - 1, 1.96) * stdev(gains) / len(gains) ** 0.5
    return mean(gains), mean(gains) - half, mean(gains) + half


def write_page(folder: Path, preset: str, section: Mapping[str, Any]) -> None:
    """Write learning.md and learning.json in ``folder``, with the sections that are there and ``preset``'s new one."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "learning.json"
    sections: dict[str, Mapping[str, Any]] = json.loads(data.read_text(encoding="utf-8")) if data.is_file() else {}
    sections[preset] = section
    data.write_text(json.dumps(sections, indent=1) + "\n", encoding="utf-8")
    parts = [format_section(name, part) for name, part in sections.items()]
    (folder / "learning.md").write_text("\n".join(["# Learning\n", *parts]), encoding="utf-8")


def format_section(preset: str, section: Mapping[str, Any]) -> str:
    """Return a preset's results as a section of the page."""
    lines = [
        f"## {preset}",
        "",
        f"`{section['command']}` on {section['machine']}. Success on held-out tasks, sampled as in training, with 95 % "
        "Wilson intervals; seconds are those of training, evaluations apart; turns are those of an episode, in the "
        "first and the last update.",
        "",
        "| seed | evaluation | before | after | gain | updates | training | turns | trajectories/s | learner trains | "
        "while the engine samples | failed |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    gains: dict[str, list[float]] = {}
    for result in section["results"]:
        for name, when in result["success"].items():
            (before, after), gain = (when["before"], when["after"]), when["after"][0] - when["before"][0]
            gains.setdefault(name, []).append(100 * gain)
            cells = [f"{rate:.1%} ({low:.1%} to {high:.1%}, n = {num})" for rate, low, high, num in (before, after)]
            lines.append(
                f"| {result['seed']} | {name} | {cells[0]} | {cells[1]} | {100 * gain:+.1f} | {result['updates']} | "
                f"{result['train_s']:.0f} s | {result['turns'][0]:.1f}, {result['turns'][1]:.1f} | "
                f"{result['trajectories_per_s']:.0f} | {result['learner_busy']:.0%} | "
                f"{result['overlap']:.0%} | {result['failed']:.0f} |"
            )
    lines.append("")
    for name, values in gains.items():
        middle, low, high = gain_ci95(values)
        spread = f" (95 % interval of the mean {low:+.1f} to {high:+.1f})" if len(values) > 1 else ""
        lines.append(f"**{name}: {middle:+.1f} points over {len(values)} seeds{spread}, least {min(values):+.1f}.**  ")
    if section["note"]:
        lines += ["", section["note"]]
    return "\n".join(lines) + "\n"
