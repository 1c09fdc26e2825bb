"""Scorer sandbox: scores strangers' text in processes that can read their own packages and nothing else.

* `pool` — the interface: `ScorerPool` scores completions and limits what each author may cost.
* `answer_queue`, `overrun_ledger`, `frames` — pure rules: whose answer is next, shorter limits, the bytes of the pipes.
* `scorer_lane`, `fork_server`, `worker_process` — the pool's side: a thread a lane, the fork server, its workers.
* `fork_server_main`, `worker` — the sandboxed side: build the scorers once, fork workers, score.
* `confinement` — the layers of protection, which `p2prl/confinement/` has; `docs/sandbox.md` says what each is for.
"""
