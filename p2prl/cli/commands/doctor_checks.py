"""The checks of `p2prl doctor`: facts about a machine in, findings with cause and fix out. Pure."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from p2prl.net.transports.tcp_trial import Outcome
from p2prl.quantity_text import size_text

LEAST_DISK, WANTED_DISK = 1_000_000_000, 10_000_000_000
"""Bytes of free disk below which no run fits, and below which larger models do not."""

LEAST_MEMORY, WANTED_MEMORY = 1_500_000_000, 4_000_000_000
"""Bytes of available memory: torch and the network process alone take one gigabyte."""

MOST_CLOCK_ERROR_S = 30.0
"""Peers refuse messages from the future beyond two minutes: half a minute leaves room for their own clocks."""

PASSED, WARNING, FAILED = "ok", "warn", "FAIL"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyFile:
    """A key file under the home."""

    name: str
    """As `seat-1/key.json`."""
    mode: int
    """Permission bits."""
    is_ours: bool
    """Whether this user owns it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """What was read from the machine. It has many fields because it is a report of facts; None means unknown."""

    python: tuple[int, int, int]
    version: str
    """Of p2prl."""
    wire: int
    clock_error_s: float | None = None
    """Most error of the system's clock, by the kernel."""
    clock_synchronized: bool | None = None
    ahead_s: float = 0.0
    """How far the newest file of this home lies in the future."""
    home_error: str = ""
    """Why the home cannot be written to; empty when it can."""
    home_mode: int = 0o700
    disk_free: int | None = None
    memory_available: int | None = None
    keys: tuple[KeyFile, ...] = ()
    confinement: str = ""
    """Layers that would confine a worker; empty for none."""
    driver: str = ""
    """Version of the NVIDIA driver; empty for none."""
    cards: int = 0
    """NVIDIA cards that the system shows."""
    device: Mapping[str, object] = field(default_factory=dict)
    """The object of `p2prl.config.confined_checkup`, or `error`; empty when it was skipped."""
    routes: tuple[str, ...] = ()
    """`IPv4` and `IPv6`, where the system has a way out."""
    has_public_address: bool = False
    """Whether an interface has a public IPv4 address."""
    dialed: Mapping[str, Outcome] = field(default_factory=dict)
    """By address of a join link, what a dial saw."""
    daemon: tuple[tuple[str, bool, str], ...] = ()
    """Steps of a network daemon's self-test: name, whether it passed, and what it did or why it failed."""
    spool_bytes: int = 0
    """Finished work on disk."""
    install_again: str = ""
    """How this copy of the program is installed anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The outcome of one check."""

    name: str
    outcome: str
    """`ok`, `warn` or `FAIL`."""
    text: str
    cause: str = ""
    fix: str = ""


def findings(facts: MachineFacts) -> list[Finding]:
    """All checks, in the order in which they are shown."""
    return [finding for check in _CHECKS for finding in check(facts)]


def _version(facts: MachineFacts) -> list[Finding]:
    python = ".".join(map(str, facts.python))
    text = f"p2prl {facts.version}, wire version {facts.wire}, Python {python}"
    if facts.python < (3, 11, 0):
        fix = "Install Python 3.11 or newer, and p2prl in a new environment of it."
        return [Finding(name="version", outcome=FAILED, text=text, cause="Python is older than 3.11.", fix=fix)]
    return [Finding(name="version", outcome=PASSED, text=text)]


def _clock(facts: MachineFacts) -> list[Finding]:
    fix = "Turn on the system's time service: timedatectl set-ntp true (Linux, WSL2), or Date & Time (macOS)."
    if facts.ahead_s > MOST_CLOCK_ERROR_S:
        text = f"files of this home are {facts.ahead_s:,.0f} s in the future"
        cause = "The clock went back, or was ahead when they were written; peers refuse messages dated wrongly."
        return [Finding(name="clock", outcome=FAILED, text=text, cause=cause, fix=fix)]
    if facts.clock_synchronized is None:
        text = "this system does not tell whether its clock is set by a time service"
        return [Finding(name="clock", outcome=PASSED, text=text)]
    error = "" if facts.clock_error_s is None else f", wrong by {facts.clock_error_s:.2g} s at most"
    if facts.clock_synchronized:
        wrong = (facts.clock_error_s or 0.0) > MOST_CLOCK_ERROR_S
        cause = "Peers refuse messages dated wrongly." if wrong else ""
        outcome = FAILED if wrong else PASSED
        text = f"set by a time service{error}"
        return [Finding(name="clock", outcome=outcome, text=text, cause=cause, fix=fix if wrong else "")]
    cause = "A clock that drifts by minutes gets your messages refused. In a container or a virtual machine the host's "
    return [
        Finding(name="clock", outcome=WARNING, text="no time service sets it", cause=f"{cause}clock decides.", fix=fix)
    ]


