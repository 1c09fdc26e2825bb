"""The volunteer as it runs: network in, sampled and signed groups out, nothing lost in between.

A thin shell around the agent (what to do next), the spool (what is promised), the engine (what is computed) and the
network process (which receives new weights and serves them onward while this process samples).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.client.agent import Action, Agent, AgentConfig, Load, LocalPolicy, Sample, Wait
from p2prl.client.hot_swap import HotSwap
from p2prl.client.spool import Spool, SpoolConfig
from p2prl.clock import Clock
from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.models.engine_port import GenerationStopped
from p2prl.models.group_work import Prepared
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.run_bootstrap import FindBase, OnManifest, Prepare, RunBootstrap
from p2prl.protocol import ledger_chain, limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, Receipts, StorageReceipt
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.run_end import RunEnd
from p2prl.protocol.wire_codec import decode

_REDELIVERED = 16
"""Groups offered again at once, together with those the learner holds and has not settled. Fewer than the fresh ones
it takes between two receipts, so that what was sampled while cut off never makes up most of a batch."""

_CATCH_UP_S = 10.0
"""How often the ledger is asked for receipts that gossip did not bring."""

_EXPIRE_S = 10.0
"""How often the spool gives up what is too old or too much."""

_LAST_RECEIPTS_S = 5.0
"""How long a volunteer stays for the next receipt after the learner has ended the run."""

_SETTLING_S = 30.0
"""And how long while a learner is in reach that holds groups of ours: a busy one checks them in its time."""

_REWARD_WEIGHT = 0.1
"""Of the newest group in the moving average of rewards that a volunteer is shown."""

_REMEMBERED_REWARDS = 40
"""Groups of an earlier start that the average takes up again: what is older weighs less than 2 % in it."""

_REPORT_S = 0.2
"""Progress is reported this often at most: counting the spool costs more than a small model's batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VolunteerConfig:
    """How a volunteer works."""

    redeliver_s: float = 5.0
    """How often groups without a storage receipt are offered again while a learner is in reach."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    spool: SpoolConfig = field(default_factory=SpoolConfig)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a volunteer wants to see."""

    state: str
    version: int
    announced_version: int
    peers: Mapping[str, int]
    groups: Mapping[str, int]
    reasons: Mapping[str, int]
    verified_tokens: int
    reward_recent: float | None
    tokens_per_s: float
    fetching: tuple[int, int, int]
    weight_bytes_from_learner: int
    weight_bytes_from_peers: int
    weight_bytes_sent: int
    network_resident_bytes: int
    network_daemon_bytes: int
    patch_bytes: int = 0
    """Bytes of the patches that versions were rebuilt from."""
    whole_bytes: int = 0
    """Bytes of versions that were fetched whole."""
    spared_bytes: int = 0
    """What versions would have cost more without the base that was named."""
    brought_bytes: int = 0
    """What all versions that came would have cost whole."""


