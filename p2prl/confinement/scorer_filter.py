"""The system calls that scorer processes and their fork server may make: what they need is allowed, all else fails.

An allow list, since a kernel gains system calls every year. A denied call returns EPERM instead of killing the process,
so that a scorer's harmless probe (is this a terminal?) does not turn an honest answer into a failure.

What a worker cannot do with it: make processes, execute programs, open sockets, signal or trace others, open a file for
writing, change a file's name, mode or owner, raise its limits, enter namespaces. It can start threads and make socket
pairs, which asyncio needs; both end with the process.

The fork server's filter is there before it imports a stranger's code, and its workers inherit it. It allows forking,
ending what was forked, and the steps that confine a worker: all of a worker's calls besides.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.confinement.seccomp_filter import ArgumentRule, allow_filter, numbers

_CLONE_THREAD = 0x00010000
_CLONE_NEW_NAMESPACES = 0x7E020080
_OPEN_TO_WRITE = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # WRONLY RDWR CREAT TRUNC APPEND TMPFILE
_AF_UNIX = 1
_SIGKILL = 9
_NEEDED_PRCTLS = (1, 15, 16, 22)  # PDEATHSIG, SET_NAME, GET_NAME, SECCOMP; not DUMPABLE, which allows tracing
_HARMLESS_IOCTLS = (0x5401, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONBIO, FIONCLEX, FIOCLEX
_HARMLESS_FCNTLS = (0, 1, 2, 3, 4, 1030)  # F_SETOWN and F_SETSIG would send signals to any process of the user


@dataclass(frozen=True)
class Architecture:
    """A processor's audit number and its system call numbers."""

    audit: int
    numbers: dict[str, int]
    """Calls of a worker."""
    forking: dict[str, int]
    """What the fork server calls beyond these."""


_X86_64 = """
read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12 rt_sigaction 13
rt_sigprocmask 14 rt_sigreturn 15 ioctl 16 pread64 17 readv 19 writev 20 access 21 pipe 22 select 23 sched_yield 24
mremap 25 madvise 28 dup 32 dup2 33 nanosleep 35 getitimer 36 alarm 37 setitimer 38 getpid 39 sendto 44 recvfrom 45
socketpair 53 clone 56 exit 60 uname 63 fcntl 72 getcwd 79 readlink 89 gettimeofday 96 getrlimit 97 getrusage 98
sysinfo 99 times 100 getuid 102 getgid 104 geteuid 107 getegid 108 getppid 110 getpgrp 111 getgroups 115
sigaltstack 131 statfs 137 fstatfs 138 arch_prctl 158 gettid 186 time 201 futex 202 sched_getaffinity 204
getdents64 217 set_tid_address 218 restart_syscall 219 clock_gettime 228 clock_getres 229 clock_nanosleep 230
exit_group 231 epoll_wait 232 epoll_ctl 233 openat 257 newfstatat 262 readlinkat 267 faccessat 269 pselect6 270
ppoll 271 set_robust_list 273 epoll_pwait 281 eventfd2 290 epoll_create1 291 dup3 292 pipe2 293 prlimit64 302
getrandom 318 membarrier 324 statx 332 rseq 334 clone3 435 close_range 436 faccessat2 439 epoll_pwait2 441
"""

_AARCH64 = """
getcwd 17 eventfd2 19 epoll_create1 20 epoll_ctl 21 epoll_pwait 22 dup 23 dup3 24 fcntl 25 ioctl 29 statfs 43
fstatfs 44 faccessat 48 openat 56 close 57 pipe2 59 getdents64 61 lseek 62 read 63 write 64 readv 65 writev 66
pread64 67 pselect6 72 ppoll 73 readlinkat 78 newfstatat 79 fstat 80 exit 93 exit_group 94 set_tid_address 96 futex 98
set_robust_list 99 nanosleep 101 getitimer 102 setitimer 103 clock_gettime 113 clock_getres 114 clock_nanosleep 115
sched_getaffinity 123 sched_yield 124 restart_syscall 128 sigaltstack 132 rt_sigaction 134 rt_sigprocmask 135
rt_sigreturn 139 times 153 getgroups 158 uname 160 getrlimit 163 getrusage 165 gettimeofday 169 getpid 172 getppid 173
getuid 174 geteuid 175 getgid 176 getegid 177 gettid 178 sysinfo 179 socketpair 199 sendto 206 recvfrom 207 brk 214
munmap 215 mremap 216 clone 220 mmap 222 mprotect 226 madvise 233 prlimit64 261 getrandom 278 membarrier 283 statx 291
rseq 293 clone3 435 close_range 436 faccessat2 439 epoll_pwait2 441
"""

# No sendmsg: its address, which a filter cannot see, may be a Unix socket of another program.
_X86_64_FORKING = """
recvmsg 47 wait4 61 kill 62 setsid 112 prctl 157 setrlimit 160 waitid 247 seccomp 317 landlock_restrict_self 446
"""

_AARCH64_FORKING = """
waitid 95 kill 129 setsid 157 setrlimit 164 prctl 167 recvmsg 212 wait4 260 seccomp 277 landlock_restrict_self 446
"""


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, numbers(_X86_64), numbers(_X86_64_FORKING)),
    "aarch64": Architecture(0xC00000B7, numbers(_AARCH64), numbers(_AARCH64_FORKING)),
}
"""By the name that `platform.machine()` gives."""

RULES = {
    "clone": ArgumentRule(argument=0, required_bits=_CLONE_THREAD, forbidden_bits=_CLONE_NEW_NAMESPACES),
    "fcntl": ArgumentRule(argument=1, one_of=_HARMLESS_FCNTLS),
    "ioctl": ArgumentRule(argument=1, one_of=_HARMLESS_IOCTLS),
    "open": ArgumentRule(argument=1, forbidden_bits=_OPEN_TO_WRITE),
    "openat": ArgumentRule(argument=2, forbidden_bits=_OPEN_TO_WRITE),
    "prlimit64": ArgumentRule(argument=2, one_of=(0,)),  # reading a limit, never setting one
    "sendto": ArgumentRule(argument=4, one_of=(0,)),  # on a socket pair, never to an address
    "socketpair": ArgumentRule(argument=0, one_of=(_AF_UNIX,)),
}

FORKING_RULES = {
    "clone": ArgumentRule(argument=0, forbidden_bits=_CLONE_NEW_NAMESPACES),
    "kill": ArgumentRule(argument=1, one_of=(_SIGKILL,)),
    "prctl": ArgumentRule(argument=0, one_of=_NEEDED_PRCTLS),
    "prlimit64": ArgumentRule(argument=0, one_of=(0,)),  # its own limits
}
"""In place of `RULES` in the fork server."""

_OPENS_FILES = ("open", "openat")


def worker_filter(architecture: Architecture, *, may_open: bool) -> bytes:
    """Instructions of a worker's filter (`struct sock_filter`, 8 bytes each).

    `may_open` allows opening files for reading: only where Landlock limits which.
    """
    refused = () if may_open else _OPENS_FILES
    return allow_filter(architecture.audit, architecture.numbers, RULES, refused=refused)


def fork_server_filter(architecture: Architecture, *, may_write: bool) -> bytes:
    """Instructions of the fork server's filter. It opens files for reading: those that scorers import.

    `may_write` allows opening for writing too: only where Landlock limits that to `/dev/null`, which some packages open
    when they are imported. No filter can tell one path from another.
    """
    calls = architecture.numbers | architecture.forking
    rules = {name: rule for name, rule in RULES.items() if not (may_write and name in _OPENS_FILES)}
    return allow_filter(architecture.audit, calls, rules | FORKING_RULES)
