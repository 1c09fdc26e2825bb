"""Checks of stored groups: choose a batch, admit it, replay it behind a stage, and settle the outcomes.

Between two replays the stage runs slices of evaluations, which share the replay's model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from p2prl.learner.evaluation.evaluations import Evaluations
from p2prl.learner.intake.admission import Admission, Candidate, Outcome
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replay_backlog import ReplayBacklog, WaitingGroup
from p2prl.learner.intake.replay_pace import ReplayPace
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.settlement import Settlement
from p2prl.learner.journal.journal import Journal
from p2prl.learner.timing.stages import Stage
from p2prl.protocol.envelope import body_of
from p2prl.protocol.ledger_messages import Receipts
from p2prl.protocol.standing import Rank

_USELESS_AT_ONCE = 64
"""Stale groups settled in one turn: a ledger entry of this many receipts, so that messages are answered in between."""


class GroupChecks:
    """Moves groups from the backlog to their receipts. It is given every part of a check, because none of them
    knows the others."""

    def __init__(
        self,
        *,
        journal: Journal,
        backlog: ReplayBacklog,
        buffer: RolloutBuffer,
        admission: Admission,
        replayer: Replayer,
        settlement: Settlement,
        standings: PeerStandings,
        stage: Stage,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._journal = journal
        self._backlog = backlog
        self._buffer = buffer
        self._admission = admission
        self._replayer = replayer
        self._settlement = settlement
        self._standings = standings
        self._stage = stage
        self._evaluations = evaluations
        self._pace = ReplayPace()
        self._evaluated: Callable[[Any, float], None] | None = None
        """What to do with the result of the slice on the stage; None for a replay."""

    @property
    def ready_groups(self) -> int:
        """Verified groups in the buffer."""
        return len(self._buffer)

    @property
    def waiting_groups(self) -> int:
        """Groups that are stored or verified and not trained on yet."""
        return len(self._backlog) + len(self._buffer)

    @property
    def figures(self) -> dict[str, float]:
        """Queue lengths, pace, failures of scorers and the newest evaluation, as keys of the metrics log."""
        return self.evaluation_figures | {
            **self._replayer.figures,
            **self._pace.figures,
            "queue/stored_groups": len(self._backlog) - self._backlog.in_replay,
            "queue/replaying_groups": self._backlog.in_replay,
        }

    @property
    def evaluation_figures(self) -> dict[str, float]:
        """The newest evaluation, as keys of the metrics log; empty before the first, and where there are none."""
        return {} if self._evaluations is None else self._evaluations.figures

    @property
    def unsettled_groups(self) -> int:
        """Stored groups that wait for their receipt."""
        return len(self._backlog)

    def is_due(self, step: int) -> bool:
        """Whether `start` would find work at `step`."""
        return not self._stage.busy and self._backlog.has_work(
            self._buffer.wanted, self._useful_at(step), wanted_of_known=self._buffer.wanted_of_known
        )

    def update_ended(self, seconds: float) -> None:
        """An update took this long."""
        self._backlog.update_ended(seconds)

    def start(self, *, step: int) -> bool:
        """Settle groups that are stale or of excluded peers, and replay what is next unless a replay is running.

        True when the ledger has grown.
        """
        if self._stage.busy:
            return False
        useless = self._backlog.useless(self._useful_at(step), _USELESS_AT_ONCE)
        if useless:
            self._settle([each for each in self._admit(useless, step) if isinstance(each, Outcome)], step)
        self._replay(self._buffer.wanted, step, wanted_of_known=self._buffer.wanted_of_known)
        return bool(useless)

    def finish(self, *, step: int, wait: bool = False) -> bool:
        """Settle the groups whose replay has ended; with `wait`, once it ends. True when the ledger has grown."""
        results = self._stage.take(wait=wait)
        if results and self._evaluated is not None:
            evaluated, self._evaluated = self._evaluated, None
            evaluated(results[0], self._stage.job_s)
            return False
        for outcomes in results:
            self._backlog.replay_ended(self._stage.job_s, newcomers_s=self._replayer.newcomers_s)
            self._pace.replayed(len(outcomes), self._stage.job_s)
            self._settle(outcomes, step, surplus=self._backlog.is_surplus)
        return bool(results)

    def evaluate(self, *, idle: bool, finished: bool = False) -> bool:
        """Begin a slice of an evaluation, if the stage is free and there is time. False when no version is due.

        `idle` means that the learner has nothing else to do now; `finished`, that the newest version is the last.
        """
        evaluations = self._evaluations
        if evaluations is None or not evaluations.is_due(finished=finished):
            return False
        if not self._stage.busy and (part := evaluations.next_slice(idle=idle)) is not None:
            self._evaluated = part.then
            self._stage.start(part.job)
        return True

    def stop_evaluating(self) -> None:
        """Give up the slice in progress soon, and begin no other."""
        if self._evaluations is not None:
            self._evaluations.stop()

    def settle_next(self, *, step: int) -> bool:
        """Settle some of the groups that wait, however full the buffer is, and wait for it. False when none waits."""
        if self._evaluated is not None:
            self.finish(step=step, wait=True)
        if not self._stage.busy:
            self._replay(len(self._backlog), step)
        return self.finish(step=step, wait=True)

    def close(self) -> None:
        """Free the stage. Groups in replay keep waiting in the journal."""
        self.stop_evaluating()
        self._stage.close()
        self._replayer.close()

    def _replay(self, wanted: int, step: int, *, wanted_of_known: int = 0) -> None:
        batch = self._backlog.next_batch(wanted, wanted_of_known=wanted_of_known)
        if batch:
            admitted = self._admit(batch, step)
            self._stage.start(lambda: self._replayer.check(admitted))

    def _admit(self, groups: Sequence[WaitingGroup], step: int) -> list[Candidate | Outcome]:
        """The groups ready for their replay, and the outcomes of those that need none, in order."""
        stored = self._journal.groups.by_digest([group.digest for group in groups])
        excluded = {group.peer for group in groups if self._standings.is_excluded(group.peer)}
        admitted = iter(self._admission.admit([each for each in stored if each.peer not in excluded], step))
        entries = [self._admission.exclude(each) if each.peer in excluded else next(admitted) for each in stored]
        return [self._with_standing(entry) if isinstance(entry, Candidate) else entry for entry in entries]

    def _with_standing(self, candidate: Candidate) -> Candidate:
        return replace(candidate, is_known=self._standings.rank(candidate.stored.peer) is Rank.KNOWN)

    def _settle(self, outcomes: list[Outcome], step: int, *, surplus: bool = False) -> None:
        receipts = self._settlement.settle(outcomes, step=step, surplus=surplus)
        self._standings.note(body_of(receipts, Receipts).receipts, receipts.sent_ms / 1000)
        forged = [each.stored for each in outcomes if each.is_forged and self._standings.forged(each.stored.peer)]
        self._settlement.keep_evidence(forged)
        self._backlog.settled([outcome.stored.digest for outcome in outcomes])

    def _useful_at(self, step: int) -> Callable[[WaitingGroup], bool]:
        """Whether a group is worth a replay: of a version that is not too stale, of a peer that is not excluded."""
        usable: dict[int, bool] = {}
        excluded: dict[bytes, bool] = {}

        def is_useful(group: WaitingGroup) -> bool:
            if group.version not in usable:
                usable[group.version] = self._admission.is_usable(group.version, step)
            if group.peer not in excluded:
                excluded[group.peer] = self._standings.is_excluded(group.peer)
            return usable[group.version] and not excluded[group.peer]

        return is_useful
