"""Replay in the order of cost: same outcomes as a full replay of everything, less work for forgeries, a second look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from p2prl.learner.intake.admission import Admission, Candidate, DecodedGroups, Outcome
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.journal.groups import StoredGroup
from p2prl.models.groups.group_work import ReplayTools
from p2prl.models.replay import prefix_replay
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.scorer_port import Scored
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion, RolloutGroup
from tests.unit.learner.small_run import SmallRun, altered, identity

HONEST, CHEAT = identity("honest"), identity("cheat")
TOKENS, PREFIX = 20, 4


class CountingScorer:
    """The run's scorer; counts what it replays, and can be wrong once."""

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer
        self.calls: list[list[int]] = []
        """Tokens of each completion, of each call."""
        self.wrong_calls = 0
        """Calls to come in which every token looks impossible."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def replay(
        self,
        requests: Sequence[GenerationRequest],
        token_ids: Sequence[Sequence[int]],
        probes: Sequence[Sequence[int]] = (),
    ) -> list[Scored]:
        self.calls.append([len(ids) for ids in token_ids])
        scored: list[Scored] = self._scorer.replay(requests, token_ids, probes)
        if self.wrong_calls:
            self.wrong_calls -= 1
            return [replace(row, margins=(9.0,) * len(row.margins)) for row in scored]
        return scored


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRun]:
    made = SmallRun(tmp_path_factory.mktemp("run") / "run", max_new_tokens=TOKENS)
    made.publish(0, step=0)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def short_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model's context is short."""
    monkeypatch.setattr(prefix_replay, "PREFIX_TOKENS", PREFIX)


@pytest.fixture
def scorer(run: SmallRun) -> CountingScorer:
    return CountingScorer(run.scorer)


