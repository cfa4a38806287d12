"""Hostile trials of the command line: kills, damaged files, hostile content, misbehaving plug-ins, odd environments and
concurrent commands.

    python -m tests.hostile [--trials N] [--seed S] [--only CATEGORY] [--jobs J]

Every trial works on its own small results folder and checks the effects (`verdicts`): the exit code is valid, stderr
has at most one line with an error, no results are lost, and no numbers are wrong. Trials are sampled from a seed.
`--only CATEGORY/INDEX` repeats a single trial.
"""
