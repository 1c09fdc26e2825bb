"""Hot swap: each policy is staged once, in whichever thread, and taken or waited for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from p2prl.client import weight_staging
from p2prl.client.weight_staging import PolicyStaging


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The policies that were staged, in order."""
    policies: list[object] = []

    def stage(policy: object, sampler: object) -> tuple[str, object]:
        policies.append(policy)
        return "staged", policy

    monkeypatch.setattr(weight_staging, "_stage", stage)
    return policies


@pytest.mark.parametrize("background", [False, True])
def test_a_policy_is_staged_once(staged: list[object], background: bool) -> None:
    swap, (first, second) = cast(Any, PolicyStaging(background=background)), (object(), object())
    swap.ready(first, None)
    assert swap.take(first, None) == ("staged", first)
    assert staged == [first]
    assert swap.take(second, None) == ("staged", second), "one that was not asked for is waited for"
    assert staged == [first, second]
    swap.close()


def test_it_is_ready_when_it_is_staged_and_another_may_follow(staged: list[object]) -> None:
    swap, (first, second) = cast(Any, PolicyStaging(background=False)), (object(), object())
    assert swap.ready(first, None)
    assert swap.ready(first, None)
    assert swap.ready(second, None)
    assert staged == [first, second]


def test_a_failure_comes_up_when_the_policy_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(policy: object, sampler: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(weight_staging, "_stage", fails)
    swap, policy = cast(Any, PolicyStaging(background=False)), object()
    assert swap.ready(policy, None)
    with pytest.raises(FileNotFoundError):
        swap.take(policy, None)
