"""The command ``rhythm``: a model's attention rhythm on any text, as a page, figures and JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcage.command import CommandParser, natural, positive
from rollcage.errors import UserError, did_you_mean, require

if TYPE_CHECKING:
    from rollcage.trainer.analysis.texts import Text

MODEL_HELP = (
    "small, small-frozenlake or smollm2 (models that come along), or the path of a model folder, a GGUF file, a "
    "checkpoint, or a run (its newest checkpoint); with --run the run's own model is the default"
)

_DESCRIPTION = """Show the attention rhythm of a language model on any text: where its local heads look back far (WAAD)
and which tokens its global heads come back to (FAI), the mean attention map of either, anchors and preplan tokens in
the text, and whether entropy, receiver heads and the two curves go together more than by chance.
Source: arXiv 2510.13554."""

_EXAMPLES = """rollcage rhythm smollm2 --text "First we add 3 and 5, which gives 8. Then we multiply by 10 and get 80."
rollcage rhythm smollm2 --text-file essay.txt --output runs/essay
rollcage rhythm smollm2 --data gsm8k_test.jsonl --num 64 --drop '<<.*?>>' --perturb
rollcage rhythm --run runs/demo --trajectory 12.3
rollcage rhythm small --run runs/my-eval --num 256 --perturb 3 --json"""


def run_rhythm(argv: Sequence[str]) -> int:
    """``rollcage rhythm``: measure, then write ``rhythm.html``, ``rhythm.json`` and the PNGs."""
    arguments = _parse(argv)
    for package in ("torch", "transformers", "matplotlib"):
        require(package, "train")
    from rollcage.trainer.analysis.couplings import couplings
    from rollcage.trainer.analysis.measure import Settings, analyse
    from rollcage.trainer.analysis.perturbation import perturb
    from rollcage.trainer.progress import ProgressLine

    settings = Settings(arguments.window, arguments.h_lo, arguments.h_hi, arguments.q)
    if settings.h_lo > settings.h_hi:
        raise UserError(f"--h-lo {settings.h_lo} lies behind --h-hi {settings.h_hi}: the window would be empty.")
    model, tokenizer, name = _load(arguments)
    texts = _texts(arguments, tokenizer)
    longest = min(arguments.max_tokens, getattr(model.config, "max_position_embeddings", arguments.max_tokens))
    num_cut = sum(len(text.token_ids) > longest for text in texts)
    texts = [text.cut(longest) for text in texts]
    with ProgressLine(len(texts), "texts measured") as progress:
        heads, rhythms, left_out = analyse(model, texts, settings, progress.update)
    lifts = couplings([rhythm.curves for rhythm in rhythms], arguments.seed)
    effects = []
    if arguments.perturb:
        with ProgressLine(len(rhythms), "texts perturbed") as progress:
            effects = perturb(
                model,
                tokenizer,
                rhythms,
                num_tokens=arguments.perturb,
                horizon=arguments.horizon,
                seed=arguments.seed,
                watch=progress.update,
            )
        if not effects:
            raise UserError(f"no response has {arguments.horizon} tokens after a token: lower --horizon.")
    facts = {
        "model": name,
        "texts": f"{len(rhythms)} ({left_out} too short, {num_cut} cut at {longest} tokens), "
        f"{sum(len(rhythm.curves.positions) for rhythm in rhythms)} response tokens",
        "layers": ", ".join(map(str, heads.layers)),
        "heads": f"{int(heads.local.sum())} local, {int(heads.global_.sum())} global of {heads.local.numel()}; "
        f"{int(heads.receivers.sum())} receiver heads of {heads.receivers.numel()} "
        f"({heads.num_shared} of them global heads)",
        "windows": f"W {settings.window}, FAI {settings.h_lo} to {settings.h_hi}; marked: top {settings.q:.0%}",
    }
    summary: dict[str, Any] = {
        "facts": facts,
        "couplings": {key: asdict(result) for key, result in lifts.items()},
        "perturbation": [asdict(effect) for effect in effects],
    }
    _write(arguments, model, tokenizer, heads, rhythms, lifts, effects, facts, summary)
    summary["output"] = str(arguments.output)
    sys.stdout.write(json.dumps(_plain(summary)) + "\n" if arguments.json else _words(summary, lifts, effects))
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("rollcage rhythm", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    what = parser.add_argument_group("texts (one of them)")
    what.add_argument("--text", metavar="TEXT", help="this text")
    what.add_argument("--text-file", type=Path, metavar="FILE", help="the text in a file")
    what.add_argument(
        "--data", type=Path, metavar="FILE", help="rows of a JSON-lines file: question and response, or text"
    )
    what.add_argument("--run", type=Path, metavar="RUN", help="episodes recorded in a run's or an evaluation's folder")
    parser.add_argument(
        "--prompt", default="", help="with --text or --text-file: what it answers (not analysed itself)"
    )
    parser.add_argument("--trajectory", metavar="ID", help="with --run: only the episodes with this id or task id")
    parser.add_argument("--num", type=positive, default=64, help="texts of --data or --run, drawn at random (64)")
    parser.add_argument("--drop", default="", metavar="REGEX", help="with --data: taken out of every response")
    parser.add_argument("--seed", type=natural, default=0, help="of that draw, of chance and of intervals (0)")
    parser.add_argument("--max-tokens", type=positive, default=1024, help="longer texts are cut (1024)")
    parser.add_argument("--window", type=positive, default=10, help="W of WAAD, in tokens (10)")
    parser.add_argument("--h-lo", type=positive, default=10, help="begin of FAI's window, in tokens (10)")
    parser.add_argument("--h-hi", type=positive, default=100, help="end of FAI's window (100; first version: 50)")
    parser.add_argument("--q", type=_share, default=0.4, help="share of the tokens that are marked (0.4)")
    parser.add_argument(
        "--perturb",
        type=positive,
        nargs="?",
        const=1,
        metavar="N",
        help="replace N (1) anchors, preplan tokens and random tokens of each text, and measure what follows",
    )
    parser.add_argument(
        "--horizon", type=positive, default=20, help="tokens that are looked at after a replaced one (20)"
    )
    parser.add_argument("--show", type=natural, default=4, help="texts shown with curves and maps (4)")
    parser.add_argument("--output", type=Path, default=Path("runs/rhythm"), help="folder of the results (runs/rhythm)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line on stdout")
    arguments = parser.parse_args(argv)
    given = [name for name in ("text", "text_file", "data", "run") if getattr(arguments, name) is not None]
    if len(given) != 1:
        parser.error(f"give one of --text, --text-file, --data and --run, not {len(given)} of them.")
    if arguments.model is None and arguments.run is None:
        parser.error("say which MODEL.")
    needs = {"prompt": ("text", "text_file"), "trajectory": ("run",), "drop": ("data",)}
    for name, wanted in needs.items():
        if getattr(arguments, name) and given[0] not in wanted:
            parser.error(f"--{name} goes with --{' or --'.join(wanted).replace('_', '-')}.")
    return arguments


def _load(arguments: argparse.Namespace) -> tuple[Any, Any, str]:
    """Return the model, its tokenizer, and what to call it."""
    import torch

    from rollcage.trainer.agents.model import SMALL_BYTES
    from rollcage.trainer.agents.policies import MODELS, find_checkpoint
    from rollcage.trainer.config import model_path
    from rollcage.trainer.models import load_model, load_tokenizer

    name = arguments.model
    if name is None:
        if not (arguments.run / "checkpoints").is_dir():
            raise UserError(f"{arguments.run}: has no checkpoints; say which MODEL.")
        name = str(arguments.run)
    elif name not in MODELS and not Path(name).exists():
        raise UserError(f"no model {name!r}: it must be {', '.join(MODELS)}, or a path.{did_you_mean(name, MODELS)}")
    path = Path(model_path(name)) if name in MODELS else find_checkpoint(Path(name))
    model = load_model(path).to("cuda" if torch.cuda.is_available() else "cpu")
    if model.num_parameters() * 4 < SMALL_BYTES:
        torch.set_num_threads(1)  # its layers take microseconds: threads would wait for each other most of the time
    return model, load_tokenizer(path), name if name in MODELS else str(path)


def _texts(arguments: argparse.Namespace, tokenizer: Any) -> list[Text]:
    from rollcage.trainer.analysis.texts import data_texts, plain_text, recorded_texts

    if arguments.data is not None:
        return data_texts(tokenizer, arguments.data, arguments.num, arguments.seed, arguments.drop)
    if arguments.run is not None:
        return recorded_texts(tokenizer, arguments.run, arguments.trajectory, arguments.num, arguments.seed)
    text = arguments.text
    if text is None:
        try:
            text = arguments.text_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{arguments.text_file}: cannot be read ({error}); give a text in UTF-8.") from None
    if not text.strip():
        raise UserError("the text is empty.")
    return [plain_text(tokenizer, text, "text", arguments.prompt)]


def _write(
    arguments: argparse.Namespace,
    model: Any,
    tokenizer: Any,
    heads: Any,
    rhythms: Sequence[Any],
    lifts: Mapping[str, Any],
    effects: Sequence[Any],
    facts: Mapping[str, str],
    summary: Mapping[str, Any],
) -> None:
    """Write ``rhythm.html``, ``rhythm.json``, ``couplings.png`` and ``text-N.png``."""
    from rollcage.trainer.analysis.figures import couplings_figure, text_figure
    from rollcage.trainer.analysis.measure import mean_maps
    from rollcage.trainer.analysis.page import page

    arguments.output.mkdir(parents=True, exist_ok=True)
    figure = couplings_figure(lifts)
    (arguments.output / "couplings.png").write_bytes(figure)
    shown, texts = [], []
    for number, rhythm in enumerate(rhythms):
        tokens = [tokenizer.decode([token]) for token in rhythm.text.token_ids]
        if number < arguments.show:
            picture = text_figure(rhythm, mean_maps(model, rhythm.text, heads))
            (arguments.output / f"text-{number}.png").write_bytes(picture)
            shown.append((rhythm, tokens, picture))
        curves = {key: values.tolist() for key, values in asdict(rhythm.curves).items()}
        marks = {"deltas": rhythm.deltas, "preplan": rhythm.preplan, "anchors": rhythm.anchors}
        texts.append(
            {"name": rhythm.text.name, "token_ids": rhythm.text.token_ids, "tokens": tokens, **curves}
            | {key: values.tolist() for key, values in marks.items()}
        )
    title = f"Attention rhythm of {facts['model']}"
    whole = page(title, facts, lifts, effects, figure, shown)
    (arguments.output / "rhythm.html").write_text(whole, encoding="utf-8")
    record = json.dumps(_plain({**summary, "texts": texts}))
    (arguments.output / "rhythm.json").write_text(record + "\n", encoding="utf-8")


def _words(summary: Mapping[str, Any], lifts: Mapping[str, Any], effects: Sequence[Any]) -> str:
    from rollcage.trainer.analysis.page import COUPLING_HEAD, EFFECT_HEAD, coupling_rows, effect_rows

    lines = [f"{name:8} {value}" for name, value in summary["facts"].items()] + [""]
    lines += _columns([COUPLING_HEAD, *coupling_rows(lifts)])
    if effects:
        lines += ["", *_columns([EFFECT_HEAD, *effect_rows(effects)])]
    return "\n".join([*lines, "", f"page: {Path(summary['output']) / 'rhythm.html'}"]) + "\n"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _plain(value: Any) -> Any:
    """Return JSON's own: no NaN, which is null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be a share above 0 and at most 1, not {text!r}")
    return value