def _disk(facts: MachineFacts) -> list[Finding]:
    if facts.home_error:
        fix = "Fix its permissions, or give another folder with --home or P2PRL_HOME."
        return [Finding(name="home", outcome=FAILED, text=facts.home_error, cause="Keys and work live there.", fix=fix)]
    found = []
    if facts.home_mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = f"the home folder is open to other users (mode {facts.home_mode:04o})"
        cause = "Key files are closed by themselves; the names of your runs are not."
        found.append(Finding(name="home", outcome=WARNING, text=text, cause=cause, fix="p2prl doctor --fix"))
    if facts.disk_free is None:
        return found
    text = f"{size_text(facts.disk_free)} free, {size_text(facts.spool_bytes)} of finished work kept"
    if facts.disk_free < LEAST_DISK:
        fix = "Free some space, or put the home elsewhere: --home, P2PRL_HOME."
        cause = f"A run needs {size_text(LEAST_DISK)} and more."
        return [*found, Finding(name="disk", outcome=FAILED, text=text, cause=cause, fix=fix)]
    if facts.disk_free < WANTED_DISK:
        cause = "Weights of a model of a billion parameters take about as much; smaller runs fit."
        return [*found, Finding(name="disk", outcome=WARNING, text=text, cause=cause, fix="Free some space for them.")]
    return [*found, Finding(name="disk", outcome=PASSED, text=text)]


def _memory(facts: MachineFacts) -> list[Finding]:
    if facts.memory_available is None:
        return []
    text = f"{size_text(facts.memory_available)} available"
    if facts.memory_available < LEAST_MEMORY:
        cause = f"torch and the network need {size_text(LEAST_MEMORY)} before any model."
        fix = "Close other programs, or add swap space. p2prl seed LINK needs far less."
        return [Finding(name="memory", outcome=FAILED, text=text, cause=cause, fix=fix)]
    if facts.memory_available < WANTED_MEMORY:
        cause = "Small models fit; join refuses a run that does not, before it downloads it."
        return [Finding(name="memory", outcome=WARNING, text=text, cause=cause, fix="Close other programs for more.")]
    return [Finding(name="memory", outcome=PASSED, text=text)]


def _keys(facts: MachineFacts) -> list[Finding]:
    found = []
    for key in facts.keys:
        if not key.is_ours:
            cause, fix = "Another user owns it.", f"chown $(id -u) {key.name}, in the home folder."
        elif key.mode & (stat.S_IRWXG | stat.S_IRWXO):
            cause = "Other users of this machine could read it, and work in your name."
            fix = "p2prl doctor --fix closes it. If somebody may have read it, use a new key: move it away."
        else:
            continue
        text = f"{key.name} has mode {key.mode:04o}"
        found.append(Finding(name="key", outcome=FAILED, text=text, cause=cause, fix=fix))
    if not found and facts.keys:
        return [Finding(name="keys", outcome=PASSED, text=f"{len(facts.keys)}, closed to other users")]
    return found or [Finding(name="keys", outcome=PASSED, text="none yet: join makes one")]


def _confinement(facts: MachineFacts) -> list[Finding]:
    if facts.confinement:
        return [Finding(name="confined", outcome=PASSED, text=facts.confinement)]
    cause = "This system has neither Landlock nor seccomp: a fault in a library could give a hostile run your rights."
    fix = "Use Linux 5.13 or newer, or run it as a user of its own. docs/confinement.md says more."
    return [Finding(name="confined", outcome=WARNING, text="a worker is not confined here", cause=cause, fix=fix)]


