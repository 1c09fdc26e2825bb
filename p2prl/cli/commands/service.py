"""`p2prl service`: a user's service that keeps a worker running: a hardened systemd unit, or a launchd agent."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import escape

import typer

from p2prl import exit_codes
from p2prl.cli.app import load
from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home, Link
from p2prl.cli.views.console import emit, say
from p2prl.config.named_link import named_link
from p2prl.config.worker_folder import default_home
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError
from p2prl.user_home import user_home

Manager = Annotated[
    str, typer.Option("--manager", help="systemd or launchd. Default: systemd on Linux, launchd on macOS.")
]
Command = Annotated[str, typer.Option("--run", help="The worker to keep running: join, seed or validate.")]
Options = Annotated[
    str, typer.Option("--options", help="Options of that command, as one text: '--device cuda:1'. Default: none.")
]
User = Annotated[bool, typer.Option("--user", help="For this user, which is the only way: p2prl never needs root.")]

service_app = typer.Typer(no_args_is_help=True, help="A user's service that keeps a worker running.")


@service_app.command("print", epilog=epilog("p2prl service print"))
def service_print(
    link: Link,
    run: Command = "join",
    options: Options = "",
    manager: Manager = "",
    home: Home = None,
) -> None:
    """Print the service file and the commands that start it. Changes nothing."""
    check_options(run, options)
    plan = planned_service(link, run=run, options=options, manager=manager, home=home)
    sys.stdout.write(plan.text)
    sys.stdout.flush()
    for line in plan.instructions():
        typer.echo(line, err=True)


@service_app.command("install", epilog=epilog("p2prl service install"))
def service_install(
    link: Link,
    run: Command = "join",
    options: Options = "",
    manager: Manager = "",
    user: User = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Write the service file for this user, and print the commands that start it. Nothing is started."""
    check_options(run, options)
    plan = planned_service(link, run=run, options=options, manager=manager, home=home)
    if not user:
        raise ConfigError("a service of the whole system needs root, and p2prl does not", remedy="Add --user.")
    _check_owner(plan.path)
    if plan.path.exists() and plan.path.read_text() != plan.text:
        raise ConfigError(f"{plan.path} is there already and differs", remedy="Delete it first, if it may go.")
    try:
        plan.path.parent.mkdir(parents=True, exist_ok=True)
        plan.path.write_text(plan.text)
    except OSError as error:
        raise write_error(error, plan.path) from error
    if as_json:
        emit({"path": str(plan.path), "name": plan.name, "manager": plan.manager})
        return
    say(f"Wrote {plan.path}.", unwrapped=True)
    for line in plan.instructions()[-3:]:
        say(line, unwrapped=True)


_WORKERS = ("join", "seed", "validate")

_RESTART_S = 30

_STOP_S = 180
"""A worker finishes its groups in this time, or leaves them on disk."""

_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServicePlan:
    """A service file, and where it belongs."""

    manager: str
    name: str
    path: Path
    text: str

    def instructions(self) -> list[str]:
        """What to type after the file is there."""
        if self.manager == "launchd":
            return [f"Start it:  launchctl bootstrap gui/$(id -u) {shlex.quote(str(self.path))}"]
        return [
            f"Save it as {self.path} (p2prl service install --user does), then:",
            f"  systemctl --user daemon-reload && systemctl --user enable --now {self.name}",
            "  loginctl enable-linger      # go on after you log out",
            f"  journalctl --user -u {self.name} -f",
        ]


def check_options(run: str, options: str) -> None:
    """Read a worker's options as its command will: a service with a wrong one would never start. Usage error if so."""
    if run in _WORKERS:
        load(run).make_context(f"p2prl {run}", ["LINK", *_words(options)])


