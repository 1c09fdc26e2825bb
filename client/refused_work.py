"""Reaction to refused work: say so, replay, keep evidence, and stop with a cause."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from p2prl.client.evidence import MAX_CASES, Case, Evidence, evidence_path, write_evidence
from p2prl.client.refusal_judgement import VOIDED_AT, Fault, Refusals, Replayed
from p2prl.client.spool import Spool
from p2prl.errors import MachineError, P2PRLError, WorkRefusedError
from p2prl.plain_text import counted
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason

ReplayRefused = Callable[[bytes, bytes, str], Replayed]
"""Replays a group on this machine: its envelope, its body, and the reason of the learner's receipt. It never raises for
what a group or a machine may lack: then a replay is impossible."""


RECEIPTS_TO_STOP = 3
"""Groups rejected with `excluded` after which a volunteer stops: one fewer than a learner sends in one exclusion."""

COUNTED_FOR_S = 24 * 3600.0
"""Age of a group from which its rejection counts no more: the exclusion may have ended since."""


def exclusion_error() -> MachineError:
    """What the owner is told."""
    return MachineError(
        "the learner has excluded this machine's key: several of its groups were not what the policy samples, and a "
        "second replay confirmed it each time",
        remedy="If you changed nothing, this machine computes wrong numbers: undo overclocking, test its memory and "
        "graphics card, update the driver. The exclusion ends by itself, the first after an hour, each further one "
        "after twice as long: start again then. Credit that is final stays.",
    )


class RefusedWork:
    """The learner's refusals of this machine's groups, and what follows from them."""

    def __init__(
        self,
        spool: Spool,
        spool_path: Path,
        replay: ReplayRefused | None,
        on_notice: Callable[[str], None],
        manifest: Callable[[], bytes],
    ) -> None:
        """Signed proof is kept beside the spool. Without `replay` none is possible. `manifest` gives the envelope of
        the run's manifest."""
        self._spool = spool
        self._path = evidence_path(spool_path)
        self._replay = replay
        self._on_notice = on_notice
        self._manifest = manifest
        self._is_excluded = False
        self._was_told = False
        self._seen = Refusals()

    def on_judged(self, receipt: Receipt, receipts: bytes, *, now: float) -> None:
        """The learner's receipt of a group of this machine, and the envelope that it came in."""
        if receipt.state == ReceiptState.REJECTED and receipt.reason == RejectionReason.EXCLUDED:
            counted_now = self._spool.rejected_since(receipt.reason, now - COUNTED_FOR_S)
            self._is_excluded = counted_now >= RECEIPTS_TO_STOP
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

    def replay(self) -> None:
        """Replay refused groups until that settles it. Each takes as long as a validator needs for it."""
        while self._replay is not None and (refused := self._seen.to_replay()) is not None:
            kept = self._spool.bytes_of(refused.group)
            found = Replayed.IMPOSSIBLE if kept is None else self._replay(*kept, refused.reason)
            self._seen.on_replay(refused.group, found)

    @property
    def is_over(self) -> bool:
        """Whether to stop: this key is excluded, whose fault it is can be told, or nothing of it is accepted."""
        return self._is_excluded or self._fault() is not None

    def error(self) -> P2PRLError | None:
        """Why the volunteer stopped; None when refused work is not why. Keeps evidence if the learner may be wrong."""
        if self._is_excluded:
            return exclusion_error()
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
            manifest=self._manifest(), judged=self._seen.judged, refused=self._seen.refused, cases=tuple(cases)
        )
