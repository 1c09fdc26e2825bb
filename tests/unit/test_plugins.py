"""Registries: built-in parts, parts of installed packages, and what a wrong name or a broken package says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.plugins import Registry

GROUP = "p2prl.test_parts"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution on the path with a good part, a broken one, one of another type and one named as a built-in."""
    info = tmp_path / "parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\ngood = outside_part:PART\nbroken = outside_missing:PART\n"
        "number = outside_part:NUMBER\nbuilt = outside_part:PART\n"
    )
    (tmp_path / "outside_part.py").write_text("PART = 'outside'\nNUMBER = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "outside_part", raising=False)
    return tmp_path


def registry() -> Registry[str]:
    return Registry(GROUP, kind="part", builtin={"built": "string:digits"}, expected=str)


def test_names_import_nothing(installed: Path) -> None:
    assert registry().names() == ("built", "broken", "good", "number")
    assert "outside_part" not in sys.modules


def test_builtin_wins_over_a_plugin(installed: Path) -> None:
    assert registry().get("built") == "0123456789"


def test_plugin_is_loaded_by_name(installed: Path) -> None:
    assert registry().get("good") == "outside"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "cannot be loaded from outside_missing:PART"),
        ("number", "is not a part: expected str, got int"),
        ("goood", "unknown part 'goood'"),
        ("x" * 5000, "unknown part '" + "x" * 64 + "'"),
    ],
)
def test_unusable_names_say_what_to_do(installed: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry().get(name)
    assert said in str(caught.value)
    assert caught.value.remedy
    assert len(str(caught.value)) < 200


def test_unknown_name_suggests_the_nearest(installed: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        registry().get("goood")
    assert "good" in (caught.value.remedy or "")


def test_an_offered_part_is_found_by_name_and_overrides_nothing(installed: Path) -> None:
    parts = registry()
    assert parts.origin("mine") == ""
    parts.offer("mine", "first", origin="a")
    parts.offer("mine", "second", origin="b")
    assert (parts.get("mine"), parts.origin("mine")) == ("second", "b")
    assert parts.names() == ("built", "broken", "good", "mine", "number")
    for taken in ("built", "good"):
        with pytest.raises(ConfigError, match="exists already"):
            parts.offer(taken, "third", origin="c")
    assert parts.get("built") == "0123456789"
    with pytest.raises(ConfigError, match="expected str, got int"):
        parts.offer("other", 3, origin="c")  # type: ignore[arg-type]
    assert registry().names() == ("built", "broken", "good", "number")
