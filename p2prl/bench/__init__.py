"""Measurements of a machine behind `p2prl bench`: what it would give to a run, and what a run would cost it.

* `machine`: tokens a second by model size, and the sizes that fit.
* `engine`, `engine_pairs`: the sampler compared with the bare library, and engines checked by each other.
* `step`: time, memory and gradients of a training step compared with a plain one.
* `publish`: what a new version costs a learner.

Benchmarks that compare losses, schemes or defences are in the laboratory (`lab/README.md`).
"""
