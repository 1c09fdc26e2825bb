"""Amplification of every kind of link message, measured on a node that a stranger asks as much as it can."""

from __future__ import annotations

import pytest

from p2prl.protocol.kinds import Kind
from p2prl.protocol.link_messages import LINK_MESSAGES
from p2prl_lab.bench.trust.amplification import QUESTIONS, amplification_of


def test_every_kind_of_link_message_is_measured() -> None:
    assert QUESTIONS.keys() == LINK_MESSAGES.keys()


@pytest.mark.parametrize("dialed", [False, True], ids=["came by itself", "was dialed"])
@pytest.mark.parametrize("kind", LINK_MESSAGES, ids=lambda kind: kind.name)
def test_a_stranger_draws_at_most_ten_bytes_for_each_that_it_sends(kind: Kind, dialed: bool) -> None:
    assert amplification_of(kind, dialed=dialed).ratio <= 10.0


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.PUSH, Kind.LEDGER_QUERY])
def test_strangers_are_still_answered(kind: Kind) -> None:
    assert amplification_of(kind).ratio >= 1.0
