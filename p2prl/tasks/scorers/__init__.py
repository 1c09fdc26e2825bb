"""Scorers of data tasks: a number for a completion of a row, chosen by a text in the run's manifest.

* `spec` — the scoring spec: scorers, their options and weights, as canonical JSON.
* `scorer_options` — the texts of `p2prl init --scorer`, read into a spec.
* `build` — a spec made into one row scorer. Runs in the sandbox only.
* `numbers`, `answer_text` — the grammars that find an answer in a completion, in time linear in its length.
* One file per scorer; one file per third-party library, imported when a spec asks for it.
"""
