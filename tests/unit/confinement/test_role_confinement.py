"""The confinement of a role in words, its lists of files, and the profile that stands in for it on macOS."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.confinement import linux
from p2prl.confinement.linux import Access
from p2prl.confinement.macos import role_profile
from p2prl.confinement.role_confinement import Protection
from p2prl.confinement.role_files import network_access, open_access, role_access

OWN = Path("/somewhere/seat-1")
ROOT = Path(__file__).resolve().parents[3]


NO_SECCOMP = " No seccomp on this system: other system calls stay open to the process."
NO_LANDLOCK = " No Landlock on this system: your files stay open to the process."
OPEN = " The engine may start programs and open sockets."


@pytest.mark.parametrize(
    ("protection", "line"),
    [
        (
            Protection("Landlock 7", "seccomp"),
            "Confined: own folder only, no new programs, no sockets (Landlock 7, seccomp).",
        ),
        (
            Protection("Landlock 2"),
            f"Confined in part: own folder only, no new programs, no TCP (Landlock 2).{NO_SECCOMP}",
        ),
        (
            Protection("", "seccomp"),
            f"Confined in part: no new programs, no sockets (seccomp).{NO_LANDLOCK}",
        ),
        (
            Protection("Landlock 7", "seccomp", is_open=True),
            f"Confined: own folder and caches only (Landlock 7, seccomp).{OPEN}",
        ),
        (
            Protection("", "seccomp", is_open=True),
            f"Confined in part: no calls to the host (seccomp).{OPEN}{NO_LANDLOCK}",
        ),
    ],
)
def test_one_line_says_what_confines_a_role(protection: Protection, line: str) -> None:
    assert str(protection) == line
    assert protection.is_whole == line.startswith("Confined:")


def test_no_confinement_is_said_too() -> None:
    assert str(Protection()).startswith("Not confined: this system (")
    assert str(Protection(asked=False)).startswith("NOT confined, as --no-confinement says")


def test_only_the_own_folder_is_writable_and_nothing_private_is_readable() -> None:
    access = role_access(OWN, (Path("/models/base"),))
    assert access.writable == (OWN,)
    assert access.programs == ()
    assert not access.tcp
    assert Path("/models/base") in access.readable
    every = {path.resolve() for path in (*access.readable, *access.devices)}
    for private in (
        ROOT,
        Path.home(),
        Path("/"),
        Path("/etc"),
        Path("/proc"),
        Path("/dev"),
        Path("/tmp"),
        Path("/var"),
    ):
        assert private.resolve() not in every
    assert ROOT / "p2prl" in every


@pytest.mark.skipif(sys.platform != "linux", reason="the lists are Linux's")
def test_devices_are_those_of_accelerators() -> None:
    names = {path.name for path in role_access(OWN).devices}
    assert {"null", "urandom"} <= names
    for disk in ("sda", "vda", "nvme0n1", "mem", "kmsg", "kvm", "fuse", "loop0", "vsock", "input", "video0", "snd"):
        assert disk not in names


def test_an_engine_that_compiles_gets_programs_and_its_caches() -> None:
    access = open_access(OWN)
    assert access.tcp
    assert Path("/usr") in access.programs
    assert Path.home() / ".cache/vllm" in access.writable
    for private in (Path.home(), Path.home() / ".ssh", Path.home() / ".cache", Path("/")):
        assert private not in (*access.readable, *access.writable, *access.programs)


def test_a_network_process_executes_its_daemon_alone() -> None:
    access = network_access(OWN, Path("/tmp/p2prl-1"), (Path("/lib/p2pd"),), guarded=True)
    assert (access.writable, access.sockets, access.programs) == ((OWN,), (Path("/tmp/p2prl-1"),), (Path("/lib/p2pd"),))
    assert not {Path.home(), Path("/"), Path("/tmp"), Path("/etc"), Path("/proc"), Path("/sys")} & set(access.readable)
    unguarded = network_access(OWN, Path("/tmp/p2prl-1"), (Path("/lib/p2pd"),), guarded=False)
    assert Path("/proc") in unguarded.readable, "it measures its daemon itself"


@pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")
@pytest.mark.parametrize("access", [role_access(OWN), network_access(OWN, OWN, (), guarded=True)])
def test_what_names_the_machine_is_not_readable_and_what_lies_beside_it_is(access: Access) -> None:
    def reads(path: str) -> bool:
        real = Path(path).resolve()
        return any(allowed == real or allowed in real.parents for allowed in access.readable)

    for name in ("random/boot_id", "hostname", "domainname"):
        assert not reads(f"/proc/sys/kernel/{name}")
    for name in ("osrelease", "ostype", "cap_last_cap"):
        assert reads(f"/proc/sys/kernel/{name}")
    for card in Path("/sys/class/net").iterdir():
        assert not reads(str(card / "address"))
    for disk in Path("/sys/class/block").iterdir():
        assert not reads(str(disk / "wwid"))
    assert not reads("/etc/machine-id")
    for board in Path("/sys/class").glob("dmi/id"):
        assert not reads(str(board / "product_uuid"))
    assert reads("/sys/devices/system/cpu/online")


def test_the_profile_denies_writes_programs_network_and_the_home_folder() -> None:
    profile = role_profile(OWN, [Path('/odd "name"')], Path("/Users/someone"))
    for rule in ("(deny process-exec*)", "(deny network*)", "(deny file-write*)"):
        assert rule in profile
    assert '(deny file-read* (subpath "/Users/someone"))' in profile
    assert profile.index('(deny file-read* (subpath "/Users/someone"))') < profile.rindex(f'(subpath "{OWN}")')
    assert '(subpath "/odd \\"name\\"")' in profile
    assert profile.count("(") == profile.count(")")


_NAMES_A_THREAD = """
import os, sys, threading
from pathlib import Path
from p2prl.confinement.role_confinement import confine_files
confine_files(Path(sys.argv[1]))
def name_itself():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as own:
        own.write("named")
    print(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())
