"""Reaction to refused work: say so, replay, keep evidence, and stop with a cause."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from p2prl.client.evidence import MAX_CASES, Case, Evidence, write_evidence
from p2prl.client.refusals import VOIDED_AT, Fault, Refusals, Replayed
from p2prl.client.spool import Spool
from p2prl.errors import MachineError, P2PRLError, WorkRefusedError
from p2prl.plain_text import counted
from p2prl.protocol.ledger_messages import Receipt
from p2prl.protocol.rejection_reasons import RejectionReason

ReplayRefused = Callable[[bytes, bytes, str], Replayed]
"""Replays a group on this machine: its envelope, its body, and the reason of the learner's receipt. It never raises for
what a group or a machine may lack: then a replay is impossible."""


class RefusedWork:
    """The learner's refusals of this machine's groups, and what follows from them."""

    def __init__(
        self, spool: Spool, evidence: Path, replay: ReplayRefused | None, on_notice: Callable[[str], None]
    ) -> None:
        """`evidence` is the file to keep signed proof in. Without `replay` none is possible."""
        self._spool = spool
        self._path = evidence
        self._replay = replay
        self._on_notice = on_notice
        self._manifest = b""
        self._was_told = False
        self._seen = Refusals()

    def on_run(self, manifest: bytes) -> None:
        """The envelope of the run's manifest."""
        self._manifest = manifest

    def on_judged(self, receipt: Receipt, receipts: bytes) -> None:
        """The learner's receipt of a group of this machine, and the envelope that it came in."""
        self._seen.on_judged(receipt, receipts)
        if self._seen.is_doubtful and not self._was_told:
            self._was_told = True
            self._on_notice(
                f"the learner rejected {self._counts()}: this machine samples one slot at a time until it knows why, "
                "and replays some of them"
            )
        elif not self._seen.is_doubtful:
            self._was_told = False

    @property
    def slow_reason(self) -> str:
        """Why to sample one slot at a time; empty while there is no reason."""
        return "waiting for the learner's next receipt: it rejects this machine's groups" if self._was_told else ""

    @property
    def wants_replay(self) -> bool:
        """Whether a group is to be replayed, for which the engine's memory has to be free."""
        return self._replay is not None and self._seen.to_replay() is not None

    def replay_next(self) -> None:
        """Replay one refused group. Takes as long as a validator needs for it."""
        refused = self._seen.to_replay()
        if refused is None or self._replay is None:
            return
        kept = self._spool.bytes_of(refused.group)
        found = Replayed.IMPOSSIBLE if kept is None else self._replay(*kept, refused.reason)
        self._seen.on_replay(refused.group, found)

    @property
    def is_over(self) -> bool:
        """Whether to stop: whose fault it is can be told, or nothing of this machine is accepted."""
        return self._fault() is not None

    def error(self) -> P2PRLError | None:
        """Why the volunteer stopped; None when refused work is not why. Keeps evidence if the learner may be wrong."""
        fault = self._fault()
        if fault is None:
            return None
        if fault is Fault.MACHINE:
            wrong = list(self._seen.replays.values()).count(Replayed.WRONG)
            return MachineError(
                f"the learner rejected {self._counts()}, and this machine's own replay says the same of {wrong} of the "
                f"{len(self._seen.replays)} it replayed: it samples wrong numbers",
                remedy="Undo overclocking, test its memory and graphics card, update the driver; p2prl doctor computes "
                "known answers. Another --engine may be right where this one is wrong.",
            )
        write_evidence(self._path, self._evidence())
        return WorkRefusedError(
            f"the learner rejected {self._counts()}; {self._cause(fault)}",
            remedy="Lend this machine to another run, or ask the run's operator. You may hand the signed proof to "
            f"anybody; to see and check it: p2prl receipts evidence {shlex.quote(str(self._path))}",
        )

    def _fault(self) -> Fault | None:
        return self._seen.fault() if self._replay is not None else self._without_replay()

    def _without_replay(self) -> Fault | None:
        while (refused := self._seen.to_replay()) is not None:
            self._seen.on_replay(refused.group, Replayed.IMPOSSIBLE)
        return self._seen.fault()

    def _cause(self, fault: Fault) -> str:
        replays = list(self._seen.replays.values())
        if fault is Fault.LEARNER:
            right = replays.count(Replayed.RIGHT)
            return f"this machine replayed {len(replays)} of them with the run's own weights, and found {right} right"
        undecided = replays.count(Replayed.UNDECIDED)
        if undecided:
            return f"a replay here found nothing wrong with {undecided} of them, and cannot check the reason given"
        return "they cannot be replayed here any more, so this machine cannot say whose fault it is"

    def _counts(self) -> str:
        """For a sentence: how much of which was refused, and why."""
        seen = self._seen
        if seen.voided_in_a_row >= VOIDED_AT:
            return f"{seen.voided_in_a_row} groups of this machine one after another ({RejectionReason.WITHHELD_SLOTS})"
        return f"{seen.refused} of {counted(seen.judged, 'group')} of this machine that it judged ({seen.reasons()})"

    def _evidence(self) -> Evidence:
        cases = []
        for refused in list(self._seen.newest)[-MAX_CASES:]:
            kept = self._spool.bytes_of(refused.group)
            if kept is not None:
                replay = self._seen.replays.get(refused.group)
                name = "" if replay is None else replay.value
                cases.append(Case(receipts=refused.receipts, group=kept[0], body=kept[1], replay=name))
        return Evidence(
            manifest=self._manifest, judged=self._seen.judged, refused=self._seen.refused, cases=tuple(cases)
        )
