"""Evaluation: every contestant on the same frozen prompts, with intervals, summaries and paired per-episode errors."""
