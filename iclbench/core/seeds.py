"""Independent named random streams, spawned from one seed.

A stream is a counter: `generator(seed, "data", step)` gives the same numbers wherever and whenever it is asked, so that
nothing random needs to be saved to resume a run exactly.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from iclbench.core.guard import exclusive, fixed_state


def stream_seed(seed: int, name: str, *counter: int) -> int:
    """A 63-bit seed for the `counter`-th draw of the stream `name`; streams of different names are independent."""
    spawned = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()), *counter))
    return int(spawned.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, name: str, *counter: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator at the start of one stream."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, name, *counter))


@contextmanager
def global_stream(seed: int, name: str) -> Iterator[None]:
    """Run a block whose library calls draw from torch's global generator (weight initialisation) on one stream.

    Threads take turns, and the block runs in `fixed_state`: what is drawn depends on seed and name alone.
    """
    with exclusive(), fixed_state(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, name))
        yield


@contextmanager
def global_draws(generator: torch.Generator) -> Iterator[None]:
    """Run a block whose layers draw from torch's global generators (dropout) on one seed that `generator` gives."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    with exclusive(), torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
