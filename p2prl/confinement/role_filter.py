"""System calls that reach beyond a process: refused to roles, which need more calls than a list could name.

Two lists. `HOST_CALLS` changes the machine, looks into other programs or slows them down; no process of p2prl needs any
of it, but for calls about itself.
`OUTSIDE_CALLS` makes programs, sockets and signals, and changes modes and dates of files; a role that computes needs
none of it once it has started, but for a pair of sockets and threads.
"""

from __future__ import annotations

import os

from p2prl.confinement.scorer_filter import ARCHITECTURES, RULES
from p2prl.confinement.seccomp_filter import ArgumentRule, deny_filter, numbers

LAST_CALL = 467
"""Last call that this file knows; later ones, and those of the x32 interface, are refused."""

_SHARED = """
pidfd_send_signal 424 io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429
fsopen 430 fsconfig 431 fsmount 432 fspick 433 pidfd_open 434 pidfd_getfd 438 process_madvise 440 mount_setattr 442
quotactl_fd 443 process_mrelease 448 open_tree_attr 467
"""

_HOST_X86_64 = """
ptrace 101 syslog 103 uselib 134 personality 135 ustat 136 vhangup 153 modify_ldt 154 pivot_root 155 _sysctl 156
adjtimex 159 chroot 161 acct 163 settimeofday 164 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169
sethostname 170 setdomainname 171 iopl 172 ioperm 173 create_module 174 init_module 175 delete_module 176
get_kernel_syms 177 query_module 178 quotactl 179 nfsservctl 180 lookup_dcookie 212 clock_settime 227 kexec_load 246
add_key 248 request_key 249 keyctl 250 unshare 272 perf_event_open 298 fanotify_init 300 name_to_handle_at 303
open_by_handle_at 304 clock_adjtime 305 setns 308 process_vm_readv 310 process_vm_writev 311 kcmp 312 finit_module 313
kexec_file_load 320 bpf 321 userfaultfd 323 mknod 133 mknodat 259
setuid 105 setgid 106 setreuid 113 setregid 114 setgroups 116 setresuid 117 setresgid 119 setfsuid 122 setfsgid 123
ioctl 16 fcntl 72 setpriority 141 sched_setparam 142 sched_setscheduler 144 sched_setaffinity 203 ioprio_set 251
migrate_pages 256 move_pages 279 prlimit64 302 sched_setattr 314
"""

_HOST_AARCH64 = """
lookup_dcookie 18 mknodat 33 umount2 39 mount 40 pivot_root 41 nfsservctl 42 chroot 51 vhangup 58 quotactl 60 acct 89
personality 92 unshare 97 kexec_load 104 init_module 105 delete_module 106 clock_settime 112 syslog 116 ptrace 117
reboot 142 setregid 143 setgid 144 setreuid 145 setuid 146 setresuid 147 setresgid 149 setfsuid 151 setfsgid 152
setgroups 159 sethostname 161 setdomainname 162 settimeofday 170 adjtimex 171 add_key 217 request_key 218 keyctl 219
swapon 224 swapoff 225 perf_event_open 241 fanotify_init 262 name_to_handle_at 264 open_by_handle_at 265
clock_adjtime 266 setns 268 process_vm_readv 270 process_vm_writev 271 kcmp 272 finit_module 273 bpf 280
userfaultfd 282 kexec_file_load 294 ioctl 29 fcntl 25 ioprio_set 30 sched_setparam 118 sched_setscheduler 119
sched_setaffinity 122 setpriority 140 migrate_pages 238 move_pages 239 prlimit64 261 sched_setattr 274
"""

_OUTSIDE_SHARED = "fchmodat2 452 setxattrat 463 removexattrat 466 clone3 435 "

_OUTSIDE_X86_64 = (
    _OUTSIDE_SHARED
    + """
execve 59 execveat 322 fork 57 vfork 58 clone 56 kill 62 tkill 200 tgkill 234 rt_sigqueueinfo 129 rt_tgsigqueueinfo 297
socket 41 connect 42 accept 43 sendto 44 bind 49 listen 50 socketpair 53 accept4 288 sendmmsg 307
shmget 29 shmat 30 shmctl 31 semget 64 semop 65 semctl 66 semtimedop 220 msgget 68 msgsnd 69 msgrcv 70 msgctl 71
mq_open 240 mq_unlink 241 chmod 90 fchmod 91 fchmodat 268 chown 92 fchown 93 lchown 94 fchownat 260 utime 132
utimes 235 futimesat 261 utimensat 280 setxattr 188 lsetxattr 189 fsetxattr 190 removexattr 197 lremovexattr 198
fremovexattr 199
"""
)

_OUTSIDE_AARCH64 = (
    _OUTSIDE_SHARED
    + """
setxattr 5 lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 fchmod 52 fchmodat 53 fchownat 54
fchown 55 utimensat 88 kill 129 tkill 130 tgkill 131 rt_sigqueueinfo 138 mq_open 180 mq_unlink 181 msgget 186 msgctl 187
msgrcv 188 msgsnd 189 semget 190 semctl 191 semtimedop 192 semop 193 shmget 194 shmctl 195 shmat 196 socket 198
socketpair 199 bind 200 listen 201 accept 202 connect 203 sendto 206 clone 220 execve 221 rt_tgsigqueueinfo 240
accept4 242 sendmmsg 269 execveat 281
"""
)