def planned_service(link: str, *, run: str, options: str, manager: str, home: Path | None) -> ServicePlan:
    """The service of one worker. `ConfigError` for a link, a manager or quotation marks that are wrong."""
    if run not in _WORKERS:
        raise ConfigError(f"--run {run!r} is no worker", remedy=f"Workers: {', '.join(_WORKERS)}.")
    named = named_link(link)
    name = f"p2prl-{_NAME.sub('-', named.name)[:40]}-{run}"
    chosen = manager or ("launchd" if sys.platform == "darwin" else "systemd")
    if chosen not in ("systemd", "launchd"):
        raise ConfigError(f"--manager {chosen!r} is not known", remedy="Managers: systemd, launchd.")
    extra = _words(options)
    base = (home or default_home()).absolute()
    command = [sys.executable, "-m", "p2prl", run, str(named), "--home", str(base), *extra]
    if any(not argument.isprintable() for argument in command):
        raise ConfigError("an argument of the service has a line break", remedy="Give it on one line.")
    if chosen == "launchd":
        label = f"org.p2prl.{name}"
        path = _config_folder("HOME", "") / "Library" / "LaunchAgents" / f"{label}.plist"
        return ServicePlan(manager=chosen, name=label, path=path, text=launchd_agent(label, command, base))
    path = _config_folder("XDG_CONFIG_HOME", ".config") / "systemd" / "user" / f"{name}.service"
    return ServicePlan(manager=chosen, name=name, path=path, text=systemd_unit(command, base))


def _config_folder(variable: str, below_home: str) -> Path:
    """The folder that `variable` names, else the one of this name in the user's home. `ConfigError` for a path that is
    not absolute: the service manager has another current folder, and its own idea of an empty `HOME`."""
    for name, below in ((variable, ""), ("HOME", below_home)):
        text = os.environ.get(name)
        if text and not Path(text).is_absolute():
            raise ConfigError(
                f"{name} is {text!r}, which is no absolute path", remedy=f"Set it to one, or unset {name}."
            )
        if text:
            return Path(text) / below if name == "HOME" else Path(text)
        if text == "" and name == "HOME":
            raise ConfigError("HOME is empty: nobody knows whose service this is", remedy="Set it to your home folder.")
    home = user_home()
    if home is None:
        raise ConfigError("this user has no home folder to keep a service in", remedy="Set HOME to one.")
    return home / below_home


def _words(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"--options cannot be read: {error}", remedy="Close its quotation marks.") from error


def systemd_unit(command: list[str], home: Path) -> str:
    """A user unit. It restarts what may work again, and keeps the worker from the rest of the system."""
    return f"""\
[Unit]
Description=p2prl {command[3]}: lends this machine to a training run
StartLimitIntervalSec=3600
StartLimitBurst=20

[Service]
ExecStart={" ".join(_systemd_word(word) for word in command)}
Restart=on-failure
RestartSec={_RESTART_S}
RestartPreventExitStatus={" ".join(map(str, exit_codes.NOT_AGAIN))}
SuccessExitStatus={exit_codes.RUN_FINISHED} {exit_codes.INTERRUPTED}
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec={_STOP_S}
Nice=10
CPUWeight=20
IOSchedulingClass=idle
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={_systemd_word(str(home))}
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


def launchd_agent(label: str, command: list[str], home: Path) -> str:
    """A launchd agent of a user. launchd knows no exit codes: it starts again whatever did not end well."""
    arguments = "\n".join(f"    <string>{escape(word)}</string>" for word in command)
    log = escape(str(home / "service.log"))
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{escape(label)}</string>
  <key>ProgramArguments</key>
  <array>
{arguments}
  </array>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ThrottleInterval</key>
  <integer>{_RESTART_S}</integer>
  <key>ExitTimeOut</key>
  <integer>{_STOP_S}</integer>
  <key>ProcessType</key>
  <string>Background</string>
  <key>LowPriorityIO</key>
  <true/>
  <key>Nice</key>
  <integer>10</integer>
  <key>Umask</key>
  <integer>63</integer>
  <key>StandardOutPath</key>
  <string>{log}</string>
  <key>StandardErrorPath</key>
  <string>{log}</string>
</dict>
</plist>
"""


def _check_owner(file: Path) -> None:
    """`ConfigError` where the file would be root's in another user's home: `sudo` may keep HOME."""
    there = next(folder for folder in file.parents if folder.exists())
    if os.getuid() == 0 and there.stat().st_uid != 0:
        raise ConfigError(f"{there} belongs to another user, and this is root", remedy="Run it without sudo.")


def _systemd_word(word: str) -> str:
    """A word of a unit file: quoted, with its specifiers and variables taken literally."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if re.fullmatch(r"[\w./:=@%$+-]+", text) else f'"{text}"'
