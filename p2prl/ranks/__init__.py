"""Training over several processes of one machine: sharded weights, one command at a time, the same journal.

Rank 0 is the learner. It sends each command to the other ranks through a pipe, and all of them execute it together;
results meet in torch's collectives. Only this package imports `torch.distributed`.
"""
