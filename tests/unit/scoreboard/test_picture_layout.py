"""Layout of the drawn pictures: texts stay within their card and off each other, frames are even, curves are true."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest

from p2prl.scoreboard.certificate import issue
from p2prl.scoreboard.documents.api_views import metrics_document
from p2prl.scoreboard.web.certificate_picture import certificate_png
from p2prl.scoreboard.web.drawing import ACCENT, CARD, Picture
from p2prl.scoreboard.web.share_picture import share_picture
from p2prl_lab.testing.sample_ledgers import MemorySource, identity, sample_run

GOAL = "Teach a small model to solve word problems in its own words, step by step, and to say so when it cannot. " * 3

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class Drawn:
    """Everything drawn on pictures, which are drawn all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.texts: list[tuple[str, Box]] = []
        self.size = (0, 0)
        for name in ("box", "frame", "line", "area", "text"):
            monkeypatch.setattr(Picture, name, self._noting(name, getattr(Picture, name)))

    def _noting(self, name: str, draw: Any) -> Any:
        def noted(picture: Picture, *args: Any, **options: Any) -> None:
            draw(picture, *args, **options)
            self.calls.append((name, args, options))
            self.size = (picture.width, picture.height)
            if name == "text":
                (left, top), text = args
                size = options["size"]
                right = left + picture.text_width(text, size=size, bold=options.get("bold", False))
                self.texts.append((text, (left, top, right, top + 1.17 * size)))  # the font's ascent and descent

        return noted

    def of(self, name: str, **wanted: Any) -> list[tuple[Any, ...]]:
        """Arguments of the calls of one kind with these options."""
        return [args for kind, args, options in self.calls if kind == name and wanted.items() <= options.items()]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


def draw_certificate() -> None:
    snapshot = MemorySource(sample_run(0, steps=30, goal=GOAL)).snapshot()
    assert snapshot.board is not None
    worker = identity("volunteer 0")
    assert snapshot.board.people[worker.public_key].verified_groups > 0
    certificate_png(issue(snapshot, worker.peer_id, identity("learner"), now_ms=1_790_000_000_000))


def apart(one: Box, other: Box) -> bool:
    """Whether two boxes have no point in common."""
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def even(box: Box, size: tuple[int, int]) -> float:
    """The margin of a box, which is the same on all sides."""
    margins = {box[0], box[1], size[0] - box[2], size[1] - box[3]}
    assert len(margins) == 1, box
    return margins.pop()


def assert_texts_fit(drawn: Drawn, within: Box) -> None:
    left = min(box[0] for _, box in drawn.texts)
    assert left == drawn.size[0] - within[2] == within[0]
    texts = [each for each in drawn.texts if each[0]]
    for text, box in texts:
        assert within[0] <= box[0] < box[2] <= within[2], text
        assert within[1] <= box[1] < box[3] <= within[3], text
    for (text, one), (other_text, other) in combinations(texts, 2):
        assert apart(one, other), (text, other_text)


def test_a_certificate_keeps_its_texts_inside_two_even_frames(drawn: Drawn) -> None:
    draw_certificate()
    (card,) = drawn.of("box", fill=CARD)
    outer, inner = drawn.of("frame")
    assert even(card, drawn.size) == even(outer, drawn.size) < even(inner, drawn.size)
    assert drawn.size[0] / drawn.size[1] == pytest.approx(297 / 210, abs=0.001), "A4 across"
    ((rule,),) = drawn.of("line")
    (left, top), (right, bottom) = rule
    assert (left, top) == (drawn.size[0] - right, bottom), "across the page"
    assert left > 2 * inner[0] > 0, "room between the frame and the texts"
    assert_texts_fit(drawn, (left, inner[1], right, inner[3]))
    above = {text for text, box in drawn.texts if box[3] <= top}
    assert {"Certificate of contribution", "verified groups"} < above
    assert "Signature" not in above
    assert all(box[3] <= top or box[1] >= top for _, box in drawn.texts), "no text is struck through"


