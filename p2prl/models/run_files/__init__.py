"""Files of a run that describe its model: written by the learner's owner, checked by everybody else."""
