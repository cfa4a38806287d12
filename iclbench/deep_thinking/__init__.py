"""Deep-Thinking (Yang et al. 2024) for language models and backbones: several passes over the same demonstrations."""
