"""Configuration: cards, their resolution into frozen configurations, the registry, plug-ins, run folders."""
