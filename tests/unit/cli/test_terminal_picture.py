"""`scripts/terminal_picture.py` still draws the volunteer's view, small and without downloads."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import terminal_picture


def test_picture_shows_the_view_and_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "join.svg"
    monkeypatch.setattr(sys, "argv", ["terminal_picture", "--out", str(out)])
    terminal_picture.main()
    drawn = out.read_text(encoding="utf-8")
    assert drawn == terminal_picture.picture(), "two drawings differ"
    assert "@font-face" not in drawn
    assert "url(http" not in drawn
    text = "".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    assert "Nobody sends code to your machine" in text
    assert "104 groups verified" in text
