"""Training in memory, and training of runs in folders with checkpoints."""
