"""Rejection reasons: every code can be explained to a volunteer."""

from __future__ import annotations

import pytest

from p2prl.protocol.rejection_reasons import RejectionReason


@pytest.mark.parametrize("reason", RejectionReason)
def test_explanation_is_one_sentence(reason: RejectionReason) -> None:
    assert reason.explanation.endswith(".")
    assert reason.explanation.count(". ") == 0
    assert reason.value not in reason.explanation


def test_explanations_differ() -> None:
    assert len({reason.explanation for reason in RejectionReason}) == len(RejectionReason)
