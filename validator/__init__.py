"""The validator's role: replay a sample of strangers' groups at their declared version and sign verdicts."""