class Volunteer:
    """One machine's part in one run."""

    def __init__(
        self,
        *,
        identity: Identity,
        run: Digest,
        spool_path: Path,
        config: VolunteerConfig,
        clock: Clock,
        prepare: Prepare[Prepared],
        on_manifest: OnManifest,
        on_progress: Callable[[Progress], None],
        on_notice: Callable[[str], None],
        find_base: FindBase | None = None,
        background: bool = False,
    ) -> None:
        """`prepare` turns the run's files into an engine; `on_manifest` shows the run to a person first; `find_base`
        looks for weights to start from, where the network awaits that.

        With `background` the next policy is read and checked by a thread of its own.
        """
        self._staging = HotSwap(background=background)
        self._identity = identity
        self._run = run
        self._clock = clock
        self._config = config
        self.arrival = RunBootstrap(prepare, on_manifest, find_base)
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._agent = Agent(config.agent)
        self._farewell = RunEnd()
        self._spool = Spool(spool_path, config.spool)
        self._network: NetworkPort | None = None
        self._stopping = False
        self._parking = False
        self._awaited: int | None = None
        self._awaited_since = 0.0
        self._roles: dict[str, int] = {}
        self._announced = -1
        self._reward_recent: float | None = None
        for reward in self._spool.newest_rewards(_REMEMBERED_REWARDS):
            self._follow_reward(reward)
        self._tokens_per_s = 0.0
        self._report_at = 0.0
        self._redeliver_at = 0.0
        self._offered_again = 0
        self._is_behind = False
        self._catch_up_at = 0.0
        self._expire_at = 0.0

    # --- life --------------------------------------------------------------------------------------------------

    @property
    def held_version(self) -> int:
        """Newest version whose weights are on this machine; −1 before the first."""
        return self._agent.held_version

    def finish(self) -> None:
        """Complete the slots being decoded, keep them, and return from `run`."""
        self._stopping = True

    def park(self) -> None:
        """Stop decoding now; finished groups stay in the spool."""
        self._stopping = self._parking = True

    def run(self, network: NetworkPort) -> bool:
        """Volunteer until told to stop. Returns True when the learner ended the run."""
        self.attach(network)
        started = self._clock.now()
        try:
            while not self._stopping and not self._is_over():
                self.arrival.check_patience(self._clock.now() - started)
                self.turn(wait_s=0.5)
            self._report_at = 0.0
            self._report(self._next_action())
            return self._agent.finished
        finally:
            network.close()
            self.close()

    def attach(self, network: NetworkPort) -> None:
        """Speak through this network from now on."""
        self._network = network

    def turn(self, *, wait_s: float) -> Action:
        """Take messages, do the one thing that is due, deliver. Waits only when nothing is."""
        action = self._next_action()
        self._listen(wait_s if isinstance(action, Wait) else 0.0)
        match action:
            case Load(policy=policy):
                self._load(policy)
            case Sample(policy=policy, first=first, count=count):
                self._sample(policy, first, count)
            case Wait():
                pass
        self._deliver()
        self._report(action)
        return action

    def close(self) -> None:
        """Let the staging thread end and close the spool; everything is already on disk."""
        self._staging.close()
        self._spool.close()

    def _is_over(self) -> bool:
        """The run has ended, and the last groups have their receipts or have waited long enough for the next."""
        if not self._agent.finished:
            self._awaited = None
            return False
        outstanding = self._spool.outstanding()
        if outstanding != self._awaited:
            self._awaited, self._awaited_since = outstanding, self._clock.now()
        settling = self._roles.get("learner", 0) > 0 and self._spool.delivered() > 0
        patience_s = _SETTLING_S if settling else _LAST_RECEIPTS_S
        return not outstanding or self._clock.now() - self._awaited_since > patience_s

    def _next_action(self) -> Action:
        if self.arrival.prepared is None:
            return Wait("fetching the run's files" if self.arrival.manifest else "looking for the run")
        # Older groups that no learner has taken wait in the spool for their turn; fresh ones need not wait for them.
        now = self._clock.now()
        waiting = self._agent.waiting
        return self._agent.next_action(
            staged=waiting is None or self._staging.ready(waiting, self.arrival.prepared.engine),
            outstanding=self._spool.with_learner(created_after=now - self._config.redeliver_s, now=now),
            learner_in_reach=self._roles.get("learner", 0) > 0,
        )

    # --- messages ----------------------------------------------------------------------------------------------

    def _listen(self, timeout_s: float) -> None:
        for message in self._net.poll(timeout_s):
            match message:
                case control.RunKnown() | control.FileReady():
                    self.arrival.take(message)
                case control.VersionAnnounced(version=version, step=step):
                    self._announced = max(self._announced, version)
                    self._farewell.on_policy(step)
                case control.VersionReady(digest=digest, manifest=raw, path=path):
                    manifest = decode(raw, PolicyManifest, limit_bytes=limits.MAX_ENVELOPE_BYTES)
                    self._agent.policy_ready(LocalPolicy(manifest, Digest(digest), path))
                    self._farewell.on_policy(manifest.step)
                case control.EnvelopeArrived(envelope=raw):
                    self._on_envelope(open_envelope(raw, now=None))
                case control.LedgerPage(from_height=height, entries=entries):
                    self._on_ledger(height, entries)
                case control.Status(peers=peers):
                    learner_was_away = not self._roles.get("learner")
                    self._roles = dict(peers)
                    if learner_was_away and self._roles.get("learner"):
                        self._redeliver_at = 0.0
                case control.Warned(message=text, remedy=remedy):
                    self._on_notice(f"{text}. {remedy}".strip())
                case _:
                    pass
        self.arrival.offer_base(self._net)
        self._agent.run_finished(self._farewell.is_over(self._clock.now()))

    def _on_envelope(self, opened: Opened) -> None:
        if opened.kind is Kind.STORAGE_RECEIPT:
            self._offered_again -= self._spool.stored(body_of(opened, StorageReceipt).groups)
            self._offer_more()
        elif opened.kind is Kind.RECEIPTS:
            self._settle(body_of(opened, Receipts))
            self._offer_more()
        elif opened.kind is Kind.LEDGER_HEAD:
            self._farewell.on_head(body_of(opened, LedgerHead), opened.sent_ms, now=self._clock.now())

    def _offer_more(self) -> None:
        """The learner has dealt with what it was last offered again: offer the next at once, if there is more.

        Never all that a cut-off volunteer has sampled: old groups by the thousand would keep fresh ones waiting.
        """
        if self._is_behind and self._offered_again <= 0:
            self._redeliver_at = 0.0

    def _settle(self, receipts: Receipts) -> None:
        for receipt in receipts.receipts:
            if receipt.peer == self._identity.public_key and self._spool.settle(receipt) and receipt.reason:
                self._on_notice(f"slot {receipt.slot} of version {receipt.version} earned nothing: {receipt.reason}")

    def _on_ledger(self, from_height: int, entries: tuple[bytes, ...]) -> None:
        """Receipts that gossip did not bring, for instance while this machine was off."""
        height, head = self._spool.ledger_position
        if from_height != height or self.arrival.manifest is None:
            return
        learner = self.arrival.manifest.learner
        try:
            for raw in entries:
                opened, head = ledger_chain.follow(raw, height=height, head=head, run=self._run, learner=learner)
                height += 1
                if opened.kind is Kind.RECEIPTS:
                    self._settle(body_of(opened, Receipts))
        except RemoteProtocolError:
            return  # somebody else will be asked next time
        except IntegrityError:
            # This page or an earlier one was not the learner's; receipts may be read twice without harm.
            self._spool.ledger_position = (0, ledger_chain.GENESIS)
            return
        self._spool.ledger_position = (height, head)
        if entries:  # a page is cut by count or by size, and who has nothing more to say is not asked
            self._catch_up_at = self._clock.now() + 1 / limits.MAX_LEDGER_QUERIES_PER_S

    # --- work --------------------------------------------------------------------------------------------------

    def _load(self, policy: LocalPolicy) -> None:
        assert self.arrival.prepared is not None
        engine = self.arrival.prepared.engine
        staged = None
        try:
            staged = self._staging.take(policy, engine)
            engine.swap(staged)
        except FileNotFoundError:
            self._agent.policy_lost(policy)
            return
        except IntegrityError as error:
            self._on_notice(f"version {policy.manifest.version} cannot be used: {error}")
            self._agent.policy_lost(policy)
            if staged is not None:
                self._agent.emptied()
            return
        self._agent.loaded_policy(policy, next_slot=self._spool.next_slot(policy.manifest.version))

    def _sample(self, policy: LocalPolicy, first: int, count: int) -> None:
        assert self.arrival.prepared is not None
        engine, work = self.arrival.prepared.engine, self.arrival.prepared.work
        version = policy.manifest.version
        assignments = [
            work.assign(
                policy=policy.digest, beacon=policy.manifest.beacon, peer=self._identity.public_key, slot=first + i
            )
            for i in range(count)
        ]
        requests = [request for assignment in assignments for request in assignment.requests]
        began = self._clock.now()
        try:
            generations = iter(engine.generate(requests, should_stop=lambda: self._parking))
        except GenerationStopped:
            return
        except IntegrityError as error:  # the policy's fault: the next version may be sound again
            self._on_notice(f"version {version} cannot be sampled: {error}")
            self._agent.policy_lost(policy)
            return
        seconds = self._clock.now() - began
        tokens_in_all = 0
        for assignment in assignments:
            group = work.pack(
                assignment,
                [next(generations) for _ in assignment.requests],
                version=version,
                policy=policy.digest,
                engine=engine.engine_class,
                seconds=seconds / count,
            )
            tokens = sum(len(completion.tokens) // 4 for completion in group.completions)
            reward = sum(completion.reward for completion in group.completions) / len(group.completions)
            raw = seal(self._identity, group, run=self._run, now=self._clock.now())
            self._spool.add(
                envelope_digest(raw),
                raw,
                version=version,
                slot=assignment.slot,
                tokens=tokens,
                reward=reward,
                now=self._clock.now(),
            )
            self._net.send(control.Publish(raw))
            tokens_in_all += tokens
            self._follow_reward(reward)
        self._tokens_per_s = tokens_in_all / max(seconds, 1e-9)
        self._agent.sampled(first, count, tokens=tokens_in_all, seconds=seconds)

    def _follow_reward(self, reward: float) -> None:
        before = reward if self._reward_recent is None else self._reward_recent
        self._reward_recent = before + _REWARD_WEIGHT * (reward - before)

    def _deliver(self) -> None:
        """Offer again what no learner has confirmed, give up what none will take, and fetch missed receipts."""
        now = self._clock.now()
        if now >= self._expire_at:  # whether or not a learner is in reach: a disk fills up most when none is
            self._expire_at = now + _EXPIRE_S
            self._spool.expire(now=now)
        if now >= self._redeliver_at and self._roles.get("learner"):
            self._redeliver_at = now + self._config.redeliver_s
            room = max(0, _REDELIVERED - self._spool.delivered())
            waiting = self._spool.undelivered(room, created_before=now - self._config.redeliver_s)
            for raw in waiting:
                self._net.send(control.Publish(raw))
            self._offered_again, self._is_behind = len(waiting), len(waiting) == room
        if now >= self._catch_up_at and self._roles.get("learner") and self.arrival.manifest is not None:
            self._catch_up_at = now + _CATCH_UP_S
            if self._spool.has_delivered(created_before=self._clock.now() - _CATCH_UP_S):
                self._net.send(control.QueryLedger(self._spool.ledger_position[0]))

    def _report(self, action: Action) -> None:
        now = self._clock.now()
        if now < self._report_at:
            return
        self._report_at = now + _REPORT_S
        loaded = self._agent.loaded
        status = self._net.status
        self._on_progress(
            Progress(
                state=action.reason if isinstance(action, Wait) else "sampling",
                version=-1 if loaded is None else loaded.manifest.version,
                announced_version=self._announced,
                peers=self._roles,
                groups=self._spool.counts(),
                reasons=self._spool.reasons(),
                verified_tokens=self._spool.verified_tokens(),
                reward_recent=self._reward_recent,
                tokens_per_s=self._tokens_per_s,
                fetching=(-1, 0, 0) if status is None else status.fetching,
                weight_bytes_from_learner=0 if status is None else status.received_from_source,
                weight_bytes_from_peers=0 if status is None else status.received_from_peers,
                weight_bytes_sent=0 if status is None else status.sent,
                patch_bytes=0 if status is None else status.patch_bytes,
                whole_bytes=0 if status is None else status.whole_bytes,
                brought_bytes=0 if status is None else status.brought_bytes,
                spared_bytes=0 if status is None else status.spared_bytes,
                network_resident_bytes=0 if status is None else status.resident_bytes,
                network_daemon_bytes=0 if status is None else status.daemon_bytes,
            )
        )

    @property
    def _net(self) -> NetworkPort:
        assert self._network is not None
        return self._network
