"""Confinement of processes that read strangers' bytes: own folder, no new programs, no sockets, bounded memory.

* `linux`, `seccomp_filter`, `macos` — what kernels offer.
* `scorer_filter` — the system calls that scorer processes may make.
* `layers` — names of the layers, and the files that Python itself needs.
* `compute_only` — a process that only computes, such as the one that runs a stranger's tokenizer.
* `role_confinement`, `role_filter`, `role_files` — a role's process and its network process, which need more.
* `call_guard` — the process that connects Unix sockets and signals for a network process.
* `starter`, `children` — the process that starts others for a role that may start none.

`docs/confinement.md` says what each process may still do.
"""
