"""Probes of trained backbones. They compare layers with gradient descent (Grazzi et al. 2024, section 3.2), predict
properties of a stream from hidden states (Alain and Bengio 2017), measure the rank of the predictions (CoQE, theorem
3.10), and score sample representations (CoQE, figure 6)."""
