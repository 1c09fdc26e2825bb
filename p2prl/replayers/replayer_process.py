"""The process of a replayer: `python -m p2prl.replayers.replayer_process`. It ends with its learner.

Its pipe is watched from the first moment on: imports take seconds, and so does a model.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl.confinement.pipe_io import await_hangup
from p2prl.errors import P2PRLError, ProcessLostError

if TYPE_CHECKING:
    from p2prl.models.scorer_port import Scorer
    from p2prl.replayers import messages


def main(arguments: list[str]) -> int:
    """Replay what comes on standard input until it ends; the argument is a `messages.Start`."""
    commands = sys.stdin.fileno()
    threading.Thread(target=_end_with, args=(commands,), daemon=True).start()
    import msgspec  # here, as what is below: it takes a moment, and torch seconds

    from p2prl.replayers import messages

    start = msgspec.json.decode(arguments[0], type=messages.Start)
    weights = memoryview(mmap.mmap(start.weights, start.model.weight_bytes, access=mmap.ACCESS_READ))
    scorer: Scorer | None = None
    command: messages.Command | None = None
    while True:
        try:
            if scorer is None:
                scorer = _scorer(start)
                answer: messages.Answer = messages.Ready(scorer.engine_class, scorer.layers)
            else:
                assert command is not None
                answer = _execute(command, scorer, weights)
        except P2PRLError as error:
            answer = messages.Failed(type(error).__name__, str(error), error.remedy)
        except (RuntimeError, MemoryError, OSError) as error:
            text = " ".join(str(error).split())[:500]
            answer = messages.Failed(ProcessLostError.__name__, f"a replayer failed: {text}", "")
        messages.send(start.answers, answer)
        command = messages.receive_command(commands)
        if command is None:
            return 0


def _scorer(start: messages.Start) -> Scorer:
    import torch

    from p2prl.models.base_model.local_base import load_policy
    from p2prl.models.engines.transformers.policy_model import PolicyModel
    from p2prl.models.engines.transformers.scorer import TransformersScorer
    from p2prl.models.hardware.device_choice import repeat_exactly, use_threads
    from p2prl.models.weights.layout import layout_of

    device, first = torch.device(start.device), start.model.first
    use_threads(start.threads)
    repeat_exactly(device)
    loaded = load_policy(Path(first), Path(first), start.model.lora, device=device, dtype=start.model.dtype)
    policy = PolicyModel(loaded.model, layout_of(loaded.model, start.model.published))
    policy.drop_policy()
    return TransformersScorer(policy)


def _execute(command: messages.Command, scorer: Scorer, weights: memoryview) -> messages.Answer:
    from p2prl.replayers import messages

    if isinstance(command, messages.Rows):
        return messages.Replayed.of(scorer.replay(*command.arguments()))
    if isinstance(command, messages.Load):
        scorer.load_weights(weights)
    else:
        scorer.sleep()
    return messages.Done()


def _end_with(pipe: int) -> None:
    """End this process once the learner has closed the pipe, as it does when it is killed."""
    await_hangup(pipe)
    os._exit(0)  # nobody waits for what the main thread computes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
