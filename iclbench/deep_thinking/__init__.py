"""Deep-Thinking (Yang et al. 2024): a memory, written several times, for language models and our own backbones."""
