"""Errors, sorted by who has to act on them.

The command line turns each into one sentence, a remedy and an exit code (`docs/cli.md`). A bad rollout is not an error:
its rejection is data (`p2prl.protocol.rejection_reasons`).
"""

from __future__ import annotations

from p2prl.exit_codes import (
    CONFIGURATION,
    IDENTITY,
    MACHINE,
    REFUSED_RUN,
    TEMPORARY,
    UNEXPECTED,
    UNREACHABLE,
    UPDATE_REQUIRED,
    WORK_REFUSED,
)


class P2PRLError(Exception):
    """Base of every error raised on purpose. `remedy` is one sentence telling the user what to do."""

    exit_code = UNEXPECTED

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class ConfigError(P2PRLError):
    """A setting, link, path or flag is wrong. The user has to fix it."""

    exit_code = CONFIGURATION


def require(name: str, value: object, legal: bool, legal_range: str) -> None:
    """Raise `ConfigError` naming a setting and its legal range unless `legal`."""
    if not legal:
        raise ConfigError(f"{name} is {value!r}; it must be {legal_range}", remedy=f"Set {name} to {legal_range}.")


class MachineError(P2PRLError):
    """This machine cannot run the role: disk full, model missing, port in use, clock wrong."""

    exit_code = MACHINE


class DeviceFailedError(P2PRLError):
    """The graphics card or its driver failed while it computed. A new process may find it working again."""

    exit_code = TEMPORARY


class ProcessLostError(P2PRLError):
    """A process that shared this one's work has ended. A new start resumes."""

    exit_code = TEMPORARY


class UpdateRequiredError(P2PRLError):
    """The peers of the run use a newer wire version than this program."""

    exit_code = UPDATE_REQUIRED


LEARNER_ELSEWHERE_REMEDY = (
    "Go on there, and do not start this folder again; this machine may follow that one into a new folder: p2prl learn"
    " NEW_FOLDER --standby. If no other machine should run it, compare both folders before you start either: volunteers"
    " leave a run that signs two histories."
)
"""For a learner whose key another machine uses."""


class IdentityError(P2PRLError):
    """The key file is missing, unreadable, too widely readable, or not a key."""

    exit_code = IDENTITY


REFUSED_RUN_REMEDY = "Nothing of it is kept. Ask for the link of another run, and tell who gave you this one."
"""What a user can do about a run whose learner breaks the rules."""


class RefusedRunError(P2PRLError):
    """The run's learner signed what no honest learner signs: this machine takes no part."""

    exit_code = REFUSED_RUN


class WorkRefusedError(P2PRLError):
    """The learner refuses this machine's work, and nothing here says that the work is wrong."""

    exit_code = WORK_REFUSED


class UnreachableError(P2PRLError):
    """No peer of the run answered."""

    exit_code = UNREACHABLE


class ProtocolError(P2PRLError):
    """A rule of the wire protocol was broken."""


class LocalProtocolError(ProtocolError):
    """This program broke a rule. This is a bug, so crash."""


class RemoteProtocolError(ProtocolError):
    """A peer broke a rule. Drop the message and count a fault against the peer."""


class TransportError(P2PRLError):
    """The network failed. Retry with backoff."""

    exit_code = TEMPORARY


class IntegrityError(P2PRLError):
    """Bytes do not match the manifest. Download them elsewhere and count a fault against the sender."""


class StaleWorkError(P2PRLError):
    """Work that arrived too late or has a wrong timestamp. Discard it without counting a fault."""
