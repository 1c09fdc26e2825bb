"""Sampling of work slots: submit their requests, and pack and sign each group as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from p2prl.client.next_action import LocalPolicy
from p2prl.client.spool import Added, Spool
from p2prl.clock import Clock
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.groups.group_work import SamplingTools, SlotAssignment
from p2prl.models.sampler_port import Generation, Ticket
from p2prl.models.sampling import TurnSampling
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.signed_group import seal_group

_TURN_S = 0.1
"""Decoding returns after this long, so that messages are read and groups are sent in time."""

_MOST_SKIPPED = 1_000
"""Slots skipped one after the other before the run is given up: its prompts do not fit, and trying on costs CPU."""


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A signed rollout group."""

    raw: bytes
    body: bytes
    """Empty when the envelope `raw` holds the group."""
    slot: int
    tokens: int
    """Completion tokens that the policy sampled."""
    reward: float | None
    """Mean over the completions; None for a data task, which a volunteer cannot score."""
    created: float
    """Unix time it was signed."""

    def keep_in(self, spool: Spool, *, version: int) -> Added:
        """Store it as one of this policy version; it may be published once it is stored."""
        return spool.add(
            envelope_digest(self.raw),
            self.raw,
            version=version,
            slot=self.slot,
            tokens=self.tokens,
            reward=self.reward,
            now=self.created,
            body=self.body,
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """Totals of one turn of decoding."""

    groups: tuple[FinishedGroup, ...]
    """Groups that were completed."""
    tokens: int
    """Tokens sampled, of whichever group."""
    steps: int
    seconds: float


@dataclass(slots=True)
class _Slot:
    """A slot in flight."""

    assignment: SlotAssignment
    policy: LocalPolicy
    tickets: list[Ticket]
    ended: dict[Ticket, Generation] = field(default_factory=dict)
    seconds: float = 0.0
    """Its share of the decoding time."""


class SlotSampler:
    """Samples slots of one run as one volunteer."""

    def __init__(self, identity: Identity, run: Digest, clock: Clock, on_notice: Callable[[str], None]) -> None:
        """`on_notice` gets a message for the user when a slot is skipped."""
        self._identity = identity
        self._run = run
        self._clock = clock
        self._on_notice = on_notice
        self._by_ticket: dict[Ticket, _Slot] = {}
        self._slots: dict[int, _Slot] = {}
        self._turns = TurnSampling()
        self._skipped_in_a_row = 0
        self._told_skipped = False
        self._stopped = False

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots in flight."""
        return tuple(self._slots)

    def stop(self) -> None:
        """Return from `decode` after the step being computed, and decode nothing more."""
        self._stopped = True

    def submit(self, tools: SamplingTools, policy: LocalPolicy, slots: Iterable[int]) -> set[int]:
        """Put slots in flight. The policy is the sampler's, until the last of them is complete.

        Return the slots that are skipped, because their prompt does not fit the run or this engine. After
        `_MOST_SKIPPED` of them in a row, raise the error instead.
        """
        skipped: set[int] = set()
        for number in slots:
            try:
                assignment = tools.work.assign(
                    beacon=policy.manifest.beacon, peer=self._identity.public_key, slot=number
                )
                slot = _Slot(assignment, policy, self._turns.submit(tools.sampler, assignment.requests))
            except (RemoteProtocolError, ConfigError) as error:
                self._skipped_in_a_row += 1
                if self._skipped_in_a_row >= _MOST_SKIPPED:
                    raise
                skipped.add(number)
                self._tell_skipped(number, policy.manifest.version, error)
                continue
            self._skipped_in_a_row = 0
            self._slots[number] = slot
            self._by_ticket.update(dict.fromkeys(slot.tickets, slot))
        return skipped

    def decode(self, tools: SamplingTools, *, on_group: Callable[[FinishedGroup], None]) -> Decoded:
        """Decode for about `_TURN_S`; `on_group` gets each group as soon as it is signed.

        `IntegrityError` when the policy gives no usable logits; nothing is in flight afterwards.
        """
        began = now = self._clock.now()
        groups: list[FinishedGroup] = []
        tokens = steps = 0
        while self._slots and not self._stopped and now - began < _TURN_S:
            result = self._turns.step(tools.sampler)
            tokens += result.tokens
            steps += 1
            before, now = now, self._clock.now()
            for slot in self._slots.values():
                slot.seconds += (now - before) / len(self._slots)
            for ticket, generation in result.ended:
                slot = self._by_ticket.pop(ticket)
                slot.ended[ticket] = generation
                if len(slot.ended) == len(slot.tickets):
                    del self._slots[slot.assignment.slot]
                    groups.append(self._pack(tools, slot))
                    on_group(groups[-1])
        return Decoded(tuple(groups), tokens, steps, now - began)

    def _tell_skipped(self, slot: int, version: int, error: Exception) -> None:
        """Tell of the first alone: a run may have thousands of such slots."""
        if not self._told_skipped:
            self._told_skipped = True
            self._on_notice(f"slot {slot} of version {version} is skipped, as others like it will be: {error}")

    def drop(self, tools: SamplingTools) -> None:
        """Drop everything in flight."""
        tools.sampler.cancel()
        self._turns.clear()
        self._by_ticket.clear()
        self._slots.clear()

    def _pack(self, tools: SamplingTools, slot: _Slot) -> FinishedGroup:
        generations = [slot.ended[ticket] for ticket in slot.tickets]
        group = tools.work.pack(
            slot.assignment,
            generations,
            version=slot.policy.manifest.version,
            policy=slot.policy.digest,
            engine=tools.sampler.engine_class,
            seconds=slot.seconds,
        )
        rewards = [completion.reward for completion in group.completions]
        created = self._clock.now()
        raw, body = seal_group(self._identity, group, run=self._run, now=created)
        return FinishedGroup(
            raw=raw,
            body=body,
            slot=slot.assignment.slot,
            tokens=sum(generation.sampled_tokens for generation in generations),
            reward=sum(rewards) / len(rewards) if tools.work.scores(slot.assignment) else None,
            created=created,
        )
