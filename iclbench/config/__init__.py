"""Configuration: cards, their resolution into frozen configurations, learning rates, sizes and codes."""