def full_length(run: SmallRun, peer: Identity, slot: int, *, right: int) -> RolloutGroup:
    """A group whose first `right` tokens are honest, and the others invented, as long as the run allows."""
    policy = run.published.newest
    assert policy is not None
    honest = run.group(policy, peer, slot)
    rng = np.random.default_rng(slot)
    completions = []
    for each in honest.completions:
        ids = [*np.frombuffer(each.tokens, dtype="<u4")[: min(right, len(each.tokens) // 4 - 1)]]
        ids += list(rng.integers(0, 10, TOKENS - len(ids)))
        completions.append(
            Completion(np.asarray(ids, dtype="<u4").tobytes(), bytes(2 * TOKENS), finished=False, reward=0.0)
        )
    return altered(honest, completions=tuple(completions))


def check(
    run: SmallRun, scorer: CountingScorer, groups: Sequence[StoredGroup], known: Sequence[bytes] = ()
) -> tuple[list[Outcome], Replayer]:
    replayer = Replayer(ReplayTools(scorer, run.work), timer=iter(range(1000)).__next__)
    admitted = [
        replace(each, is_known=each.stored.peer in known) if isinstance(each, Candidate) else each
        for each in Admission(run.storage, DecodedGroups()).admit(groups, 0)
    ]
    return replayer.check(admitted), replayer


def mixed(run: SmallRun) -> list[StoredGroup]:
    policy = run.published.newest
    assert policy is not None
    return [
        run.sealed(run.group(policy, HONEST, 0), HONEST),
        run.sealed(full_length(run, CHEAT, 0, right=0), CHEAT),
        run.sealed(run.group(policy, HONEST, 1), HONEST),
        run.sealed(full_length(run, CHEAT, 1, right=0), CHEAT),
    ]


def test_standing_changes_what_a_check_costs_and_not_what_it_finds(run: SmallRun, scorer: CountingScorer) -> None:
    groups = mixed(run)
    checked = [check(run, scorer, groups, known)[0] for known in ((), (HONEST.public_key, CHEAT.public_key))]
    for new, known in zip(*checked, strict=True):
        assert (new.state, new.reason, new.rewards, new.is_forged) == (
            known.state,
            known.reason,
            known.rewards,
            known.is_forged,
        )
        if new.state is ReceiptState.VERIFIED:
            assert new.replay == known.replay
    assert [each.reason for each in checked[0]] == ["", RejectionReason.SEED_MISMATCH] * 2
    assert [each.is_forged for each in checked[0]] == [False, True] * 2


def test_invented_text_of_a_newcomer_costs_its_first_tokens(run: SmallRun, scorer: CountingScorer) -> None:
    forged = [run.sealed(full_length(run, CHEAT, slot, right=0), CHEAT) for slot in range(4)]
    check(run, scorer, forged)
    assert max(length for call in scorer.calls for length in call) <= PREFIX
    cheap = sum(map(sum, scorer.calls))
    scorer.calls.clear()
    check(run, scorer, forged, [CHEAT.public_key])
    assert scorer.calls[0] == [TOKENS] * 8, "a known peer's groups are replayed in full at once"
    assert cheap < sum(map(sum, scorer.calls)) / 3


def test_text_that_is_invented_later_is_found_by_the_full_replay(run: SmallRun, scorer: CountingScorer) -> None:
    found = 0
    for slot in range(8):
        group = full_length(run, CHEAT, slot, right=PREFIX)
        scorer.calls.clear()
        ((outcome,), _) = check(run, scorer, [run.sealed(group, CHEAT)])
        assert outcome.reason == RejectionReason.SEED_MISMATCH
        found += [TOKENS] * 2 in scorer.calls
    assert found, "no completion was long enough to hold for the first tokens"


def test_a_replay_that_errs_once_is_no_forgery_and_costs_no_honest_group(run: SmallRun, scorer: CountingScorer) -> None:
    policy = run.published.newest
    assert policy is not None
    honest = [run.sealed(run.group(policy, HONEST, slot), HONEST) for slot in range(3)]
    scorer.wrong_calls = 1
    outcomes, _ = check(run, scorer, honest, [HONEST.public_key])
    assert [(each.state, each.is_forged) for each in outcomes] == [(ReceiptState.VERIFIED, False)] * 3


def test_forgeries_are_confirmed_one_completion_at_a_time_and_only_as_often_as_it_matters(
    run: SmallRun, scorer: CountingScorer
) -> None:
    forged = [run.sealed(full_length(run, CHEAT, slot, right=0), CHEAT) for slot in range(6)]
    outcomes, _ = check(run, scorer, forged)
    assert sum(each.is_forged for each in outcomes) == 3
    assert {each.reason for each in outcomes} == {RejectionReason.SEED_MISMATCH}
    assert [len(call) for call in scorer.calls] == [12, 1, 1, 1]


def test_seconds_of_newcomers_are_told_apart(run: SmallRun, scorer: CountingScorer) -> None:
    groups = mixed(run)
    assert check(run, scorer, groups, [HONEST.public_key, CHEAT.public_key])[1].newcomers_s == 0
    assert check(run, scorer, groups[1:2])[1].newcomers_s == 3, "to load the version, for the first tokens, and again"
    part = check(run, scorer, groups, [HONEST.public_key])[1].newcomers_s
    assert 0 < part < 3


def test_no_number_is_no_forgery(run: SmallRun, scorer: CountingScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that has diverged gives no numbers; that is its learner's fault, not a volunteer's."""
    policy = run.published.newest
    assert policy is not None
    honest = scorer.replay

    def broken(*arguments: Any) -> list[Scored]:
        nan = float("nan")
        return [replace(row, margins=(nan,) * len(row.margins)) for row in honest(*arguments)]

    monkeypatch.setattr(scorer, "replay", broken)
    ((outcome,), _) = check(run, scorer, [run.sealed(run.group(policy, HONEST, 0), HONEST)])
    assert (outcome.state, outcome.is_forged) == (ReceiptState.REJECTED, False)
