"""Replay of admitted groups in the order of cost: inspection, first tokens, all tokens, and a second look at forgeries.

Groups of peers without standing are replayed by their first tokens, all in one prefill, and in full only if those hold
(`p2prl/models/replay/prefix_replay.py`); groups of known peers at once in full. Who passes does not depend on it. A
group with an impossible token is replayed once more, alone: if that confirms it, it is a forgery, of which a few
exclude its author; if not, the group is replayed as a whole by itself, and that counts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from p2prl.learner.intake.admission import Candidate, Outcome
from p2prl.learner.intake.exclusions import CONFIRMED_FORGERIES
from p2prl.models.groups.group_work import Inspection, ReplayTools
from p2prl.models.replay.group_replay import Replay, replay_groups
from p2prl.models.replay.loaded_policy import LoadedPolicy
from p2prl.models.replay.prefix_replay import ImpossibleToken, confirms, first_impossible, is_worthwhile
from p2prl.models.rewards.scoring import PendingRewards
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.verdict_probes import candidate_tokens

_Entry = tuple[int, Candidate, Inspection]
"""Place in the batch, the group, and its inspection."""


def _no_timer() -> float:
    """In virtual time a replay takes none."""
    return 0.0


class Replayer:
    """Inspects and replays admitted groups with a model of its own. Touches nothing of the main thread's."""

    def __init__(self, tools: ReplayTools, *, timer: Callable[[], float] = _no_timer) -> None:
        """`timer` gives seconds of any origin."""
        self._work = tools.work
        self._scorer = tools.scorer
        self._baselines = tools.baselines
        self._replayers = tools.replayers
        self._timer = timer
        self.policy = LoadedPolicy(tools.scorer)
        """The policy in the scorer."""
        self._newcomers_s = 0.0

    def close(self) -> None:
        """End the processes that score answers, and keep what was measured of engines."""
        self._work.close()
        self._baselines.save()

    @property
    def figures(self) -> dict[str, int]:
        """Answers that could not be scored or read to their end, in a run with data or a reward model, and the number
        of replayers if there are any, as keys of the metrics log."""
        found = {"scorer_failures": self._work.scorer_failures} if self._work.scores_data else {}
        if self._replayers:
            found["replay/replayers"] = self._replayers
        cut = self._work.reward_model_cut
        return found if cut is None else found | {"reward_model_cut": cut}

    @property
    def newcomers_s(self) -> float:
        """Seconds that the last `check` spent on groups of peers without standing; read it once that has ended."""
        return self._newcomers_s

    def check(self, admitted: Sequence[Candidate | Outcome]) -> list[Outcome]:
        """One outcome per group, in order. Loads each policy version once, and not the one that is loaded.

        All groups are scored together, so that one author's slow answers cost the others nothing.
        """
        self._newcomers_s = 0.0
        outcomes: dict[int, Outcome] = {}
        scoring: dict[int, PendingRewards] = {}
        inspections: dict[int, Inspection] = {}
        to_replay = self._inspect(admitted, outcomes)
        for digest, entries in sorted(to_replay.items(), key=lambda item: item[0] != self.policy.digest):
            began = self._timer()
            self.policy.load(digest, entries[0][1].weights)
            if not any(candidate.is_known for _, candidate, _ in entries):
                self._newcomers_s += self._timer() - began
            for (index, candidate, inspection), outcome in self._replay(entries):
                outcomes[index] = outcome
                if outcome.state is ReceiptState.VERIFIED:
                    inspections[index] = inspection
                    scoring[index] = self._work.start_rewards(
                        inspection.assignment, inspection.token_ids, account=candidate.stored.peer
                    )
        for index, pending in scoring.items():
            rewards = pending()
            outcomes[index] = dataclasses.replace(
                outcomes[index],
                rewards=rewards.values,
                parts=rewards.parts,
                step_rewards=self._work.step_rewards(inspections[index].token_ids, rewards),
            )
        return [outcomes[index] for index in range(len(admitted))]

    def _inspect(
        self, admitted: Sequence[Candidate | Outcome], outcomes: dict[int, Outcome]
    ) -> dict[bytes, list[_Entry]]:
        """The groups worth a replay, by their policy; the outcomes of all others are added to `outcomes`."""
        to_replay: dict[bytes, list[_Entry]] = {}
        slots_here: set[tuple[bytes, int]] = set()
        for index, entry in enumerate(admitted):
            if isinstance(entry, Outcome):
                outcomes[index] = entry
                continue
            stored, group = entry.stored, entry.group
            slot = (stored.peer, group.slot)
            if slot in slots_here:
                outcomes[index] = Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT)
                continue
            inspection = self._work.inspect(group, peer=stored.peer, beacon=entry.policy.manifest.beacon)
            if inspection.reason:
                outcomes[index] = Outcome(stored, group, ReceiptState.REJECTED, inspection.reason)
            else:
                slots_here.add(slot)
                to_replay.setdefault(entry.policy.digest, []).append((index, entry, inspection))
        return to_replay

    def _replay(self, entries: Sequence[_Entry]) -> list[tuple[_Entry, Outcome]]:
        """The outcomes of groups of the policy that is loaded, rewards not included."""
        began = self._timer()
        doubtful = [entry for entry in entries if not entry[1].is_known and is_worthwhile(entry[2])]
        found: dict[int, ImpossibleToken] = {}
        if doubtful:
            tokens = first_impossible(self._scorer, [inspection for _, _, inspection in doubtful])
            found = {entry[0]: token for entry, token in zip(doubtful, tokens, strict=True) if token is not None}
        whole = [entry for entry in entries if entry[0] not in found]
        after_prefixes = self._timer()
        replays = dict(zip((entry[0] for entry in whole), self._replay_whole(whole), strict=True))
        replayed = self._timer()
        found |= {i: replay.impossible for i, replay in replays.items() if replay.impossible is not None}
        confirmed: Counter[bytes] = Counter()
        results = [(entry, self._outcome(entry, replays, found, confirmed)) for entry in entries]
        twice = [entry for entry in entries if entry[0] in found]
        self._newcomers_s += _newcomers_part(doubtful) * (after_prefixes - began)
        self._newcomers_s += _newcomers_part(whole) * (replayed - after_prefixes)
        self._newcomers_s += _newcomers_part(twice) * (self._timer() - replayed)
        return results

    def _replay_whole(self, entries: Sequence[_Entry]) -> list[Replay]:
        """Replays of all tokens, with the log-probs that verdicts are checked with."""
        work = [(candidate.group, inspection) for _, candidate, inspection in entries]
        candidates = [
            candidate_tokens(candidate.stored.digest, [ids[-1] for ids in seen.token_ids], self._work.vocabulary)
            for _, candidate, seen in entries
        ]
        if not work:
            return []
        measured = self._baselines.measured
        return replay_groups(self._scorer, work, run_dtype=self._work.dtype, measured=measured, candidates=candidates)

    def _outcome(
        self,
        entry: _Entry,
        replays: dict[int, Replay],
        found: dict[int, ImpossibleToken],
        confirmed: Counter[bytes],
    ) -> Outcome:
        """The outcome of a group from its replay or its impossible token, after a second look at the latter.

        A peer with as many confirmed forgeries as exclude it gets no further second look in this batch.
        """
        index, candidate, inspection = entry
        token, replay, peer = found.get(index), replays.get(index), candidate.stored.peer
        is_forged = False
        if token is not None and confirmed[peer] < CONFIRMED_FORGERIES:
            is_forged = confirms(self._scorer, inspection, token)
            confirmed[peer] += is_forged
            if not is_forged:
                (replay,) = self._replay_whole([entry])
        stored, group, policy = candidate.stored, candidate.group, candidate.policy
        if replay is not None and not replay.reason:
            return Outcome(stored, group, ReceiptState.VERIFIED, "", policy, replay)
        reason = RejectionReason.SEED_MISMATCH if replay is None else replay.reason
        return Outcome(stored, group, ReceiptState.REJECTED, reason, policy, replay, is_forged=is_forged)


def _newcomers_part(entries: Sequence[_Entry]) -> float:
    """Share of the tokens that are of peers without standing."""
    tokens = [(sum(map(len, inspection.token_ids)), candidate.is_known) for _, candidate, inspection in entries]
    return sum(size for size, is_known in tokens if not is_known) / max(1, sum(size for size, _ in tokens))
