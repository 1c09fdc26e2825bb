"""The volunteer's main loop: receive weights, sample and sign groups, deliver them; no finished group is ever lost.

A thin shell. `agent` decides the next action, `sampler` computes groups, `spool` stores them, `delivery` sends them to
the learner, `weight_staging` prepares the next policy. The network process downloads new weights and relays them while
this process samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.client.delivery import REDELIVER_S, Delivery
from p2prl.client.next_action import Action, Agent, AgentConfig, Load, LocalPolicy, Sample, Wait
from p2prl.client.progress import Progress, ProgressReporter
from p2prl.client.refused_work import RefusedWork, ReplayRefused
from p2prl.client.sampler import FinishedGroup, SlotSampler
from p2prl.client.slot_numbers import first_slot
from p2prl.client.spool import Added, Spool, SpoolConfig
from p2prl.client.standby import StandbyFollower
from p2prl.client.weight_staging import PolicyStaging
from p2prl.clock import Clock
from p2prl.controls.rules import Order
from p2prl.errors import IntegrityError
from p2prl.models.groups.group_work import SamplingTools
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.order_follower import OrderFollower
from p2prl.net.process.run_preparation import RunPreparation
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, envelope_digest, open_envelope
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, Receipt, Receipts, ReceiptState, StorageReceipt
from p2prl.protocol.peer_messages import Standby
from p2prl.protocol.rejection_reasons import RejectionReason, explain
from p2prl.protocol.run_end import RunEnd
from p2prl.swarm import signals

_POLL_S = 0.5
"""Longest wait for messages when there is nothing to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VolunteerConfig:
    """Settings of a volunteer."""

    redeliver_s: float = REDELIVER_S
    """How often groups without a storage receipt are sent again while a learner is in reach."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    spool: SpoolConfig = field(default_factory=SpoolConfig)
    stands_by: bool = False
    """Whether its owner agreed that it stands by while the run has enough groups without it."""
    background: bool = False
    """Whether a separate thread reads and checks the next policy; off in a simulation on virtual time."""


class Volunteer:
    """One volunteer of one run. It holds every part of its loop and passes messages between them, because the parts do
    not know each other."""

    def __init__(
        self,
        *,
        identity: Identity,
        run: Digest,
        spool_path: Path,
        config: VolunteerConfig,
        clock: Clock,
        preparation: RunPreparation[SamplingTools],
        on_progress: Callable[[Progress], None],
        on_notice: Callable[[str], None],
        replay: ReplayRefused | None = None,
    ) -> None:
        """`preparation` turns the run's files into a sampler. `on_notice` gets messages for the user. `replay` checks
        groups that the learner refuses; without it they cannot be checked."""
        self._clock = clock
        self.preparation = preparation
        self._on_notice = on_notice
        self._spool = Spool(spool_path, config.spool)
        self._spool.bound_times(clock.now())
        sampled = self._spool.sampled_version()
        self._agent = Agent(
            config.agent, self._spool.slot_numbers(), sampled_version=-1 if sampled is None else sampled
        )
        self._is_numbered = sampled is not None
        """Whether the slots have a start."""
        self._numbered_from = 0  # lower slots were sampled before the last skip
        self._run_end = RunEnd()
        self._staging = PolicyStaging(background=config.background)
        self._delivery = Delivery(
            self._spool,
            author=identity.public_key,
            run=run,
            redeliver_s=config.redeliver_s,
            on_judged=self._on_judged,
            on_notice=on_notice,
        )
        self._progress = ProgressReporter(self._spool, on_progress, identity.public_key)
        self._sampler = SlotSampler(identity, run, clock, on_notice)
        self._standby = StandbyFollower(identity.public_key, is_agreed=config.stands_by)
        self._network: NetworkPort | None = None
        self._parked = False
        self.owner = OrderFollower(clock)
        """Where the owner's orders are given; a rest frees the engine and may leave the network."""
        self._is_freed = False  # the engine's memory
        self.refused = RefusedWork(self._spool, spool_path, replay, on_notice, lambda: preparation.manifest_raw)
        """What the learner refused of this machine's work."""

    @property
    def held_version(self) -> int:
        """Newest version whose weights are on this machine; −1 before the first."""
        return self._agent.held_version

    def finish(self) -> None:
        """Complete the slots in flight, keep their groups, and return from `run`."""
        self._agent.stop()

    def limit_spool(self, max_bytes: int) -> None:
        """Keep at most this much of groups, in bytes, that no learner has confirmed."""
        self._spool.limit(max_bytes)

    def park(self) -> None:
        """Stop decoding now; finished groups stay in the spool."""
        self._parked = True
        self._agent.stop()
        self._sampler.stop()

    def run(self, network: NetworkPort) -> bool:
        """Run until stopped. Returns True when the learner ended the run. `MachineError` once it has excluded this
        machine's key or this machine computes wrong numbers, `WorkRefusedError` when the learner refuses right ones."""
        self.attach(network)
        try:
            for wait_s in self.owner.turns(self.preparation, is_due=self._goes_on, poll_s=_POLL_S):
                self.turn(wait_s=wait_s)
            self._report(self._next_action(), final=True)
            if not self._parked and (error := self.refused.error()) is not None:
                raise error
            return self._agent.finished
        finally:
            network.close()
            self.close()

    def attach(self, network: NetworkPort) -> None:
        """Use this network from now on."""
        self._network = network
        self.owner.attach(network)

    def turn(self, *, wait_s: float) -> Action:
        """Take messages, do the one action that is due, deliver groups. Waits only when idle."""
        self._follow_order(self.owner.order)
        self._doubt()
        action, was_ready = self._next_action(), self.preparation.prepared is not None
        rest_s = self.owner.rest_s() if isinstance(action, Sample) else 0.0
        self._take_messages(wait_s if isinstance(action, Wait) else min(rest_s, wait_s))
        match action:
            case Load(policy=policy):
                self._load(policy)
            case Sample(policy=policy, slots=slots) if rest_s <= 0.0:
                self._sample(policy, slots)
        is_known = self.preparation.manifest is not None and not self.owner.is_suspended
        for message in self._delivery.due(self._clock.now(), run_known=is_known):
            self._net.send(message)
        if was_ready or self.preparation.prepared is None:  # else the wait for the run's files has just ended
            self._report(action)
        return action

    def close(self) -> None:
        """Wait for the staging thread and close the spool; everything is already on disk."""
        self._staging.close()
        self._spool.close()
        if self.preparation.prepared is not None:
            self.preparation.prepared.work.close()

    def _goes_on(self) -> bool:
        if self._parked or self._agent.done:
            return False
        return not self._delivery.is_over(self._clock.now(), run_ended=self._agent.finished)

    def _next_action(self) -> Action:
        if not self._is_numbered and self.preparation.manifest is not None:
            self._is_numbered = True
            self._skip_used_slots()
        prepared, manifest = self.preparation.prepared, self.preparation.manifest
        if prepared is None or manifest is None:
            if self.owner.order.rests:
                return Wait(self.owner.order.reason)
            return Wait("fetching the run's files" if manifest else "looking for the run")
        waiting, now = None if self._is_freed else self._agent.waiting, self._clock.now()
        return self._agent.next_action(
            staged=waiting is None or self._staging.ready(waiting, prepared.sampler),
            outstanding=self._delivery.backlog(now),
            learner_in_reach=self._delivery.learner_in_reach(now),
            busy=prepared.sampler.in_flight / prepared.work.group_size,
            room=prepared.sampler.room // prepared.work.group_size,
            oldest_step=self._progress.announced_step - manifest.staleness_bound,
        )

    def _follow_order(self, order: Order) -> None:
        """Free the engine, on standby once nothing is in flight, and leave the network where asked; or come back."""
        standby, tools = self._standby.reason(self._clock.now()), self.preparation.prepared
        self._agent.rest(order.reason if order.rests else "")
        self._agent.stand_by(standby)
        if not order.rests and (not standby or self._agent.in_flight):
            self._is_freed = False  # loading the next policy takes the memory again
        elif tools is not None and not self._is_freed:
            self._is_freed = True
            self._free_engine()
            self._report(Wait(order.reason if order.rests else standby))  # leaving the network takes seconds
        self.owner.follow_network(order)

    def _free_engine(self) -> None:
        """Drop what is in flight, and give its memory back. Loading the next policy takes it again."""
        if (tools := self.preparation.prepared) is not None:
            self._sampler.drop(tools)
            tools.sampler.sleep()
        self._agent.emptied()

    def _doubt(self) -> None:
        """Replay what the learner has refused, if it is time to, and stop when that says enough."""
        self._agent.slow_down(self.refused.slow_reason)
        if self.refused.wants_replay and self.preparation.prepared is not None and not self.owner.order.rests:
            self._free_engine()
            self._report(Wait("replaying groups that the learner rejected"))
            self.refused.replay()
        if self.refused.is_over and not self._agent.done:
            self._free_engine()
            self._agent.stop()

    def _take_messages(self, timeout_s: float) -> None:
        for message in self._net.poll(timeout_s):
            match message:
                case control.RunKnown() | control.FileReady():
                    self.preparation.take(message)
                case signals.VersionAnnounced(version=version, step=step):
                    self._progress.announce(version, step, self._clock.now())
                    self._run_end.on_policy(step)
                case control.VersionReady(digest=digest, policy=manifest, path=path):
                    self._agent.policy_ready(LocalPolicy(manifest, Digest(digest), path))
                    self._run_end.on_policy(manifest.step)
                case control.EnvelopeArrived(envelope=raw):
                    self._on_envelope(open_envelope(raw, now=None), raw)
                case signals.GroupBodyWanted(digest=digest):
                    for answer in self._delivery.on_body_wanted(digest):
                        self._net.send(answer)
                case signals.PublishRefused(digest=digest, reason=reason):
                    self._delivery.on_refused(digest, reason)
                case signals.LedgerArrived(from_height=height, entries=entries) if known := self.preparation.manifest:
                    learner = known.learner
                    self._delivery.on_ledger(height, entries, learner=learner, now=self._clock.now())
                case control.Status(peers=peers):
                    linked = self._progress.link(peers, self._clock.now())
                    self._delivery.set_links(linked)
                case control.Warned(text=text):
                    self._on_notice(text)
                case _:
                    pass
        self.preparation.answer(self._net)
        self._agent.run_finished(self._run_end.is_over(self._clock.now()))

    def _on_envelope(self, opened: Opened, raw: bytes) -> None:
        if opened.kind in (Kind.STORAGE_RECEIPT, Kind.RECEIPTS):
            self._delivery.hear_learner(opened.sent_ms, self._clock.now())
        if opened.kind is Kind.STORAGE_RECEIPT:
            self._delivery.on_storage_receipt(body_of(opened, StorageReceipt))
        elif opened.kind is Kind.RECEIPTS:
            receipts = body_of(opened, Receipts)
            self._progress.run.on_receipts(receipts, envelope_digest(raw), self._clock.now())
            self._delivery.on_receipts(receipts, opened.sent_ms, raw)
        elif opened.kind is Kind.LEDGER_HEAD:
            self._run_end.on_head(body_of(opened, LedgerHead), opened.sent_ms, now=self._clock.now())
        elif opened.kind is Kind.STANDBY:
            self._standby.take(body_of(opened, Standby), opened.sent_ms)

    def _on_judged(self, receipt: Receipt, receipts: bytes) -> None:
        self.refused.on_judged(receipt, receipts, now=self._clock.now())
        if receipt.state != ReceiptState.REJECTED:
            return  # thousands may expire after an outage: the panel counts them
        self._on_notice(f"slot {receipt.slot} of version {receipt.version} was rejected: {explain(receipt.reason)}")
        if receipt.reason == RejectionReason.DUPLICATE_SLOT and receipt.slot >= self._numbered_from:
            self._skip_used_slots()

    def _skip_used_slots(self) -> None:
        """Go on with a slot that this key cannot have used, on this machine before its disk was lost or on another."""
        assert self.preparation.manifest is not None
        self._agent.skip_to(first_slot(self.preparation.manifest.created_ms, self._clock.now()))
        self._numbered_from = self._agent.lowest_slot
        self._spool.mark_slots_done(self._numbered_from)

    def _load(self, policy: LocalPolicy) -> None:
        assert self.preparation.prepared is not None
        sampler = self.preparation.prepared.sampler
        staged = None
        try:
            staged = self._staging.take(policy, sampler)
            sampler.swap(staged)
        except FileNotFoundError:
            self._agent.policy_lost(policy)
            return
        except IntegrityError as error:
            self._on_notice(f"version {policy.manifest.version} cannot be used: {error}")
            self._agent.policy_lost(policy)
            if staged is not None:
                self._agent.emptied()
            return
        self._agent.loaded_policy(policy)

    def _sample(self, policy: LocalPolicy, slots: tuple[int, ...]) -> None:
        tools = self.preparation.prepared
        assert tools is not None
        version = policy.manifest.version

        def keep(group: FinishedGroup) -> None:
            """Store the group before publishing it."""
            added = group.keep_in(self._spool, version=version)
            if added is Added.STORED:
                for message in self._delivery.announce(group.raw, group.body):
                    self._net.send(message)
            else:
                self._on_notice(f"slot {group.slot} of version {version} was given up: {added}")
            self._agent.completed([group.slot])

        try:
            skipped = self._sampler.submit(tools, policy, slots)
            self._agent.submitted(set(slots) - skipped)
            self._agent.completed(skipped)
            if skipped:
                self._spool.mark_slots_done(self._agent.lowest_slot)
            busy = tools.sampler.in_flight / tools.work.group_size
            made = self._sampler.decode(tools, on_group=keep)
        except IntegrityError as error:  # the policy's fault: the next version may be usable again
            self._on_notice(f"version {version} cannot be sampled: {error}")
            self._sampler.drop(tools)
            self._agent.policy_lost(policy)
            return
        rewards = [group.reward for group in made.groups if group.reward is not None]
        self._progress.add_decoding(rewards, tokens=made.tokens, seconds=made.seconds)
        self._agent.decoded(busy, tokens=made.tokens, steps=made.steps, seconds=made.seconds)
        self.owner.computed(made.seconds)

    def _report(self, action: Action, *, final: bool = False) -> None:
        loaded, now = self._agent.loaded, self._clock.now()
        self._progress.report(
            now,
            state=action.reason if isinstance(action, Wait) else "sampling",
            version=-1 if loaded is None else loaded.manifest.version,
            status=self._net.status,
            publish_every=0 if self.preparation.manifest is None else self.preparation.manifest.publish_every,
            resting=self.owner.order.rests,
            hears_learner=self._delivery.hears_learner(now),
            final=final,
        )

    @property
    def _net(self) -> NetworkPort:
        assert self._network is not None
        return self._network
