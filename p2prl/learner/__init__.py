"""The learner's role: collect checked groups, take steps, publish versions, sign receipts; crash-safe."""
