"""A release: every file states one version, and the changelog's section becomes its notes."""

from __future__ import annotations

import datetime
import re
import shutil
from pathlib import Path

import pytest
from packaging.version import Version

from p2prl import __version__
from scripts.release import CHANGELOG, STATED, ReleaseError, cut, stated_versions, unreleased
from tests.unit.house.source_tree import ROOT

TODAY = datetime.date(2031, 2, 3)
NEXT = f"{Version(__version__).major + 1}.0.0"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that state a version, and the changelog."""
    for name in (*STATED, CHANGELOG):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def sections(changelog: str) -> list[str]:
    return re.findall(r"(?m)^## \[(.+?)\]", changelog)


def test_every_file_states_the_version_that_the_program_shows() -> None:
    assert stated_versions(ROOT) == {name: {__version__} for name in STATED}
    listed = sections((ROOT / CHANGELOG).read_text())
    assert listed[0] == "Unreleased"
    assert (__version__ in listed) is not Version(__version__).is_devrelease
    assert listed[1:] == sorted(listed[1:], key=Version, reverse=True)
    assert Version(listed[1]) <= Version(__version__)


def test_a_release_moves_what_is_unreleased_under_its_number_and_date(checkout: Path) -> None:
    before = (checkout / CHANGELOG).read_text()
    (checkout / CHANGELOG).write_text(before.replace("## [Unreleased]\n", "## [Unreleased]\n\n- A line.\n", 1))
    notes = cut(checkout, NEXT, TODAY)
    after = (checkout / CHANGELOG).read_text()
    assert notes.startswith("- A line.")
    assert sections(after) == ["Unreleased", NEXT, *sections(before)[1:]]
    assert f"## [Unreleased]\n\n## [{NEXT}] - 2031-02-03\n\n- A line.\n" in after
    assert unreleased(after) == ""
    assert stated_versions(checkout) == {name: {NEXT} for name in STATED}
    assert f'"p2prl=={NEXT}"' in (checkout / "lab/pyproject.toml").read_text()
    with pytest.raises(ReleaseError, match="does not follow"):
        cut(checkout, NEXT, TODAY)


def test_nothing_but_the_version_changes_in_a_file_that_states_it(checkout: Path) -> None:
    cut(checkout, f"{NEXT}.dev0", TODAY)
    for name in (*STATED, CHANGELOG):
        assert (checkout / name).read_text().replace(f"{NEXT}.dev0", __version__) == (ROOT / name).read_text()


@pytest.mark.parametrize("version", ["", "next", "v99.0.0", "0.0.1", __version__])
def test_a_version_that_cannot_follow_changes_nothing(checkout: Path, version: str) -> None:
    with pytest.raises(ReleaseError):
        cut(checkout, version, TODAY)
    assert stated_versions(checkout) == stated_versions(ROOT)


def test_a_release_with_nothing_to_say_is_refused(checkout: Path) -> None:
    text = (checkout / CHANGELOG).read_text()
    (checkout / CHANGELOG).write_text(text.replace(unreleased(text), ""))
    with pytest.raises(ReleaseError, match="nothing under"):
        cut(checkout, NEXT, TODAY)
    assert stated_versions(checkout) == stated_versions(ROOT)


def test_files_that_disagree_are_refused(checkout: Path) -> None:
    (checkout / "CITATION.cff").write_text("version: 0.0.3\n")
    with pytest.raises(ReleaseError, match=r"0\.0\.3"):
        cut(checkout, NEXT, TODAY)