def _torch(facts: MachineFacts) -> list[Finding]:
    device = facts.device
    if not device:
        return []
    if "torch" not in device:
        return [
            Finding(
                name="torch",
                outcome=FAILED,
                text="torch cannot be used",
                cause=str(device.get("error", "")),
                fix=f"{facts.install_again}.",
            )
        ]
    build = f"CUDA {device['cuda_build']}" if device.get("cuda_build") else "no CUDA"
    text = f"torch {device['torch']} ({build})" + (f", NVIDIA driver {facts.driver}" if facts.driver else "")
    if facts.cards and not device.get("cards"):
        cause = (
            "The system has a card that a worker cannot use: torch is built for the CPU, the driver is too old, or it "
            "needs files that a confined worker may not open."
        )
        fix = (
            f"Update the driver (nvidia-smi shows its version). If torch has no CUDA: {facts.install_again}. "
            "If p2prl bench machine finds the card: p2prl join --no-confinement."
        )
        return [Finding(name="torch", outcome=FAILED, text=text, cause=cause, fix=fix)]
    return [Finding(name="torch", outcome=PASSED, text=text)]


def _device(facts: MachineFacts) -> list[Finding]:
    device = facts.device
    if "torch" not in device:
        return []
    if "error" in device:
        cause = str(device["error"])
        fix = "Restart the machine or its driver; p2prl join --device cpu works meanwhile."
        return [Finding(name="self-test", outcome=FAILED, text="the device failed", cause=cause, fix=fix)]
    if device.get("noise") is None:
        return [Finding(name="self-test", outcome=PASSED, text=f"{device['device']} works")]
    figures = f"{device['differing']} of {device['tokens']} known tokens differ, noise {device['noise']:.1g} logits"
    text = f"{device['device']}: {figures}, up to {device['allowed']:.1g} is usual"
    if device["verdict"] == "fits":
        return [Finding(name="self-test", outcome=PASSED, text=text)]
    fix = "Undo any overclock, of the memory above all, try another driver version, or use p2prl join --device cpu."
    if device["verdict"] == "noisy":
        cause = "It rounds more than its number type should: much of its work would be refused, without blame."
        return [Finding(name="self-test", outcome=WARNING, text=text, cause=cause, fix=fix)]
    cause = "Memory or processor err, or a library is broken. This is not treated as cheating, and nothing was sent."
    return [Finding(name="self-test", outcome=FAILED, text=text, cause=cause, fix=fix)]


def _network(facts: MachineFacts) -> list[Finding]:
    if not facts.routes:
        cause = "The system has no route to the Internet."
        fix = "Check the cable, the wireless network or the VPN."
        return [Finding(name="network", outcome=FAILED, text="offline", cause=cause, fix=fix)]
    ways = " and ".join(facts.routes)
    role = (
        "a public address of its own, so it can join, learn, and seed for others (p2prl seed)"
        if facts.has_public_address
        else "no public IPv4 address, so it can join, and learn through a rented machine (p2prl learn --via)"
    )
    if not facts.dialed:
        text = f"a way out over {ways}, {role}; with a join link, doctor dials its peers too"
        return [Finding(name="network", outcome=PASSED, text=text)]
    seen = set(facts.dialed.values())
    answered = sum(outcome in _ANSWERS for outcome in facts.dialed.values())
    text = f"{answered} of {len(facts.dialed)} peers of the link answer, over {ways}; {role}"
    if Outcome.SHORT in seen and Outcome.GREETED not in seen:
        cause = (
            "Packets of full size are lost on the way, and nobody says so. p2prl uses shorter ones, for some more CPU."
        )
        fix = "Nothing is needed. Lower the MTU for other programs (Linux: sudo ip link set dev DEVICE mtu 1280)."
        return [Finding(name="network", outcome=WARNING, text=text, cause=cause, fix=fix)]
    if answered:
        return [Finding(name="network", outcome=PASSED, text=text)]
    cause = f"Dialing them failed: {'; '.join(sorted(seen))}. They are gone, or a firewall lets web traffic alone out."
    fix = "Ask for a fresh link, best with a peer at port 443; or allow outbound TCP to other than the usual ports."
    return [Finding(name="network", outcome=FAILED, text=text, cause=cause, fix=fix)]


_ANSWERS = frozenset({Outcome.GREETED, Outcome.SHORT})


def _daemon(facts: MachineFacts) -> list[Finding]:
    fix = "Unset P2PRL_P2PD if it names this daemon: the one that was installed with p2prl is used then."
    return [
        Finding(name="p2pd", outcome=PASSED, text=text)
        if passed
        else Finding(name="p2pd", outcome=FAILED, text=f"this network daemon fails: {name}", cause=text, fix=fix)
        for name, passed, text in facts.daemon
    ]


_CHECKS: tuple[Callable[[MachineFacts], list[Finding]], ...] = (
    _version,
    _clock,
    _disk,
    _memory,
    _keys,
    _confinement,
    _torch,
    _device,
    _network,
    _daemon,
)
