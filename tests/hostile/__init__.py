"""Hostile trials: the whole tool, through its public door, among kills, damaged files, hostile content, plug-ins that
misbehave, odd environments and commands that run side by side.

    python -m tests.hostile [--trials N] [--seed S] [--only CATEGORY] [--jobs J]

Every trial does something to a small results folder of its own and judges what comes of it (`verdicts`): the exit code,
one line on stderr, nothing lost, no wrong number. Trials are drawn from a seed; `CATEGORY/INDEX` names one again.
"""
