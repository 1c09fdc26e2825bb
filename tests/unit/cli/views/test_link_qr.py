"""A link as a QR code: every module where it belongs, and nothing without room."""

from __future__ import annotations

import pytest

from p2prl.cli.views.link_qr import QUIET, Modules, code_lines, half_blocks
from p2prl.protocol.digests import Digest
from p2prl.protocol.join_link import JoinLink
from p2prl.sim.machines import identity_of

LINK = JoinLink(
    "run", Digest(bytes(32)), tuple(f"/ip4/8.8.8.{n}/tcp/4001/p2p/{identity_of(f'p{n}').peer_id}" for n in range(3))
)


def square(side: int) -> Modules:
    return [[1] * side] * side


def by_length(text: str) -> Modules:
    """As many rows as a code of that text would have, about."""
    return square(len(text) // 6)


@pytest.mark.parametrize("side", [21, 22])
def test_every_module_is_drawn(side: int) -> None:
    modules = [[(row * side + column) % 3 % 2 for column in range(side)] for row in range(side)]
    lines = half_blocks(modules)
    drawn = [[("▀█", "▄█")[row % 2].count(mark) for mark in lines[row // 2]] for row in range(2 * len(lines))]
    inner = [row[QUIET : QUIET + side] for row in drawn[QUIET : QUIET + side]]
    assert inner == modules
    assert sum(map(sum, drawn)) == sum(map(sum, modules)), "the margin is empty"
    assert {len(line) for line in lines} == {side + 2 * QUIET}


def test_as_many_addresses_as_there_is_room_for() -> None:
    texts: list[str] = []

    def encode(text: str) -> Modules:
        texts.append(text)
        return by_length(text)

    assert code_lines(LINK, encode, width=200, height=100)
    assert texts == [str(LINK)]
    whole, least = len(by_length(texts[0])) + 2 * QUIET, len(str(LINK)) // 3 // 6
    assert len(code_lines(LINK, by_length, width=whole, height=100)[0]) == whole
    assert least < len(code_lines(LINK, by_length, width=whole - 1, height=100)[0]) < whole
    assert code_lines(LINK, by_length, width=10, height=100) == []
    assert code_lines(LINK, by_length, width=200, height=10) == []


def test_a_code_of_the_library_holds_the_link() -> None:
    segno = pytest.importorskip("segno")
    lines = code_lines(LINK, lambda text: segno.make(text, error="l", micro=False).matrix, width=100, height=60)
    assert len(lines[0]) in range(60, 100)
    assert lines[1][QUIET : QUIET + 7] == "█▀▀▀▀▀█", "a finder pattern"
