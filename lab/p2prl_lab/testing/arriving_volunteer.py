"""A volunteer whose tasks arrive one after another: `p2prl join` that skips the slots of tasks that are not asked yet.

    python -m p2prl_lab.testing.arriving_volunteer LINK [options of p2prl join] --arrive U,V,W:32

U is asked from the first update on, V from update 32 on, W from update 64 on, by the step of the policy that samples. A
volunteer may skip a slot, so learners and validators need to know nothing of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.cli.entry import main as run_program
from p2prl.client import service
from p2prl.client.agent import LocalPolicy
from p2prl.client.sampler import SlotSampler
from p2prl.models.groups.group_work import SamplingTools


@dataclass(frozen=True, slots=True)
class TaskArrival:
    """Tasks that are asked one after another, each to the end."""

    tasks: tuple[str, ...]
    period: int
    """Updates between two of them."""

    @classmethod
    def parse(cls, text: str) -> TaskArrival:
        """`TASK,TASK:PERIOD`."""
        names, _, period = text.rpartition(":")
        return cls(tuple(names.split(",")), int(period))

    def asked(self, update: int) -> tuple[str, ...]:
        """The tasks of an update, counted from 0."""
        return self.tasks[: update // self.period + 1]


def arriving_sampler(arrival: TaskArrival) -> type[SlotSampler]:
    """A sampler of the slots whose task is asked."""

    class ArrivingSampler(SlotSampler):
        def submit(self, tools: SamplingTools, policy: LocalPolicy, slots: Iterable[int]) -> set[int]:
            asked = arrival.asked(policy.manifest.step)
            kept: list[int] = []
            early: set[int] = set()
            for slot in slots:
                work = tools.work.assign(beacon=policy.manifest.beacon, peer=self._identity.public_key, slot=slot)
                if work.task in asked:
                    kept.append(slot)
                else:
                    early.add(slot)
            return early | super().submit(tools, policy, kept)

    return ArrivingSampler


def main(arguments: list[str]) -> None:
    """Join a run."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--arrive", required=True, type=TaskArrival.parse, metavar="TASK,TASK:PERIOD")
    named, rest = parser.parse_known_args(arguments)
    service.SlotSampler = arriving_sampler(named.arrive)  # type: ignore[attr-defined]
    sys.argv = [sys.argv[0], "join", *rest]
    run_program()


if __name__ == "__main__":
    main(sys.argv[1:])
