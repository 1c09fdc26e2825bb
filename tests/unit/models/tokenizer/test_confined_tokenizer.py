"""The confined process of a run's tokenizer: the same tokens as in this process, and an end to whatever hangs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from p2prl.confinement.children import Child, Launch
from p2prl.confinement.layers import LANDLOCK, SECCOMP
from p2prl.errors import MachineError, RemoteProtocolError
from p2prl.models.run_files.checks import read_tokenizer
from p2prl.models.tokenizer.backend import read_backend
from p2prl.models.tokenizer.confined import MOST_FAILURES, ConfinedTokenizer, tokenizer_program
from p2prl_lab.testing.tokenizer_bombs import VOCABULARY, Bomb, bombs, unchecked_program
from tests.unit.models.tokenizer.test_tokenizer_checks import REAL

TEXTS = ["", "a1 a  é字\n1", "</s> a </s>", "▁a 1 [SEP]", "a" * 500]
SPECIAL = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
BOMBS = {bomb.name: bomb for bomb in bombs()}
HARMLESS = ("four repetitions",)
"""Bombs that the rules accept, since they go off nowhere."""


NewChildren = Callable[[], list[psutil.Process]]


@pytest.fixture
def new_children() -> NewChildren:
    """Children of this process that the test has started."""
    earlier = psutil.Process().children()
    return lambda: [child for child in psutil.Process().children() if child not in earlier]


def files_of(kind: str, special: dict[str, str]) -> dict[str, bytes]:
    config = "{" + ",".join(f'"{name}":"{token}"' for name, token in special.items()) + "}"
    return {"tokenizer.json": REAL[kind].to_str().encode(), "tokenizer_config.json": config.encode()}


@pytest.mark.parametrize("kind", [kind for kind in REAL if kind != "unigram"])
def test_it_encodes_and_decodes_as_transformers_does(kind: str) -> None:
    files = files_of(kind, SPECIAL)
    ours = read_tokenizer(files, 32)
    with ConfinedTokenizer(files["tokenizer.json"], SPECIAL, 32) as confined:
        assert confined.eos_token_id == ours.eos_token_id == 2
        for special in (True, False):
            assert [confined.encode(text, add_special_tokens=special) for text in TEXTS] == [
                ours.encode(text, add_special_tokens=special) for text in TEXTS
            ]
            assert confined(TEXTS, add_special_tokens=special) == {
                "input_ids": ours(TEXTS, add_special_tokens=special)["input_ids"]
            }
        for ids in ([], [3, 4, 5], [2, 3, 2, 6, 7], list(range(8)) * 50):
            assert confined.decode(ids) == ours.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )


def test_it_is_confined(new_children: NewChildren) -> None:
    with ConfinedTokenizer(REAL["gpt2"].to_str().encode(), {}, 32) as confined:
        assert confined.eos_token_id is None
        if sys.platform == "linux":
            assert {LANDLOCK, SECCOMP} <= set(confined.layers) or os.uname().release < "5.13"
        (child,) = new_children()
        assert child.environ().keys() & {"PATH", "HOME"} == {"PATH", "HOME"}
        assert len(child.environ()) < 12
    assert not child.is_running()


@pytest.mark.parametrize("name", [name for name in BOMBS if name not in HARMLESS])
def test_every_bomb_is_refused_by_the_checks(name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        read_backend(BOMBS[name].rules, [], VOCABULARY)


def set_off(bomb: Bomb, launch: Launch | None = None) -> None:
    with ConfinedTokenizer(bomb.rules, {}, VOCABULARY, launch=launch) as confined:
        confined.encode(bomb.text)
        confined.decode(bomb.token_ids)


def test_a_refusal_names_the_part_and_leaves_no_process(new_children: NewChildren) -> None:
    with pytest.raises(RemoteProtocolError, match="pre-tokenizer 'Split'") as refused:
        set_off(BOMBS["nested repetition"])
    assert refused.value.remedy
    assert new_children() == []


@pytest.mark.parametrize("name", ["doubling", "bytes of bytes"])
def test_what_the_checks_might_miss_ends_at_the_limits(name: str, new_children: NewChildren) -> None:
    """Seconds, because the first needs all the time that the limit leaves it."""
    before = os.times()
    with pytest.raises(RemoteProtocolError, match=r"more than 1\.5 s or 440 MB for a text of 1 characters"):
        set_off(BOMBS[name], unchecked_program().start)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 2.5
    assert new_children() == []


class Ending:
    """Starts processes and ends each of the first `count` before it answers."""

    def __init__(self, count: int, number: int) -> None:
        self.started = 0
        self._count = count
        self._number = number

    def __call__(self, descriptor: int) -> Child:
        self.started += 1
        child = tokenizer_program().start(descriptor)
        if self.started <= self._count:
            os.kill(child.pid, self._number)
        return child


@pytest.fixture
def started() -> Iterator[Callable[[Ending], ConfinedTokenizer]]:
    made: list[ConfinedTokenizer] = []

    def start(launch: Ending) -> ConfinedTokenizer:
        made.append(ConfinedTokenizer(REAL["gpt2"].to_str().encode(), {}, 32, launch=launch))
        return made[-1]

    yield start
    for tokenizer in made:
        tokenizer.close()


def test_a_process_that_the_system_kills_is_replaced(
    started: Callable[[Ending], ConfinedTokenizer], new_children: NewChildren
) -> None:
    launch = Ending(1, signal.SIGKILL)
    tokenizer = started(launch)
    assert launch.started == 2
    (child,) = new_children()
    child.kill()
    assert tokenizer.encode("a1") == REAL["gpt2"].encode("a1").ids
    assert launch.started == 3


def test_it_is_the_machines_fault_if_the_system_kills_it_again(started: Callable[[Ending], ConfinedTokenizer]) -> None:
    with pytest.raises(MachineError, match="ended with status -9"):
        started(Ending(2, signal.SIGKILL))


def test_it_is_the_runs_fault_if_it_aborts(started: Callable[[Ending], ConfinedTokenizer]) -> None:
    launch = Ending(1, signal.SIGABRT)
    with pytest.raises(RemoteProtocolError, match="its own rules"):
        started(launch)
    assert launch.started == 1


def test_after_some_failures_no_process_is_started(new_children: NewChildren) -> None:
    launches = 0

    def launch(descriptor: int) -> Child:
        nonlocal launches
        launches += 1
        return unchecked_program().start(descriptor)

    bomb = BOMBS["piece of nothing"]
    with ConfinedTokenizer(bomb.rules, {}, VOCABULARY, launch=launch) as tokenizer:
        for _ in range(2 * MOST_FAILURES):
            with pytest.raises(RemoteProtocolError, match="chunk size"):
                tokenizer.encode(bomb.text)
        assert launches == 1, "a panic costs no process"
        for number in range(1, MOST_FAILURES + 1):
            (child,) = new_children()
            child.send_signal(signal.SIGPROF)
            with pytest.raises(RemoteProtocolError, match="needs more than"):
                tokenizer.encode("a")
            with pytest.raises(RemoteProtocolError, match="chunk size" if number < MOST_FAILURES else "failed 3 times"):
                tokenizer.encode(bomb.text)
        assert launches == MOST_FAILURES