thread = threading.Thread(target=name_itself)
thread.start()
thread.join()
try:
    open(f"/proc/{os.getppid()}/task/{os.getppid()}/comm", "w")
except PermissionError:
    print("refused")
"""


needs_landlock = pytest.mark.skipif(sys.platform != "linux" or not linux.landlock_version(), reason="needs Landlock")


@needs_landlock
def test_a_role_names_its_own_threads_and_no_others(tmp_path: Path) -> None:
    """As CUDA's driver does when it starts."""
    program = [sys.executable, "-c", _NAMES_A_THREAD, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.stdout.split() == ["named", "refused"], done.stderr


_COMPILES = """
import os, sys
from pathlib import Path
from p2prl.confinement.role_confinement import confine_files
confine_files(Path(sys.argv[1]), is_open=True)
for folder in sys.argv[2:]:
    try:
        (Path(folder) / "compiled").mkdir(parents=True)
        print("kept")
    except PermissionError:
        print("refused")
"""


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is not below /dev/shm, where an engine that compiles may write."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@needs_landlock
@pytest.mark.parametrize("moved", [False, True])
def test_an_engine_that_compiles_keeps_its_work_for_a_user_without_caches(on_disk: Path, moved: bool) -> None:
    home, elsewhere, own = on_disk / "home", on_disk / "elsewhere", on_disk / "seat-1"
    for folder in (home, elsewhere, own):
        folder.mkdir()
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(elsewhere) if moved else ""}
    caches = elsewhere if moved else home / ".cache"
    program = [
        sys.executable,
        "-c",
        _COMPILES,
        str(own),
        str(caches / "vllm"),
        str(caches / "mine"),
        str(home / "mine"),
    ]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False, env=environment)
    assert done.stdout.split() == ["kept", "refused", "refused"], done.stderr


_WRITES_BY_WAY_OF_A_THREAD = """
import os, sys, threading
from pathlib import Path
from p2prl.confinement.role_confinement import confine_files
own, outside, confined = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "confined"
reading = os.open(outside, os.O_RDONLY)
os.chdir("/")
if confined:
    confine_files(own)
thread = f"/proc/self/task/{threading.get_native_id()}"
parent = os.getppid()
for name, way in {
    "root": f"{thread}/root{outside}",
    "folder": f"{thread}/cwd{outside}",
    "descriptor": f"{thread}/fd/{reading}",
    "process": f"{thread}/../../oom_score_adj",
    "parent": f"{thread}/../../../{parent}/task/{parent}/oom_score_adj",
}.items():
    try:
        os.close(os.open(way, os.O_WRONLY))
    except PermissionError:
        print(name)
"""


@needs_landlock
@pytest.mark.parametrize(
    ("confined", "refused"), [("confined", ["root", "folder", "descriptor", "process", "parent"]), ("free", [])]
)
def test_no_other_file_is_written_by_way_of_a_thread(confined: str, refused: list[str], tmp_path: Path) -> None:
    """A thread's folder in /proc has links to all the process can name: they count as what they lead to."""
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.write_text("kept")
    program = [sys.executable, "-c", _WRITES_BY_WAY_OF_A_THREAD, str(own), str(outside), confined]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert done.stdout.split() == refused
