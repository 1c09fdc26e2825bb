"""Cards by their names: the whole one or a part of it, and the list where none or several are meant."""

from __future__ import annotations

import pytest

from p2prl.errors import ConfigError
from p2prl.models.hardware.card_names import card_named

CARDS = {
    "cuda:0": "NVIDIA GeForce RTX 4090",
    "cuda:1": "NVIDIA GeForce RTX 3060",
    "cuda:2": "NVIDIA GeForce RTX 3060 Ti",
    "cuda:3": "NVIDIA A100-SXM4-40GB",
}


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("RTX 4090", "cuda:0"),
        ("rtx  4090", "cuda:0"),
        ("nvidia geforce rtx 3060", "cuda:1"),  # whole, though it is a part of another
        ("3060 ti", "cuda:2"),
        ("a100", "cuda:3"),
    ],
)
def test_one_card_is_meant(wanted: str, place: str) -> None:
    assert card_named(wanted, CARDS) == place


def test_several_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        card_named("3060", CARDS)
    assert str(caught.value) == (
        "2 cards are called '3060': cuda:1 is NVIDIA GeForce RTX 3060, cuda:2 is NVIDIA GeForce RTX 3060 Ti"
    )
    assert caught.value.remedy == "Name one by more of its name, or as cuda:1."


@pytest.mark.parametrize("wanted", ["RTX 5090", "", " "])
def test_none_is_told_with_the_list(wanted: str) -> None:
    with pytest.raises(ConfigError, match="no card here is called") as caught:
        card_named(wanted, CARDS)
    assert all(f"{place} is {name}" in caught.value.remedy for place, name in CARDS.items())
