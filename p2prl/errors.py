"""Every error p2prl raises, sorted by whose move it is.

A bad rollout is not here: what a stranger's work is worth is a verdict, which is data. These types say who has to
act next, and the command line turns each into one sentence, a remedy and an exit code (`docs/cli.md`).
"""

from __future__ import annotations


class P2PRLError(Exception):
    """Base of every error raised on purpose. `remedy` is what the reader can do about it, in one sentence."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class ConfigError(P2PRLError):
    """You fix it: a setting, a link, a path or a flag is wrong."""

    exit_code = 3


def require(name: str, value: object, legal: bool, legal_range: str) -> None:
    """Raise `ConfigError` naming a setting and its legal range unless `legal`."""
    if not legal:
        raise ConfigError(
            f"{name} is {value!r}; it must be {legal_range}", remedy=f"Give {name} a value that is {legal_range}."
        )


class MachineError(P2PRLError):
    """This machine cannot do that role: disk full, model missing, port in use, clock off."""

    exit_code = 4


class UpdateRequiredError(P2PRLError):
    """The swarm speaks a newer wire version than this program."""

    exit_code = 5


class IdentityError(P2PRLError):
    """The key file is missing, unreadable, too widely readable, or not a key."""

    exit_code = 6


class UnreachableError(P2PRLError):
    """No peer of the run answered."""

    exit_code = 7


class ProtocolError(P2PRLError):
    """A rule of the wire was broken."""


class LocalProtocolError(ProtocolError):
    """We broke it: our bug, so crash."""


class RemoteProtocolError(ProtocolError):
    """The peer broke it: drop the message, feed the peer's standing."""


class TransportError(P2PRLError):
    """Weather: the network failed; retry with backoff."""

    exit_code = 75


class IntegrityError(P2PRLError):
    """Bytes differ from what the manifest promised: fetch elsewhere, blame the sender."""


class StaleWorkError(P2PRLError):
    """Work that came too late, or by a clock that is off. Nobody's fault: discard it."""
