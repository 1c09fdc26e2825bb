"""Staging of the next policy: a thread reads and checks it while the sampler goes on with the last one (hot swap).

Reading and checking take as long as a few batches of a large model. The sampling thread only has to copy the weights,
between two batches: a group declares one policy and is replayed with that one.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from p2prl.client.next_action import LocalPolicy
from p2prl.models.sampler_port import Sampler, StagedWeights
from p2prl.net.storage.held_weights import open_weights


class PolicyStaging:
    """Stages one policy at a time."""

    def __init__(self, *, background: bool) -> None:
        """Without `background`, staging runs in the caller's thread, as a simulation on virtual time requires."""
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="p2prl-stage") if background else None
        self._begun: tuple[LocalPolicy, Future[StagedWeights]] | None = None

    def ready(self, policy: LocalPolicy, sampler: Sampler) -> bool:
        """Whether `policy` can be loaded without waiting. Starts staging it unless another policy is being staged."""
        if self._begun is None or (self._begun[0] is not policy and self._begun[1].done()):
            self._begin(policy, sampler)
        assert self._begun is not None
        return self._begun[0] is policy and self._begun[1].done()

    def take(self, policy: LocalPolicy, sampler: Sampler) -> StagedWeights:
        """Return the staged policy and forget it; waits until it is staged.

        Raises `FileNotFoundError` when its weights are gone, and as `Sampler.stage` does.
        """
        if self._begun is None or self._begun[0] is not policy:
            self._begin(policy, sampler)
        assert self._begun is not None
        future, self._begun = self._begun[1], None
        return future.result()

    def close(self) -> None:
        """Wait for the staging in progress and discard its result."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def _begin(self, policy: LocalPolicy, sampler: Sampler) -> None:
        if self._executor is not None:
            self._begun = policy, self._executor.submit(_stage, policy, sampler)
            return
        future: Future[StagedWeights] = Future()
        try:
            future.set_result(_stage(policy, sampler))
        except Exception as error:  # noqa: BLE001 - kept for `take`, as an executor does
            future.set_exception(error)
        self._begun = policy, future


def _stage(policy: LocalPolicy, sampler: Sampler) -> StagedWeights:
    # Mapped, not read, so that gigabytes of weights are in memory once. They stay readable if they are deleted.
    return sampler.stage(open_weights(Path(policy.path)), policy.manifest.version)
