"""The step benchmark: time, memory and gradients of a training step against one plain full-batch step."""
