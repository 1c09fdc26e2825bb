"""The newest policy as a cheat of a simulated swarm knows it, and the valid group of any key and slot under it."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.models.sampling import sample_all
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.sim.simulated_run import SimulatedRun


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version of a run's policy."""

    run: SimulatedRun
    manifest: PolicyManifest
    digest: Digest
    """Of the manifest's envelope."""
    weights: bytes

    def group(self, key: Identity, slot: int) -> RolloutGroup:
        """The valid group of a key's slot."""
        run, manifest = self.run, self.manifest
        assignment = run.work.assign(beacon=manifest.beacon, peer=key.public_key, slot=slot)
        sampler = run.model.sampler(run.model.stage(self.weights, manifest.version))
        return run.work.pack(
            assignment,
            sample_all(sampler, assignment.requests),
            version=manifest.version,
            policy=self.digest,
            engine=sampler.engine_class,
            seconds=1.0,
        )


def rewards_of(group: RolloutGroup) -> float:
    """The sum of a group's rewards, by which choosers choose: groups without a failure teach least."""
    return sum(completion.reward for completion in group.completions)
