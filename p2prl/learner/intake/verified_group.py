"""A verified rollout group with its tokens, the learner's own log-probs and its rewards, ready to train on."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.models.rewards.run_reward import Parts
from p2prl.protocol.digests import Digest
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.signed_group import read_group


@dataclass(frozen=True, slots=True)
class VerifiedGroup:
    """A group that passed its checks, decoded. Numbers stay packed until it is trained on."""

    digest: Digest
    peer: bytes
    group: RolloutGroup
    policy_step: int
    """Learner step at which the policy it was sampled with was published."""
    behavior: bytes
    """Little-endian float32 log-probs, as the journal keeps them, so that a replay trains on the same numbers. Not a
    number at the tokens of an environment, so that the journal alone says what to train on."""
    rewards: bytes
    """Little-endian float32, one per completion."""
    verified_at: float | None = None
    """Seconds since the epoch; None when it was read back after a restart."""
    step_rewards: bytes = b""
    """As `StoredGroup.step_rewards`."""
    parts: tuple[Parts, ...] = ()
    """The parts of each reward, for people; nothing when it was read back after a restart."""

    def staleness(self, step: int) -> int:
        """Learner updates between the policy it was sampled with and `step`."""
        return step - self.policy_step


def read_verified(stored: StoredGroup, published: PublishedPolicies) -> VerifiedGroup | None:
    """Read a verified group from the journal after a restart; None when its policy has left the window."""
    group = read_group(stored.raw, stored.body).group
    policy = published.get(group.version, group.policy)
    if policy is None:
        return None
    return VerifiedGroup(
        digest=stored.digest,
        peer=stored.peer,
        group=group,
        policy_step=policy.manifest.step,
        behavior=stored.behavior,
        rewards=stored.rewards,
        step_rewards=stored.step_rewards,
    )
