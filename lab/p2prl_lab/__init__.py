"""The laboratory of p2prl: experiments, attacks and fault injectors. A distribution of its own, above the product.

Nothing that a volunteer, a researcher with a run or a visitor needs is here, and the product never imports it.
`lab/README.md` names each part, its reader and its command.
"""
