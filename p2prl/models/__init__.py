"""Language models: weights as bytes, loading, seeded sampling, replay, and rewards of completions.

On the same floor as `net`, above the pure packages. Roles use it only through the `Sampler` and `Scorer` ports. On this
floor and below it, only this package and `algorithms` import torch.
"""

import logging

# transformers imports torchao where it is installed (extra `lowbit`), which then tells every command of its kernels for
# other cards and of torch's plans. p2prl takes no kernel of it, and an error would still be raised.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
