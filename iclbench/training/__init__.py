"""Training: in memory, and runs in their folders with checkpoints."""
