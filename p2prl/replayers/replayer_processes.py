"""Replayers as their learner sees them: a scorer that deals its batches among processes.

A replayer that ends is started again, and the others replay what it had: a replay depends on nothing but the policy and
the tokens, so nothing is lost and nothing is counted twice. Weights lie in one file that all of them map.
"""

from __future__ import annotations

import mmap
import os
import select
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from p2prl.errors import (
    ConfigError,
    DeviceFailedError,
    IntegrityError,
    LocalProtocolError,
    MachineError,
    P2PRLError,
    ProcessLostError,
)
from p2prl.models.sampler_port import GenerationRequest, Weights
from p2prl.models.scorer_port import Scored, check_counts
from p2prl.plain_text import counted
from p2prl.protocol.rollout_group import EngineClass
from p2prl.replayers import messages
from p2prl.replayers.batch_shares import deal

_END_S = 5.0
"""Time for a replayer to end by itself once its pipe is closed."""

_RAISED = {
    error.__name__: error
    for error in (ConfigError, DeviceFailedError, IntegrityError, LocalProtocolError, MachineError, ProcessLostError)
}
"""Errors of a replayer that are raised again here."""

_AGAIN = "Start again: the run resumes before this update."


class ReplayerProcesses:
    """A `Scorer` whose model is in other processes."""

    def __init__(
        self,
        model: messages.Model,
        *,
        devices: Sequence[str],
        threads: int,
        folder: Path,
        on_notice: Callable[[str], None],
    ) -> None:
        """Start a replayer on each of the devices, with `threads` CPU threads, and wait until their models are built.

        `folder` gets the file of weights, which has no name and ends with the last process. `MachineError` when it
        cannot hold them; what a replayer raised when it could not start, and `ProcessLostError` when one has ended.
        """
        self._model, self._threads, self._on_notice = model, threads, on_notice
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                _take_room(file.fileno(), model.weight_bytes)
                self._descriptor = os.dup(file.fileno())
            self._weights = mmap.mmap(self._descriptor, model.weight_bytes)
        except OSError as error:
            raise MachineError(
                f"cannot keep the weights that replayers read in {folder}: {error.strerror}",
                remedy="Free some space there, or leave out --replayers.",
            ) from error
        self._loads = 0
        self._processes: list[_Replayer] = []
        try:
            self._processes += [self._started(number, device) for number, device in enumerate(devices, start=1)]
            classes = {self._processes[number].await_ready() for number in range(len(devices))}
        except BaseException:
            self.close()
            raise
        if len(classes) > 1:
            self.close()
            kinds = ", ".join(sorted({engine.device for engine, _ in classes}))
            raise ConfigError(
                f"replayers would compute on different devices: {kinds}",
                remedy="Replays are judged by one kind of device: use fewer --replayers, or hide some cards with"
                " CUDA_VISIBLE_DEVICES.",
            )
        ((self._engine_class, self._layers),) = classes

    @property
    def engine_class(self) -> EngineClass:
        """See `Scorer.engine_class`."""
        return self._engine_class

    @property
    def layers(self) -> int:
        """See `Scorer.layers`."""
        return self._layers

    @property
    def process_ids(self) -> list[int]:
        """Of the replayers, as they are now."""
        return [each.process_id for each in self._processes]

    def load_weights(self, weights: Weights) -> None:
        """See `Scorer.load_weights`."""
        if len(weights) != self._model.weight_bytes:
            raise IntegrityError(f"{len(weights):,} bytes of weights, {self._model.weight_bytes:,} expected")
        self._weights[:] = weights
        self._loads += 1
        while not self._with_policy():
            pass

    def sleep(self) -> None:
        """See `Scorer.sleep`."""
        self._loads = 0
        for replayer in list(self._processes):
            if replayer.is_ready and self._told(replayer, messages.Sleep()):
                self._heard(replayer)
                replayer.loads = 0

    def replay(
        self,
        requests: Sequence[GenerationRequest],
        token_ids: Sequence[Sequence[int]],
        probes: Sequence[Sequence[int]] = (),
    ) -> list[Scored]:
        """See `Scorer.replay`."""
        check_counts(requests, token_ids, probes)
        prompts, lengths = [request.prompt_ids for request in requests], [len(ids) for ids in token_ids]
        waiting = deque(deal(prompts, lengths, len(self._processes)))
        scored: dict[int, Scored] = {}
        while waiting:
            given = []
            for replayer in self._with_policy():
                if waiting:
                    share = waiting.popleft()
                    rows = messages.Rows.of(
                        [requests[index] for index in share],
                        [token_ids[index] for index in share],
                        [probes[index] for index in share] if probes else (),
                    )
                    given.append((replayer, share, self._told(replayer, rows)))
            failures = []
            for replayer, share, told in given:
                answer = self._heard(replayer) if told else None
                if isinstance(answer, messages.Failed):
                    failures.append(answer)
                elif isinstance(answer, messages.Replayed):
                    scored.update(zip(share, answer.scored(), strict=True))
                else:
                    waiting.append(share)
            for failure in failures:
                raise _error(failure)
        return [scored[index] for index in range(len(requests))]

    def close(self) -> None:
        """End the replayers."""
        for replayer in self._processes:
            replayer.close()
        self._processes = []
        os.close(self._descriptor)
        self._weights.close()

    def _with_policy(self) -> list[_Replayer]:
        """The replayers that hold the policy, after those that can have loaded it. One that starts is waited for where
        there is no other; empty where that one has ended."""
        starting = [each for each in self._processes if not each.is_ready]
        nobody = len(starting) == len(self._processes)
        for replayer in starting:
            if nobody or replayer.has_answer():
                self._await_ready(replayer)
        behind = [each for each in self._processes if each.is_ready and each.loads != self._loads]
        told = [(each, self._told(each, messages.Load())) for each in behind]
        answers = [(each, self._heard(each) if sent else None) for each, sent in told]
        for replayer, answer in answers:
            if isinstance(answer, messages.Failed):
                raise _error(answer)
            if answer is not None:
                replayer.loads, replayer.has_worked = self._loads, True
        return [each for each in self._processes if each.is_ready and each.loads == self._loads]

    def _await_ready(self, replayer: _Replayer) -> None:
        try:
            replayer.await_ready()
        except ProcessLostError:
            self._lost(replayer)

    def _told(self, replayer: _Replayer, command: messages.Command) -> bool:
        """Send a command; False, and another is started, when the replayer has ended."""
        try:
            replayer.send(command)
        except OSError:
            self._lost(replayer)
            return False
        return True

    def _heard(self, replayer: _Replayer) -> messages.Answer | None:
        """The answer; None, and another is started, when the replayer has ended."""
        answer = replayer.receive()
        if answer is None:
            self._lost(replayer)
        return answer

    def _lost(self, replayer: _Replayer) -> None:
        """Start another in the place of a replayer that has ended, unless it never got to work: the next one would end
        as it did. `ProcessLostError` when none is left."""
        place, how = self._processes.index(replayer), replayer.how_it_ended()
        replayer.close()
        if replayer.has_worked:
            self._on_notice(f"{how}; it starts again, and its groups are replayed")
            self._processes[place] = self._started(replayer.number, replayer.device)
            return
        del self._processes[place]
        if not self._processes:
            raise ProcessLostError(how, remedy=_AGAIN)
        self._on_notice(f"{how} before it had a policy; {counted(len(self._processes), 'replayer')} left")

    def _started(self, number: int, device: str) -> _Replayer:
        return _Replayer(number, device, self._model, threads=self._threads, weights=self._descriptor)


