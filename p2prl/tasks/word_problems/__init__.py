"""Word problems in the shape of GSM8K, made from a seed: a question, and an answer with its steps and `#### n`.

* `templates` — kinds of problems and the words they are told in.
* `problems` — problems of seeds, rows of a data set, and demonstrations with systematic faults.
"""
