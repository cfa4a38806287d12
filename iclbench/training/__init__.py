"""Training: the loop, the learning-rate schedule, the checkpoints."""
