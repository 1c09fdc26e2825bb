"""A learner that trusts: it trains on every group as it is delivered, for simulations of what the checks are worth.

It takes the tokens, log-probs and rewards that a volunteer claims, in any slot and any number, and knows no standing.
What bounds its memory and disk stays: rates of arrival, and peers in turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2prl.learner.assembly import Judges
from p2prl.learner.intake.admission import Admission, Candidate, Outcome
from p2prl.learner.intake.batch_caps import Contributor
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.intake.slot_accounts import SlotAccount
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.learner.journal.groups import StoredGroup
from p2prl.models.replay.group_replay import Replay
from p2prl.models.replay_statistics.baselines import NoiseEvidence
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.standing import Rank


class TrustingAdmission(Admission):
    """Admits groups of slots that are filled. Versions and their staleness are a matter of training, not of trust."""

    def admit(self, groups: Sequence[StoredGroup], step: int) -> list[Candidate | Outcome]:
        """See `Admission.admit`."""
        return [self._trusted(entry) for entry in super().admit(groups, step)]

    def _trusted(self, entry: Candidate | Outcome) -> Candidate | Outcome:
        if isinstance(entry, Candidate) or entry.reason != RejectionReason.DUPLICATE_SLOT:
            return entry
        policy = self._published.get(entry.group.version, entry.group.policy)
        return entry if policy is None else Candidate(entry.stored, entry.group, policy, lambda: memoryview(b""))


class TrustingReplayer(Replayer):
    """Replays nothing: every group is what it claims to be."""

    def check(self, admitted: Sequence[Candidate | Outcome]) -> list[Outcome]:
        """See `Replayer.check`."""
        return [entry if isinstance(entry, Outcome) else _as_claimed(entry) for entry in admitted]


class FreeSlots(SlotPrices):
    """Keeps no accounts: any slot may come at any time."""

    def has_room(self, peer: bytes, slot: int, *, now: float) -> bool:
        """See `SlotPrices.has_room`."""
        del peer, slot, now
        return True

    def arrived(self, peer: bytes, slot: int, version: int, *, stale: bool, now: float) -> str:
        """See `SlotPrices.arrived`."""
        del peer, slot, version, stale, now
        return ""

    def price(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], dict[bytes, SlotAccount]]:
        """See `SlotPrices.price`."""
        return list(outcomes), {}


class EqualStandings(PeerStandings):
    """Everybody is known, and no share of a batch is too large."""

    def rank(self, peer: bytes) -> Rank:
        """See `PeerStandings.rank`."""
        del peer
        return Rank.KNOWN

    def contributor(self, peer: bytes) -> Contributor:
        """See `PeerStandings.contributor`."""
        del peer
        return Contributor(b"", is_known=True)


TRUSTING = Judges(admission=TrustingAdmission, replayer=TrustingReplayer, prices=FreeSlots, standings=EqualStandings)
"""No checks at all."""


def _as_claimed(candidate: Candidate) -> Outcome:
    group = candidate.group
    rows = [np.frombuffer(each.logprobs, dtype="<f2").astype(np.float64) for each in group.completions]
    replay = Replay(
        reason="",
        behavior_logprobs=tuple(tuple(row.tolist()) for row in rows),
        mismatched=0,
        tokens=sum(len(row) for row in rows),
        worst_margin=0.0,
        pair=(group.engine, group.engine),
        evidence=NoiseEvidence(),
    )
    rewards = tuple(each.reward for each in group.completions)
    return Outcome(candidate.stored, group, ReceiptState.VERIFIED, "", candidate.policy, replay, rewards)