HOST_CALLS = {"x86_64": numbers(_SHARED + _HOST_X86_64), "aarch64": numbers(_SHARED + _HOST_AARCH64)}
"""Calls that no process of p2prl needs, or needs for itself alone, by machine."""

OUTSIDE_CALLS = {"x86_64": numbers(_OUTSIDE_X86_64), "aarch64": numbers(_OUTSIDE_AARCH64)}
"""Calls that a role needs no more once it has started, by machine."""

_UNAME = {"x86_64": 63, "aarch64": 160}

_NO_NETWORK_CALLS = (
    *("socket", "socketpair", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "shmget", "shmat", "shmctl"),
    *("semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
"""Of these, what a network process needs for itself at most: signals to others, memory that programs share."""

_REFUSED_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902, 0x8927)
"""TIOCSTI and TIOCLINUX type into the owner's terminal, whose shell would obey; FIOSETOWN and SIOCSPGRP have the kernel
signal another program, as F_SETOWN does; SIOCGIFHWADDR reads the address of a network card."""

_SIGNALING_FCNTLS = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX: any signal to any process of the user, where Landlock does not scope signals."""

_PROCESS = 1
"""IOPRIO_WHO_PROCESS; PRIO_PROCESS is 0."""

_STREAMS = tuple(1 | close_on_exec | nonblocking for close_on_exec in (0, 0o2000000) for nonblocking in (0, 0o4000))
"""SOCK_STREAM with its flags: a pair of them has no address that another program listens at, as datagrams have."""


_FAMILIES = ArgumentRule(
    argument=0,
    one_of=(2, 10, 16),  # AF_INET, AF_INET6, and AF_NETLINK, which tells Go and getaddrinfo this machine's addresses
    otherwise=ArgumentRule(argument=0, one_of=(1,), then=ArgumentRule(argument=1, one_of=_STREAMS)),
)
"""Sockets of a network process: of AF_UNIX only streams, since a datagram may name another program at each send."""

_PREEMPTION = 23
"""SIGURG, which is ignored unless asked for: Go's runtime preempts its threads with it."""

NOTIFIED = ("connect", "kill", "uname")
"""Calls of a network process and its daemon that their guard makes for them: see `guard`."""


def _host_rules() -> dict[str, ArgumentRule]:
    """Conditions of `HOST_CALLS` that this process and its programs need for themselves: another's are refused."""
    itself = (0, os.getpid())
    own = ArgumentRule(argument=0, one_of=itself)
    return {
        "ioctl": ArgumentRule(argument=1, none_of=_REFUSED_IOCTLS),
        "fcntl": ArgumentRule(argument=1, none_of=_SIGNALING_FCNTLS),
        "setpriority": ArgumentRule(argument=0, one_of=(0,), then=ArgumentRule(argument=1, one_of=itself)),
        "ioprio_set": ArgumentRule(argument=0, one_of=(_PROCESS,), then=ArgumentRule(argument=1, one_of=itself)),
        **dict.fromkeys(
            ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "prlimit64"), own
        ),
        **dict.fromkeys(("migrate_pages", "move_pages"), own),
    }


def open_filter(machine: str) -> bytes:
    """Instructions for a process that starts programs and opens sockets: a role whose engine is vLLM."""
    return deny_filter(ARCHITECTURES[machine].audit, HOST_CALLS[machine], _host_rules(), last=LAST_CALL)


def network_filter(machine: str, *, guarded: bool) -> bytes:
    """Instructions for a network process and its daemon. If it is not `guarded`, the calls `NOTIFIED` are allowed."""
    itself = os.getpid()
    own = ArgumentRule(argument=0, one_of=(itself,))
    outside = OUTSIDE_CALLS[machine] | {"uname": _UNAME[machine]}
    denied = {name: outside[name] for name in _NO_NETWORK_CALLS if name in outside}
    rules = _host_rules() | {
        "socket": _FAMILIES,
        "socketpair": ArgumentRule(argument=1, one_of=_STREAMS),
        "tgkill": ArgumentRule(argument=0, one_of=(itself,), otherwise=ArgumentRule(argument=2, one_of=(_PREEMPTION,))),
        "rt_tgsigqueueinfo": own,
    }
    return deny_filter(
        ARCHITECTURES[machine].audit,
        HOST_CALLS[machine] | denied,
        rules,
        last=LAST_CALL,
        notified={name: outside[name] for name in NOTIFIED} if guarded else None,
    )


def role_filter(machine: str, accepts: int | None = None) -> bytes:
    """Instructions for this process from now on, as a role that computes: threads, one socket pair, its own signals.

    It may accept at the listening socket with the descriptor `accepts`, if any: a caller gets in, nothing gets out.
    """
    itself = os.getpid()
    rules = _host_rules() | {
        "clone": RULES["clone"],
        "socketpair": ArgumentRule(argument=1, one_of=_STREAMS),
        "sendto": RULES["sendto"],
        **({} if accepts is None else {"accept4": ArgumentRule(argument=0, one_of=(accepts,))}),
        **{name: ArgumentRule(argument=0, one_of=(itself,)) for name in ("kill", "tgkill", "rt_tgsigqueueinfo")},
    }
    return deny_filter(
        ARCHITECTURES[machine].audit, HOST_CALLS[machine] | OUTSIDE_CALLS[machine], rules, last=LAST_CALL
    )
