"""The learner as it runs: network in, verified batches, updates, published policies, receipts out.

A thin shell around the journal (what is promised), the verification (what is believed), the epochs (what is due) and
the trainer (what is computed). Everything is written to the journal before it is said to anyone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2prl.algorithms.registry import Objective
from p2prl.clock import Clock
from p2prl.errors import MachineError, require
from p2prl.learner.buffer import Buffer, ReadyGroup
from p2prl.learner.epochs import Action, EpochConfig, Epochs
from p2prl.learner.folder import LearnerPaths, last_logged_step, newest_checkpoint, prune_checkpoints
from p2prl.learner.journal import Journal, StoredGroup
from p2prl.learner.shelf import Shelf
from p2prl.learner.trainer import OptimiserConfig, Trainer, TrainingGroup
from p2prl.learner.verification import Outcome, Verification
from p2prl.models.engine import Engine
from p2prl.models.layout import Layout, flatten, weights_digest
from p2prl.models.work import GroupWork
from p2prl.net import control
from p2prl.net.blobs import DiskBlobs
from p2prl.net.bridge import NetworkPort
from p2prl.protocol import ledger, limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import PolicyManifest, RunManifest, blob_of, chunk_bytes_for
from p2prl.protocol.messages import Kind, LedgerHead, Receipts, RolloutGroup, State, StorageReceipt, Verdict

_PENDING_PER_ROUND = 64
"""Groups verified in one round, so that messages are answered between rounds."""

_UNCHECKED_PER_PEER = 256
"""Groups of one peer that may wait for their check. An honest volunteer has some 32 on the way, and offers 64 again
when it was cut off; what is beyond gets no storage receipt and is offered again later."""

_FAREWELL_S = 6.0
"""How long the learner stays after the last group arrived: twice the time in which those that lost it dial it again."""

_FAREWELL_AGAIN_S = 1.0
"""How often it repeats the end of the run meanwhile, for those that have just come back."""

_LAST_WORDS_S = 0.5
"""How long the learner stays for its own last words to leave."""

_LONGEST_FAREWELL_S = 15.0
"""A swarm that never falls quiet does not keep the learner longer than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """How a learner trains and paces itself."""

    groups_per_update: int = 16
    """R: groups of one update."""
    updates: int = 200
    """Updates of the run; 0 goes on until stopped."""
    checkpoint_every: int = 10
    """Updates between checkpoints. Between them a crash replays recorded batches, which costs time, never work."""
    ready_updates: float = 1.5
    """Verified groups to keep ready, in updates' worth; more only makes them older."""
    chunk_pieces: int = 32
    """Pieces a policy's weights are cut into, so that volunteers relay while they receive."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        for name in ("groups_per_update", "checkpoint_every", "chunk_pieces"):
            require(name, value := getattr(self, name), value >= 1, "1 or more")
        require("updates", self.updates, self.updates >= 0, "0 or more")
        # Below 1 an update's worth would never be ready, and the learner would wait for ever.
        require("ready_updates", self.ready_updates, 1.0 <= self.ready_updates <= 1000.0, "within 1..1000")


class Learner:
    """One run's learner."""

    def __init__(
        self,
        *,
        paths: LearnerPaths,
        identity: Identity,
        manifest: RunManifest,
        manifest_raw: bytes,
        run: Digest,
        model: Any,
        tokenizer: Any,
        layout: Layout,
        engine: Engine,
        work: GroupWork,
        objective: Objective,
        config: LearnerConfig,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        on_metrics: Callable[[dict[str, Any]], None],
        on_notice: Callable[[str], None],
    ) -> None:
        self._paths = paths
        self._identity = identity
        self._manifest = manifest
        self._manifest_raw = manifest_raw
        self._run = run
        self._tokenizer = tokenizer
        self._layout = layout
        self._config = config
        self._clock = clock
        self._random_bytes = random_bytes
        self._on_metrics = on_metrics
        self._on_notice = on_notice
        self._journal = Journal(paths.journal)
        self._blobs = DiskBlobs(paths.blobs)
        self._shelf = Shelf(self._blobs)
        self._verification = Verification(
            self._journal, self._shelf, work, engine, staleness_bound=manifest.staleness_bound
        )
        self._buffer = Buffer(staleness_bound=manifest.staleness_bound)
        self._trainer = Trainer(model, objective, config.optimiser, temperature=manifest.sampling.temperature)
        self._turned_away: Counter[str] = Counter()
        self._network: NetworkPort | None = None
        self._stopping = False
        self._logged_step = last_logged_step(paths.metrics)
        self._updated_at = clock.now()
        self._epochs = self._resume()

    # --- life --------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Updates done."""
        return self._trainer.step

    @property
    def version(self) -> int:
        """Newest published version; −1 before the first."""
        newest = self._shelf.newest
        return -1 if newest is None else newest.manifest.version

    def counts(self) -> dict[str, int]:
        """Groups by state."""
        return self._journal.counts()

    def turned_away(self) -> dict[str, int]:
        """Groups that were not taken in since the start, by why."""
        return dict(self._turned_away)

    def stop(self) -> None:
        """Finish the update under way, keep everything, and return from `run`."""
        self._stopping = True

    def introduce(self, network: NetworkPort) -> None:
        """Tell a fresh node every policy a volunteer may still need. Runs at every (re)start of the network."""
        for raw in self._journal.policies(from_step=self._trainer.step - self._manifest.staleness_bound):
            network.send(control.Publish(raw))
        network.send(control.LedgerHeight(self._journal.height))
        network.send(control.Publish(self._head(finished=self._epochs.finished)))

    def attach(self, network: NetworkPort) -> None:
        """Speak through this network from now on."""
        self._network = network

    def run(self, network: NetworkPort, *, on_up: Callable[[tuple[str, ...]], None]) -> None:
        """Train until the run's updates are done or `stop` is called. `on_up` gets the dialable addresses."""
        self.attach(network)
        try:
            while not network.addresses and not self._stopping:
                self._listen(0.5)
            if network.addresses:
                on_up(network.addresses)
            while not self._stopping and self.turn(wait_s=0.2) is not Action.FINISH:
                pass
            self._checkpoint()
            if not self._stopping:
                self._say_goodbye()
        finally:
            network.close()
            self.close()

    def turn(self, *, wait_s: float) -> Action:
        """Answer messages, check groups, and do the one thing that is due. Waits only when nothing is."""
        action = self._epochs.next_action(len(self._buffer))
        idle = action is Action.COLLECT and not (self._room() and self._has_unchecked_groups())
        self._listen(wait_s if idle else 0.0)
        self._verify()
        if action is Action.PUBLISH:
            self._publish()
        elif action is Action.STEP:
            self._step()
        return action

    def close(self) -> None:
        """Close the files; everything is already on disk."""
        self._journal.close()
        self._blobs.close()

    def _resume(self) -> Epochs:
        """Restore the checkpoint, replay the batches recorded after it, and put the shelf and the buffer back."""
        checkpoint = newest_checkpoint(self._paths.checkpoints)
        if checkpoint is not None:
            self._trainer.restore(checkpoint)
        first = self._trainer.step - self._manifest.staleness_bound
        for raw in self._journal.policies(from_step=first):
            self._shelf.add(raw)
        replayed = 0
        while (digests := self._journal.batch(self._trainer.step)) is not None:
            self._train(digests)
            replayed += 1
        if replayed:
            self._on_notice(f"replayed {replayed} updates since the last checkpoint: resuming at step {self.step}")
        self._refill_buffer()
        newest = self._shelf.newest
        config = EpochConfig(
            groups_per_update=self._config.groups_per_update,
            publish_every=self._manifest.publish_every,
            updates=self._config.updates,
        )
        return Epochs(config, step=self.step, published_step=None if newest is None else newest.manifest.step)

    def _refill_buffer(self) -> None:
        for stored in self._journal.in_state("verified", limit=1_000_000):
            group = body_of(open_envelope(stored.raw, now=None), RolloutGroup)
            policy = self._shelf.get(group.version, group.policy)
            if policy is None:
                with self._journal.transaction():
                    self._journal.unused(stored.digest)
                continue
            reward = float(np.frombuffer(stored.rewards, dtype="<f4").mean())
            self._buffer.add(ReadyGroup(stored.digest, stored.peer, policy.manifest.step, reward))

    # --- groups in ---------------------------------------------------------------------------------------------

    def _listen(self, timeout_s: float) -> None:
        """Take messages; store what arrived in one transaction, then say so."""
        arrived: list[tuple[StoredGroup, bytes]] = []
        verdicts: list[Opened] = []
        for message in self._net.poll(timeout_s):
            match message:
                case control.Arrived(envelope=raw):
                    self._on_envelope(open_envelope(raw, now=None), arrived, verdicts)
                case control.LedgerWanted(peer=peer, from_height=wanted):
                    entries = self._journal.entries(wanted, limits.MAX_LEDGER_ENTRIES_PER_REPLY)
                    self._net.send(control.SendLedger(peer, wanted, ledger.page_of(entries)))
                case control.Warned(message=text, remedy=remedy):
                    self._on_notice(f"{text}. {remedy}".strip())
                case _:
                    pass
        if arrived:
            now = self._clock.now()
            with self._journal.transaction():
                taken = [stored for stored, policy in arrived if self._take_in(stored, policy, now)]
            digests = tuple(stored.digest for stored in taken)
            for start in range(0, len(digests), limits.MAX_DIGESTS_PER_MESSAGE):
                self._say(StorageReceipt(digests[start : start + limits.MAX_DIGESTS_PER_MESSAGE]))
        if verdicts:  # after the groups: one may have come with the group it is about
            self._take_verdicts(verdicts)

    def _take_in(self, stored: StoredGroup, policy: bytes, now: float) -> bool:
        """Store a group, or know it already; False when it names no policy of ours or its peer has too many waiting."""
        if self._journal.knows(stored.digest):
            return True
        ours = self._shelf.get(stored.version, policy) or self._journal.was_published(stored.version, policy)
        if not ours:
            self._turned_away["unknown_policy"] += 1
            return False
        if self._journal.unchecked_of(stored.peer) >= _UNCHECKED_PER_PEER:
            self._turned_away["too_many"] += 1
            return False
        return self._journal.store(stored, now)

    def _take_verdicts(self, verdicts: Sequence[Opened]) -> None:
        """Put verdicts on groups that are here into the ledger, and say so."""
        height = self._journal.height
        with self._journal.transaction():
            for opened in verdicts:
                self._journal.add_verdict(body_of(opened, Verdict), opened.author, opened.raw)
        if self._journal.height > height:
            self._say_head(finished=self._epochs.finished)

    def _on_envelope(self, opened: Opened, arrived: list[tuple[StoredGroup, bytes]], verdicts: list[Opened]) -> None:
        if opened.kind is Kind.ROLLOUT_GROUP:
            group = body_of(opened, RolloutGroup)
            stored = StoredGroup(opened.digest, opened.author, group.version, group.slot, opened.raw, b"", b"")
            arrived.append((stored, group.policy))
        elif opened.kind is Kind.VERDICT:
            verdicts.append(opened)

    def _has_unchecked_groups(self) -> bool:
        return bool(self._journal.in_state("stored", 1))

    def _verify(self) -> None:
        """Check stored groups while fewer than wanted are ready."""
        if pending := self._journal.unchecked(min(_PENDING_PER_ROUND, self._room())):
            self._verify_groups(pending)
            self._say_head(finished=False)

    def _room(self) -> int:
        """Verified groups still wanted."""
        return max(0, int(self._config.ready_updates * self._config.groups_per_update) - len(self._buffer))

    def _settle_the_rest(self) -> None:
        """The run is over: every group that was taken in still gets its receipt."""
        while pending := self._journal.unchecked(_PENDING_PER_ROUND):
            self._verify_groups(pending)
            # Never that it goes on: whoever hears no later head than this one would wait for a learner that has left.
            self._say_head(finished=True)

    def _verify_groups(self, pending: Sequence[StoredGroup]) -> None:
        """Check groups, sign what became of them, tell everyone."""
        outcomes = self._verification.check(pending, self.step)
        receipts = Receipts(self.step, tuple(outcome.receipt for outcome in outcomes))
        envelope = seal(self._identity, receipts, run=self._run, now=self._clock.now())
        with self._journal.transaction():
            for outcome in outcomes:
                self._settle(outcome)
            self._journal.append(envelope)
            self._journal.settled([outcome.stored.digest for outcome in outcomes])
        for outcome in outcomes:
            if outcome.state is State.VERIFIED and outcome.policy is not None and outcome.inspection is not None:
                reward = float(np.mean(outcome.inspection.rewards))
                ready = ReadyGroup(outcome.stored.digest, outcome.stored.peer, outcome.policy.manifest.step, reward)
                self._buffer.add(ready)
        self._net.send(control.Publish(envelope))

    def _settle(self, outcome: Outcome) -> None:
        digest = outcome.stored.digest
        if outcome.state is State.VERIFIED and outcome.replay is not None and outcome.inspection is not None:
            behavior = np.concatenate([np.asarray(row, dtype="<f4") for row in outcome.replay.behavior_logprobs])
            rewards = np.asarray(outcome.inspection.rewards, dtype="<f4")
            self._journal.verified(digest, behavior=behavior.tobytes(), rewards=rewards.tobytes())
        else:
            state = "expired" if outcome.state is State.EXPIRED else "rejected"
            self._journal.refused(digest, state=state, reason=outcome.reason)

    # --- updates -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        with self._journal.transaction():
            for stale in self._buffer.drop_stale(self.step):
                self._journal.unused(stale.digest)
            if len(self._buffer) < self._config.groups_per_update:
                return
            batch = self._buffer.take(self._config.groups_per_update)
            digests = [group.digest for group in batch]
            self._journal.begin_step(self.step, digests)
        self._train(digests)
        self._epochs.stepped()
        if self.step % self._config.checkpoint_every == 0:
            self._checkpoint()

    def _train(self, digests: Sequence[bytes]) -> None:
        stored = self._journal.groups(digests)
        groups = [self._training_group(group) for group in stored]
        metrics: dict[str, Any] = self._trainer.update(groups)
        now = self._clock.now()
        metrics |= {"seconds": now - self._updated_at, "time": now, "groups": len(stored), "version": self.version}
        metrics |= {"peers": len({group.peer for group in stored}), "ready_groups": len(self._buffer)}
        metrics["staleness"] = sorted(group.staleness for group in groups)
        self._updated_at = now
        if self.step > self._logged_step:
            try:
                with self._paths.metrics.open("a") as file:
                    file.write(json.dumps(metrics, sort_keys=True) + "\n")
            except OSError as error:
                raise MachineError(
                    f"cannot write {self._paths.metrics}: {error.strerror}",
                    remedy="Free some space and start again; nothing is lost.",
                ) from error
            self._logged_step = self.step
            self._on_metrics(metrics)

    def _training_group(self, stored: StoredGroup) -> TrainingGroup:
        group = body_of(open_envelope(stored.raw, now=None), RolloutGroup)
        policy = self._shelf.get(group.version, group.policy)
        assert policy is not None, "a batch holds only groups of published policies"
        completions = tuple(tuple(np.frombuffer(c.tokens, dtype="<u4").tolist()) for c in group.completions)
        behavior = np.frombuffer(stored.behavior, dtype="<f4")
        splits = np.split(behavior, np.cumsum([len(ids) for ids in completions])[:-1])
        return TrainingGroup(
            prompt_ids=tuple(np.frombuffer(group.prompt, dtype="<u4").tolist()),
            completions=completions,
            behavior_logprobs=tuple(tuple(part.tolist()) for part in splits),
            rewards=tuple(np.frombuffer(stored.rewards, dtype="<f4").tolist()),
            staleness=self.step - policy.manifest.step,
        )

    def _checkpoint(self) -> None:
        target = self._paths.checkpoint(self.step)
        if target.exists():
            return
        self._paths.checkpoints.mkdir(parents=True, exist_ok=True)
        self._trainer.save(target, self._tokenizer)
        oldest_kept = prune_checkpoints(self._paths.checkpoints)
        with self._journal.transaction():
            self._journal.forget_batches_before(oldest_kept)

    # --- messages out ------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Sign the current weights as the next version, or say again what was signed for this step before a crash."""
        raw = self._journal.policy_at(self.step)
        if raw is None:
            weights = memoryview(flatten(self._trainer.model, self._layout))
            ref = blob_of(weights, chunk_bytes_for(len(weights), pieces=self._config.chunk_pieces))
            self._blobs.add(ref, weights)
            newest = self._shelf.newest
            manifest = PolicyManifest(
                version=0 if newest is None else newest.manifest.version + 1,
                step=self.step,
                weights=ref,
                state=weights_digest(weights),
                previous=b"" if newest is None else newest.digest,
                beacon=self._random_bytes(32),
                created_ms=int(self._clock.now() * 1000),
            )
            raw = seal(self._identity, manifest, run=self._run, now=self._clock.now())
            with self._journal.transaction():
                self._journal.add_policy(manifest.version, self.step, raw)
            self._shelf.add(raw)
            self._shelf.drop_before_step(self.step - self._manifest.staleness_bound)
        self._net.send(control.Publish(raw))
        self._epochs.published()

    def _say_head(self, *, finished: bool) -> None:
        self._net.send(control.LedgerHeight(self._journal.height))
        self._net.send(control.Publish(self._head(finished=finished)))

    def _head(self, *, finished: bool) -> bytes:
        head = LedgerHead(self._journal.height, self._journal.head, self.step, finished)
        return seal(self._identity, head, run=self._run, now=self._clock.now())

    def _say_goodbye(self) -> None:
        """Tell everyone the run is over; stay until what was still on its way has its receipt."""
        self._say_head(finished=True)
        began = said_at = quiet_since = self._clock.now()
        while (now := self._clock.now()) - quiet_since < _FAREWELL_S and now - began < _LONGEST_FAREWELL_S:
            self._listen(0.2)
            if now - said_at >= _FAREWELL_AGAIN_S:
                said_at = now
                self._say_head(finished=True)
            if self._has_unchecked_groups():
                self._settle_the_rest()
                quiet_since = now
        # The network process drops what it has not sent when it is closed. What arrives now gets no storage receipt.
        leave_at = self._clock.now() + _LAST_WORDS_S
        while self._clock.now() < leave_at:
            self._net.poll(_LAST_WORDS_S)

    def _say(self, body: Any) -> None:
        self._net.send(control.Publish(seal(self._identity, body, run=self._run, now=self._clock.now())))

    @property
    def _net(self) -> NetworkPort:
        assert self._network is not None
        return self._network