def _take_room(descriptor: int, size_bytes: int) -> None:
    """Give a file its size. `OSError` now if the disk is full: a write to a map without room ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.truncate(descriptor, size_bytes)


class _Replayer:
    """One process."""

    def __init__(self, number: int, device: str, model: messages.Model, *, threads: int, weights: int) -> None:
        self.number, self.device = number, device
        self.is_ready = False
        """Whether its model is built."""
        self.loads = 0
        """The load that gave it its policy; 0 without one."""
        self.has_worked = False
        """Whether it has ever held a policy."""
        self._answers, answers = os.pipe()
        start = messages.Start(model=model, device=device, threads=threads, answers=answers, weights=weights)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "p2prl.replayers.replayer_process", msgspec.json.encode(start).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # the learner's is for its records
                pass_fds=(answers, weights),
                start_new_session=True,  # Ctrl-C in the terminal is the learner's, which then finishes its update
            )
        finally:
            os.close(answers)
        assert self._process.stdin is not None
        self._commands = self._process.stdin

    @property
    def process_id(self) -> int:
        """Of the process."""
        return self._process.pid

    def await_ready(self) -> tuple[EngineClass, int]:
        """Wait until its model is built: its engine class and layers. `ProcessLostError` when it has ended."""
        answer = self.receive()
        if isinstance(answer, messages.Failed):
            raise _error(answer)
        if not isinstance(answer, messages.Ready):
            raise ProcessLostError(self.how_it_ended(), remedy=_AGAIN)
        self.is_ready = True
        return answer.engine, answer.layers

    def has_answer(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(select.select([self._answers], [], [], 0)[0])

    def send(self, command: messages.Command) -> None:
        """Send a command. `OSError` when the process has ended."""
        messages.send(self._commands.fileno(), command)

    def receive(self) -> messages.Answer | None:
        """Wait for the answer to what was sent; None when the process has ended."""
        return messages.receive_answer(self._answers)

    def how_it_ended(self) -> str:
        """A sentence about its end."""
        status = self._process.wait()
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        return f"replayer {self.number} {how}"

    def close(self) -> None:
        """End it, if it runs."""
        with suppress(OSError):  # it is gone, and what was unsent with it
            self._commands.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            os.close(self._answers)


def _error(failure: messages.Failed) -> P2PRLError:
    return _RAISED.get(failure.kind, ProcessLostError)(failure.message, remedy=failure.remedy)
