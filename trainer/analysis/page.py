"""The page: everything in one HTML file that loads nothing, runs nothing, and shows model text as text only."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from rollcage.trainer.analysis.couplings import NAMES, PAPER
from rollcage.trainer.analysis.measure import Rhythm
from rollcage.trainer.analysis.perturbation import Effect
from rollcage.trainer.analysis.resampling import Lift

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ccc;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}
.text{font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #ccc;padding:.8em}
.text bdi{border-bottom:3px solid transparent}.text .given{color:#888}
.anchor{background:#a9cdf5}.text .preplan{border-bottom-color:#f28e2b}.key .preplan{border-bottom:3px solid #f28e2b}
"""

# The policy belts what escaping braces: nothing is loaded, no script runs.
_HEAD = (
    '<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
    '<meta name="viewport" content="width=device-width">'
)


def page(
    title: str,
    facts: Mapping[str, str],
    lifts: Mapping[str, Lift],
    effects: Sequence[Effect],
    figure: bytes,
    shown: Sequence[tuple[Rhythm, Sequence[str], bytes]],
) -> str:
    """Return the page as HTML.

    Args:
        title: model and texts, in a few words.
        facts: what was run and how, name to value.
        lifts: the couplings.
        effects: of perturbation; none where it was not asked for.
        figure: PNG of the couplings.
        shown: texts to show: rhythm, each token's text, and the PNG of curves and maps.
    """
    parts = [
        f"<!doctype html><html lang=en><head>{_HEAD}<title>{_escaped(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{_escaped(title)}</h1><table>",
        *(f"<tr><td>{_escaped(name)}</td><td>{_escaped(value)}</td></tr>" for name, value in facts.items()),
        "</table><h2>Couplings</h2>",
        _table(COUPLING_HEAD, coupling_rows(lifts)),
        f"<p>Chance: 1,000 shuffles within each text; p is one-sided. Intervals: bootstrap over texts. The paper "
        f"(arXiv 2510.13554) reports {PAPER[0]:+.2%} to {PAPER[1]:+.2%} for definitions of its own.</p>",
        _image(figure, "couplings beside chance"),
    ]
    if effects:
        parts += ["<h2>Perturbation</h2>", _table(EFFECT_HEAD, effect_rows(effects))]
        parts.append(
            "<p>One token is replaced by the model's most likely other one. Divergence: mean KL of the next-token "
            "distributions after it, in nats. Edits: edit distance of the greedy continuations, as a share of their "
            "length. Surprise: how much less likely, in nats, the replacement is itself.</p>"
        )
    parts.append(
        '<h2>Texts</h2><p class="key"><span class="anchor">anchor</span> (FAI), <span class="preplan">preplan token'
        "</span> (change of WAAD); rest on a token to see its numbers.</p>"
    )
    for rhythm, tokens, picture in shown:
        parts += [f"<h3>{_escaped(rhythm.text.name)}</h3>", _marked(rhythm, tokens), _image(picture, "curves and maps")]
    return "\n".join([*parts, "</body></html>\n"])


COUPLING_HEAD = ("coupling", "observed", "chance", "over chance", "95 % interval", "p", "texts")
EFFECT_HEAD = ("replaced", "divergence", "over random", "edits", "over random", "surprise", "place", "tokens")


def coupling_rows(lifts: Mapping[str, Lift]) -> list[tuple[str, ...]]:
    """Return the couplings as words, a row each, under `COUPLING_HEAD`."""
    return [
        (
            NAMES[name],
            f"{result.observed:.3f}",
            f"{result.chance:.3f}",
            f"{result.lift:+.1%}",
            "-" if result.ci95 is None else "{:+.1%} to {:+.1%}".format(*result.ci95),
            f"{result.p_value:.3f}",
            str(result.num_texts),
        )
        for name, result in lifts.items()
    ]


def effect_rows(effects: Sequence[Effect]) -> list[tuple[str, ...]]:
    """Return what perturbation did as words, a row for each kind, under `EFFECT_HEAD`."""
    return [
        (
            effect.kind,
            f"{effect.divergence:.3f}{_interval(effect.divergence_ci95)}",
            "-"
            if effect.kind == "random"
            else f"{effect.divergence_over_random[0]:+.3f}" + _interval(effect.divergence_over_random[1]),
            f"{effect.edits:.3f}{_interval(effect.edits_ci95)}",
            "-"
            if effect.kind == "random"
            else f"{effect.edits_over_random[0]:+.3f}" + _interval(effect.edits_over_random[1]),
            f"{effect.surprise:+.2f}",
            f"{effect.place:.2f}",
            str(effect.num_tokens),
        )
        for effect in effects
    ]


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else " ({:.3f} to {:.3f})".format(*bounds)


def _marked(rhythm: Rhythm, tokens: Sequence[str]) -> str:
    """Return a text with its marks. Each token is isolated, so that no writing direction leaves it."""
    number_of = {int(position): number for number, position in enumerate(rhythm.curves.positions)}
    parts = []
    for place, token in enumerate(tokens):
        number = number_of.get(place)
        if number is None:
            parts.append(f'<bdi class="given">{_escaped(token)}</bdi>')
            continue
        curves = rhythm.curves
        marks = [name for name in ("anchor", "preplan") if getattr(rhythm, _FIELDS[name])[number]]
        words = (
            f"token {place}: WAAD {curves.waad[number]:.2f}, Delta {rhythm.deltas[number]:.2f}, "
            f"FAI {curves.fai[number]:.2e}, entropy {curves.entropies[number]:.2f}"
        )
        parts.append(f'<bdi class="{" ".join(marks)}" title="{words}">{_escaped(token)}</bdi>')
    return f'<div class="text">{"".join(parts)}</div>'


_FIELDS = {"anchor": "anchors", "preplan": "preplan"}


def _escaped(text: str) -> str:
    """Return text that a browser shows as it is: markup escaped, control characters and half surrogates visible."""
    visible = "".join(
        chr(0x2400 + ord(char)) if ord(char) < 32 and char not in "\n\t" else "\ufffd" if _unfit(char) else char
        for char in text
    )
    return html.escape(visible, quote=True)


def _unfit(char: str) -> bool:
    """Return whether HTML may not hold a character: half surrogates, C1 controls, delete, and noncharacters."""
    code = ord(char)
    return 0xD800 <= code <= 0xDFFF or 0x7F <= code <= 0x9F or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE


def _image(png: bytes, words: str) -> str:
    return f'<p><img alt="{words}" src="data:image/png;base64,{base64.b64encode(png).decode()}"></p>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{_escaped(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"
