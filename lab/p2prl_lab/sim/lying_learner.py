"""A learner that rejects honest work, and simulated volunteers that replay what it rejects."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Container, Sequence
from contextlib import closing
from pathlib import Path

from p2prl.client.next_action import AgentConfig
from p2prl.client.own_groups import OwnGroups
from p2prl.client.refusal_judgement import Replayed
from p2prl.client.service import Volunteer, VolunteerConfig
from p2prl.config.network_options import remember_run
from p2prl.config.own_replay import refused_group_replay
from p2prl.config.own_runs import OwnRun
from p2prl.learner.assembly import Judges
from p2prl.learner.intake.admission import Candidate, Outcome
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.groups.group_work import ReplayTools, SamplingTools
from p2prl.models.sampler_port import Sampler
from p2prl.net.process.run_preparation import Prepare, RunPreparation
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.sim.machines import identity_of
from p2prl.sim.shared_engine import SharedSampler, SharedScorer
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig
from p2prl_lab.sim.trusting_learner import FreeSlots


class LyingReplayer(Replayer):
    """Replays as an honest learner does, and then says `seed_mismatch` of the victims' right groups."""

    victims: Container[bytes] = ()

    def check(self, admitted: Sequence[Candidate | Outcome]) -> list[Outcome]:
        """See `Replayer.check`."""
        return [self._told(outcome) for outcome in super().check(admitted)]

    def _told(self, outcome: Outcome) -> Outcome:
        if outcome.state != ReceiptState.VERIFIED or outcome.stored.peer not in self.victims:
            return outcome
        return dataclasses.replace(
            outcome, state=ReceiptState.REJECTED, reason=RejectionReason.SEED_MISMATCH, rewards=(), step_rewards=()
        )


class LyingSwarm(Swarm):
    """A swarm whose learner rejects the groups of its first `victims` volunteers."""

    def __init__(
        self,
        config: SwarmConfig,
        loaded: LoadedModel,
        directory: Path,
        *,
        victims: int = 0,
        voids: bool = False,
        replays: bool = True,
        broken: Callable[[Sampler], Sampler] | None = None,
    ) -> None:
        """`voids` keeps the learner's rule that a wrong group voids the next 32. Without `replays` no volunteer has
        the memory for one. `broken` replaces the sampler of the first volunteer by one that computes wrong."""
        self._victims = victims
        self._voids = voids
        self._replays = replays
        self._broken = broken
        self._folder = directory
        super().__init__(config, loaded, directory)

    def volunteers(self) -> list[Volunteer]:
        """In the order of their numbers."""
        return [host.role for host in sorted(self._volunteers.values(), key=lambda host: host.number)]

    def run_until_stopped(self, number: int, *, at_most_s: float) -> float:
        """Advance virtual time until a volunteer has stopped, or for `at_most_s`. Returns the seconds that took."""
        began = self.network.elapsed
        while self.network.elapsed < began + at_most_s and not self.volunteers()[number].refused.is_over:
            self.network.run_for(5.0)
        return self.network.elapsed - began

    def close(self) -> None:
        """Close all files."""
        self._learner.close()
        for host in self._volunteers.values():
            host.role.close()
            host.blobs.close()

    def _judges(self) -> Judges:
        victims = frozenset(self._identity(number).public_key for number in range(self._victims))
        lying = type("Lying", (LyingReplayer,), {"victims": victims})
        return Judges(replayer=lying, prices=SlotPrices if self._voids else FreeSlots)

    def _identity(self, number: int) -> Identity:
        return identity_of(f"volunteer {self._config.seed}/{number}")

    def _volunteer_config(self, number: int) -> VolunteerConfig:
        del number
        return VolunteerConfig(agent=AgentConfig(slots_in_flight=2))

    def _prepare_of(self, number: int) -> Prepare[SamplingTools]:
        if number or self._broken is None:
            return super()._prepare_of(number)
        broken = self._broken
        return lambda *_: SamplingTools(broken(SharedSampler(self._run.model)), self._run.work)

    def _make_volunteer(self, identity: Identity, number: int) -> Volunteer:
        directory = self._folder / f"volunteer-{number}"
        remember_run(directory, self._run.manifest_raw)

        def make_tools(run: OwnRun, files: dict[str, Path]) -> ReplayTools:
            del run, files
            return ReplayTools(SharedScorer(self._run.model), self._run.work)

        replayed = refused_group_replay(directory, make_tools)

        def replay(raw: bytes, body: bytes, reason: str) -> Replayed:
            # As the network process of a real worker does; a simulated node keeps these in memory.
            for root, policy in self._volunteers[identity.peer_id].port.held.items():
                (directory / "blobs" / f"{root.hex()}.policy").write_bytes(policy)
            return replayed(raw, body, reason)

        return Volunteer(
            identity=identity,
            run=self._run.run,
            spool_path=directory / "spool.db",
            config=self._volunteer_config(number),
            clock=self.network.loop_clock,
            preparation=RunPreparation(self._prepare_of(number), lambda *_: None),
            on_progress=lambda _: None,
            on_notice=lambda _: None,
            replay=replay if self._replays else None,
        )


def group_counts(directory: Path, number: int) -> Counter[str]:
    """Groups of a volunteer by state, from its spool in the swarm's folder."""
    with closing(OwnGroups(directory / f"volunteer-{number}" / "spool.db")) as groups:
        counts = Counter[str]()
        for (state, _reason), count in groups.counts().items():
            counts[state] += count
        return counts