def test_the_rows_and_columns_of_a_certificate_are_evenly_spaced(drawn: Drawn) -> None:
    draw_certificate()
    by_text = {text: box for text, box in drawn.texts if text}
    columns = [by_text[name][0] for name in ("verified groups", "verified tokens", "of checked work")]
    assert columns[1] - columns[0] == columns[2] - columns[1] > 200
    rows = [by_text[name][1] for name in ("Run", "Contributor", "Root of receipts", "Signed by", "Signature", "Issued")]
    steps = [(after - before) / (rows[1] - rows[0]) for before, after in pairwise(rows)]
    assert steps == [1, 1, 2, 1, 2], "the ledger's row, and the signature's second line, are among them"
    value = next(box for text, box in drawn.texts if box[1] == by_text["Run"][1] and text != "Run")
    assert value[0] - by_text["Root of receipts"][2] < 150, "names stand beside their values"


@pytest.mark.parametrize("steps", [0, 30])
def test_a_preview_keeps_its_texts_inside_its_margins(drawn: Drawn, steps: int) -> None:
    share_picture(MemorySource(sample_run(0, steps=steps, goal=GOAL)).snapshot())
    bar = drawn.of("box", fill=ACCENT)[0]
    assert (bar[:2], bar[3]) == ((0, 0), drawn.size[1]), "at the left edge, from top to bottom"
    assert bar[2] < min(box[0] for _, box in drawn.texts)
    (card,) = drawn.of("box", fill=CARD)
    assert card[0] == drawn.size[0] - card[2]
    assert_texts_fit(drawn, (card[0], 0, card[2], drawn.size[1]))
    inside = {text for text, box in drawn.texts if not apart(box, card)}
    assert inside == (set() if steps else {"The curve starts with the first verified group."})
    heads = [box for text, box in drawn.texts if box[3] <= card[1]]
    assert len(heads) == 4, "the name, and three lines of the goal"
    assert {text: box[2] for text, box in drawn.texts}["Lend your machine · p2prl join"] == card[2]


def test_the_curve_of_a_preview_is_that_of_the_run(drawn: Drawn) -> None:
    snapshot = MemorySource(sample_run(0, steps=90)).snapshot()
    share_picture(snapshot)
    document = metrics_document(snapshot, from_step=0, to_step=89, points=160)
    rows = [
        (step, mean, low, high)
        for step, mean, low, high in zip(
            document.step, document.reward_mean, document.reward_low, document.reward_high, strict=True
        )
        if mean is not None and low is not None and high is not None
    ]
    (card,) = drawn.of("box", fill=CARD)
    ((curve,),) = drawn.of("line", color=ACCENT)
    assert len(curve) == len(rows) > 60
    xs, ys = [x for x, _ in curve], [y for _, y in curve]
    assert xs[0] - card[0] == card[2] - xs[-1] > 0
    assert card[1] < min(ys) < max(ys) < card[3]
    means = [mean for _, mean, _, _ in rows]
    least, most = min(means), max(means)

    def height(value: float) -> float:
        """From the top of the curve."""
        return (most - min(most, max(least, value))) / (most - least)

    first, last = rows[0][0], rows[-1][0]
    tall = max(ys) - min(ys)
    assert xs == pytest.approx([xs[0] + (step - first) / (last - first) * (xs[-1] - xs[0]) for step, *_ in rows])
    assert ys == pytest.approx([min(ys) + height(mean) * tall for mean in means])
    ((band,),) = drawn.of("area")
    expected = [high for *_, high in rows] + [low for *_, low, _ in rows[::-1]]
    assert [y for _, y in band] == pytest.approx([min(ys) + height(value) * tall for value in expected])
    assert [x for x, _ in band] == pytest.approx(xs + xs[::-1])
    ((axis,),) = [args for args in drawn.of("line") if args[0] != curve]
    assert axis == [(xs[0], max(ys)), (xs[-1], max(ys))]
