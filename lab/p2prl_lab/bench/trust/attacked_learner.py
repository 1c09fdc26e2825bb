"""A learner under attack: groups are delivered to it, and it answers with receipts and trains on what it credits.

Everything that judges a group is the product's: the learner is assembled as `p2prl learn` does it, with its intake,
slot prices, replay, settlement, caps and training, on a journal on disk. Only its network is a list of messages, and
its clock a number.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.algorithms.loss_registry import build_loss
from p2prl.learner.assembly import LearnerParts, assemble_learner
from p2prl.learner.journal.journal import Journal
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.timing.next_update import Action
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.net.process import control
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState
from p2prl.protocol.signed_group import seal_group
from p2prl.sim.virtual_time import START
from p2prl.swarm import signals
from p2prl_lab.bench.trust.attack_run import AttackRun, Entry

_AT_ONCE = 32
"""Groups delivered between two turns of the learner."""

_GROUPS_PER_UPDATE = 16
_UPDATES = 4
"""Updates that fewer groups suffice for, when all are credited: what is credited shows in training."""

_MOST_TURNS = 10_000


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a delivered group. Both are empty for one that was not stored."""

    entry: Entry
    receipt: Receipt | None
    trained_on: bool

    @property
    def credited(self) -> bool:
        """Whether it is paid for."""
        return self.receipt is not None and self.receipt.state == ReceiptState.VERIFIED

    @property
    def reason(self) -> str:
        """Why it is not."""
        return "not stored" if self.receipt is None else self.receipt.reason


class _Clock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> float:
        return self.time


class _ListPort:
    """A network port that hands over what was put into it, and keeps what it is sent."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bodies: dict[Digest, tuple[bytes, bytes]] = {}
        self._inbox: list[control.FromNetwork] = []
        self.policies: list[bytes] = []
        self.receipts: dict[bytes, Receipt] = {}

    def deliver(self, raw: bytes, body: bytes) -> Digest:
        """Put a group into the inbox; returns its name."""
        self._inbox.append(control.EnvelopeArrived(raw))
        digest = envelope_digest(raw)
        if body:
            self._bodies[digest] = raw, body
        return digest

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, signals.FetchGroup):
            raw, body = self._bodies.pop(Digest(message.digest))
            path = self._directory / "body"
            path.write_bytes(body)
            self._inbox.append(control.GroupFetched(raw, str(path)))
        elif isinstance(message, signals.Publish):
            opened = open_envelope(message.envelope, now=None)
            if opened.kind is Kind.POLICY_MANIFEST:
                self.policies.append(message.envelope)
            elif isinstance(opened.body, Receipts):
                self.receipts |= {receipt.group: receipt for receipt in opened.body.receipts}

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        del timeout_s
        messages, self._inbox = self._inbox, []
        return messages

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class AttackedLearner:
    """A learner of a run, from its first version on."""

    def __init__(self, run: AttackRun, directory: Path, *, groups: int) -> None:
        """`groups` will be delivered: an update takes as many as always, or a part of them where they are few."""
        self._run = run
        self._clock = _Clock()
        self._port = _ListPort(directory)
        self._paths = LearnerPaths(directory)
        training = LoadedModel(model=copy.deepcopy(run.loaded.model), tokenizer=run.loaded.tokenizer)
        self._learner = assemble_learner(
            LearnerParts(
                paths=self._paths,
                identity=run.key,
                manifest=run.manifest,
                run=run.run,
                training=training,
                layout=run.layout,
                replaying=run.replaying,
                loss=LossPipeline.plain(build_loss("gepo_t")),
                config=LearnerConfig(
                    groups_per_update=max(1, min(_GROUPS_PER_UPDATE, groups // _UPDATES)),
                    updates=0,
                    checkpoint_every=1_000_000,
                ),
                clock=self._clock,
                random_bytes=random.Random(f"trust/{run.size.seed}").randbytes,  # noqa: S311 - the same each time
                on_metrics=_ignore,
                on_notice=_ignore,
            )
        )
        self._learner.attach(self._port)
        self._turn_until(lambda _: bool(self._port.policies))
        run.published(self._port.policies[0])

    def settle(self, entries: Sequence[Entry], *, wait_s: float = 0.0) -> list[Settled]:
        """Deliver groups in this order, `wait_s` apart, and return what became of each. Closes the learner."""
        digests = []
        at_once = 1 if wait_s else _AT_ONCE
        for start in range(0, len(entries), at_once):
            for identity, group in entries[start : start + at_once]:
                raw, body = seal_group(identity, group, run=self._run.run, now=self._clock.now())
                digests.append(self._port.deliver(raw, body))
            self._turn_until(lambda action: action is Action.COLLECT and not self._learner.counts().get("stored"))
            # What the last check verified may fill an update, which the next turn begins.
            self._turn_until(lambda action: action is Action.COLLECT)
            self._clock.time += wait_s
        self._learner.close()
        trained = self._trained()
        return [
            Settled(entry, self._port.receipts.get(digest), digest in trained)
            for entry, digest in zip(entries, digests, strict=True)
        ]

    def _trained(self) -> set[bytes]:
        """Groups in the batches of all updates."""
        journal = Journal(self._paths.journal)
        batches = (journal.batches.at_step(step) or [] for step in range(self._learner.step))
        trained = {digest for batch in batches for digest in batch}
        journal.close()
        return trained

    def _turn_until(self, is_done: Callable[[Action], bool]) -> None:
        for _ in range(_MOST_TURNS):
            if is_done(self._learner.turn(wait_s=0.0)):
                return
        raise AssertionError("the learner does not come to rest")


def _ignore(*_: Any) -> None:
    pass
