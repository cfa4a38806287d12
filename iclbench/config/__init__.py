"""Configuration: cards, their resolution to frozen configurations, learning rates, sizes and codes."""
