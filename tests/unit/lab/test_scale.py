"""The page on runs of 7B and 32B says what the script computes, from figures that other pages state."""

from __future__ import annotations

import pytest

from p2prl.planning.measured_figures import MEASURED, PATCH_RATIOS
from p2prl_lab.scale import PAGES, SIZES, Run, table

PAGE = (PAGES / "scale.md").read_text()


def test_the_page_has_the_table() -> None:
    assert table() in PAGE


@pytest.mark.parametrize("name", MEASURED)
def test_each_figure_is_one_that_a_page_states(name: str) -> None:
    assert MEASURED[name].line in (PAGES / MEASURED[name].page).read_text()


def test_ratios_are_those_of_the_pages() -> None:
    listed = (
        ", ".join(str(ratio) for ratio in list(PATCH_RATIOS.values())[:-1]) + f" and {list(PATCH_RATIOS.values())[-1]}"
    )
    assert listed in " ".join(PAGE.split())
    assert f"| {PATCH_RATIOS[1]} |" in (PAGES / "patches.md").read_text()


def test_the_text_says_what_is_computed() -> None:
    """Sizes and times of 7B that the text repeats."""
    run, text = Run(SIZES["7B"]), " ".join(PAGE.split())
    head_s = run.scaled("head_s")
    assert f"comes after {head_s:.0f} s" in text
    assert f"eight bring the head to {head_s / 4:.0f} s" in text, "eight cores are four times two"
    assert f"takes {run.scaled('switch_s'):.0f} s to be brought to a file" in text
    assert f"**Training waits** {run.scaled('waits_s'):.0f} s" in text
    keyframes = run.keyframes * run.keyframe
    assert f"make up {keyframes / 1e9:.0f} of the {run.published / 1e9:.0f} GB" in text
    assert f"keep four 7B versions in {run.volunteer_chain / 1e9:.0f} GB of disk" in text
    assert f"They are told {run.volunteer_disk / 1e9:.0f} GB" in text
    assert f"twenty of them, as a batch of late groups may need, {run.scaled('switch_s') / 3:.0f} minutes" in text
