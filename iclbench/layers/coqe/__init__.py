"""Layers of CoQE: task encoder, task vectors and class vectors, noise on logits."""
