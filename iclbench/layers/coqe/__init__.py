"""CoQE's own layers: task encoder, task vectors and class vectors, noise on logits."""
