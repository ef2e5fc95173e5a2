"""What `rollcage simulate` says: as plain data, for people, and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollcage.errors import require
from rollcage.trainer.simulation.calibrate import Calibration
from rollcage.trainer.simulation.model import Prediction
from rollcage.trainer.simulation.plan import Choice, Recommendation


def choice_to_json(choice: Choice) -> dict[str, Any]:
    """Return a choice and its prediction as plain data."""
    prediction: Prediction = choice.prediction
    return {
        "train_gpus": choice.train_gpus,
        "async_ratio": choice.config.async_ratio,
        "extra_groups": choice.config.extra_groups,
        "extra_members": choice.config.extra_members,
        "mode": choice.config.mode,
        "num_slots": choice.config.num_slots,
        "samples_per_s": round(prediction.samples_per_s, 6),
        "tokens_per_s": round(prediction.tokens_per_s, 3),
        "update_s": round(prediction.update_s, 4),
        "episode_s": round(prediction.episode_s, 4),
        "rollout_busy": round(prediction.rollout_busy, 4),
        "learner_busy": round(prediction.learner_busy, 4),
        "staleness": round(prediction.staleness, 4),
        "staleness_max": prediction.staleness_max,
        "wasted": round(prediction.wasted, 4),
    }


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """Return what was measured and fitted as plain data."""
    speed, cluster = calibration.cluster.speed, calibration.cluster
    return {
        "measured_samples_per_s": round(calibration.recorded.samples_per_s, 4),
        "num_updates": calibration.recorded.num_updates,
        "num_messages": calibration.num_messages,
        "mean_length": round(calibration.workload.lengths.mean, 2),
        "observation_tokens": round(calibration.workload.observation_tokens, 1),
        "task_share": round(calibration.workload.task_share, 3),
        "mean_turns": round(calibration.workload.env.turns.mean, 3),
        "env_reset_s": round(calibration.workload.env.reset_s.mean, 5),
        "env_turn_s": round(calibration.workload.env.turn_s.mean, 5),
        "token_s": round(speed.token_s, 6),
        "load_token_s": round(speed.load_token_s, 7),
        "context_token_s": round(speed.context_token_s, 10),
        "prompt_token_s": round(speed.prompt_token_s, 7),
        "contention": round(speed.contention, 3),
        "speed_r2": round(calibration.speed_r2, 3),
        "train_sample_s": round(cluster.sample_s, 5),
        "publish_s": round(cluster.publish_s, 4),
    }


def format_page(result: dict[str, Any], chosen: Choice, recommendation: Recommendation | None) -> str:
    """Return the same for people."""
    lines = []
    if "calibration" in result:
        fitted = result["calibration"]
        lines.append(
            f"calibrated on {fitted['num_messages']} messages (mean {fitted['mean_length']:g} tokens) and "
            f"{fitted['num_updates']} updates; measured {fitted['measured_samples_per_s']:g} samples a second"
        )
    prediction, config = chosen.prediction, chosen.config
    where = {None: "the cluster as it is", 0: "all GPUs sample and train in turns"}.get(
        chosen.train_gpus, f"{chosen.train_gpus} GPUs train, the others sample"
    )
    rows = {
        "choice": f"async_ratio {config.async_ratio:g}, extra_groups {config.extra_groups}, extra_members "
        f"{config.extra_members}, num_slots {config.num_slots}; {where}",
        "throughput": f"{prediction.samples_per_s:.4g} samples/s, {prediction.tokens_per_s:.4g} tokens/s",
        "update": f"every {prediction.update_s:.4g} s; an episode takes {prediction.episode_s:.4g} s",
        "utilisation": f"slots {prediction.rollout_busy:.0%}, learner {prediction.learner_busy:.0%}",
        "staleness": f"{prediction.staleness:.2f} versions, at most {prediction.staleness_max:g}",
        "wasted": f"{prediction.wasted:.1%} of the samples",
    }
    if "predicted_over_measured" in result:
        rows["check"] = f"predicted over measured throughput: {result['predicted_over_measured']:.3f}"
    lines += [f"{name:12} {text}" for name, text in rows.items()]
    if recommendation:
        lines += ["", *recommendation.reasons]
    return "\n".join(lines) + "\n"


def plot(path: Path, chosen: Choice, recommendation: Recommendation | None) -> None:
    """Draw every choice that was simulated: throughput, utilisation, staleness.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require("matplotlib", "train").use("Agg")
    from matplotlib import pyplot as plt

    choices = [recommendation.baseline, *recommendation.tried] if recommendation else [chosen]
    names = [
        "synchronous"
        if choice.config.mode == "sync"
        else f"ratio {choice.config.async_ratio:g}, +{choice.config.extra_groups} groups"
        + ("" if choice.train_gpus is None else f", {choice.train_gpus or 'all'} train")
        for choice in choices
    ]
    figure, axes = plt.subplots(1, 3, figsize=(12, 1.5 + 0.3 * len(choices)), sharey=True, constrained_layout=True)
    panels = {
        "samples a second": [choice.samples_per_s for choice in choices],
        "busy: slots, learner": [choice.prediction.rollout_busy for choice in choices],
        "staleness (versions)": [choice.prediction.staleness for choice in choices],
    }
    rows = range(len(choices))
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        colours = ["tab:orange" if choice is chosen else "tab:blue" for choice in choices]
        axis.barh(rows, values, color=colours)
        axis.set_title(title)
    axes[1].plot([choice.prediction.learner_busy for choice in choices], rows, "k|", markersize=12)
    axes[0].set_yticks(rows, names)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=110)
    plt.close(figure)
