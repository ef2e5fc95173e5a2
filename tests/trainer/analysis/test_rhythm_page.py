"""The page holds text of models as text: it loads nothing, runs nothing, and shows what is there."""

from html.parser import HTMLParser

import numpy as np

from rollcage.trainer.analysis.couplings import ResponseCurves, couplings
from rollcage.trainer.analysis.figures import couplings_figure, text_figure
from rollcage.trainer.analysis.measure import Rhythm
from rollcage.trainer.analysis.page import page
from rollcage.trainer.analysis.perturbation import Effect
from rollcage.trainer.analysis.texts import Text

HOSTILE = [
    "<script>alert(1)</script>",
    "</bdi></div><img src=//evil.example onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "\u202egnorw",
    "</title></style><link rel=stylesheet href=http://evil.example>",
    "{{7*7}} $x^2$ \\frac",
    "plain",
]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tokens: list[str] = []
        self._in_token = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_token = tag == "bdi"
        if self._in_token:
            self.tokens.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_token = False

    def handle_data(self, data: str) -> None:
        if self._in_token:
            self.tokens[-1] += data


def rhythm(length: int, name: str) -> Rhythm:
    rng = np.random.default_rng(0)
    curves = ResponseCurves(
        np.arange(1, length), *rng.random((4, length - 1)), eligible=np.arange(length - 1) < length - 3
    )
    marks = rng.random((2, length - 1)) < 0.5
    return Rhythm(
        Text(name, list(range(length)), [False] + [True] * (length - 1)), curves, rng.random(length - 1), *marks
    )


def make(tokens: list[str], name: str) -> tuple[str, Reader]:
    one = rhythm(len(tokens), name)
    lifts = couplings([one.curves])
    effect = Effect("random", 0.1, None, (0.0, None), 0.2, (0.1, 0.3), (0.0, None), 1.0, 0.5, 1, 1)
    maps = np.tril(np.ones((2, len(tokens), len(tokens)))) / 3
    whole = page(name, {name: name}, lifts, [effect], couplings_figure(lifts), [(one, tokens, text_figure(one, maps))])
    reader = Reader()
    reader.feed(whole)
    return whole, reader


def test_hostile_text_stays_text_and_is_shown_as_it_is() -> None:
    tokens = HOSTILE * 2
    _, reader = make(tokens, HOSTILE[7] + HOSTILE[1])
    assert reader.tokens == tokens
    known = {"html", "head", "meta", "title", "style", "body", "table", "tr", "td", "th", "p", "img", "span", "div"}
    assert {tag for tag, _ in reader.tags} == known | {"h1", "h2", "h3", "bdi"}
    attributes = {name for _, attrs in reader.tags for name in attrs}
    assert attributes <= {"charset", "http-equiv", "content", "name", "lang", "class", "title", "alt", "src"}


def test_nothing_is_loaded() -> None:
    whole, reader = make(HOSTILE, "model")
    images = [attrs["src"] for tag, attrs in reader.tags if tag == "img"]
    assert len(images) == 2
    assert all(str(source).startswith("data:image/png;base64,") for source in images)
    policy = next(attrs["content"] for tag, attrs in reader.tags if attrs.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "url(" not in whole
    assert "@import" not in whole


def test_what_html_cannot_hold_is_made_visible() -> None:
    whole, reader = make(["a\x00b", "\ud800", "\x1b[2J", "line\n\tend", "\x85\ufffe", "x"] + ["y"] * 10, "model")
    assert reader.tokens[:5] == ["a\u2400b", "\ufffd", "\u241b[2J", "line\n\tend", "\ufffd\ufffd"]
    whole.encode("utf-8")


def test_marks_and_numbers_stand_at_their_tokens() -> None:
    one = rhythm(10, "x")
    _, reader = make(HOSTILE, "x")
    marks = [attrs for tag, attrs in reader.tags if tag == "bdi"]
    assert marks[0]["class"] == "given"
    for number, attrs in enumerate(marks[1:]):
        classes = str(attrs["class"]).split()
        assert ("anchor" in classes) == one.anchors[number]
        assert ("preplan" in classes) == one.preplan[number]
        assert str(attrs["title"]).startswith(f"token {number + 1}: WAAD {one.curves.waad[number]:.2f}")
