"""Independent, named random streams that are derived from one seed.

`generator(seed, "data", step)` always gives the same numbers for the same step. A run can therefore be resumed exactly
without saved random states.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from iclbench.core.guard import exclusive, fixed_state


def stream_seed(seed: int, name: str, *counter: int) -> int:
    """Return a 63-bit seed for the `counter`-th draw from the stream `name`. Streams with different names are
    independent."""
    sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()), *counter))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, name: str, *counter: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator for the `counter`-th draw from the stream `name`."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, name, *counter))


@contextmanager
def global_stream(seed: int, name: str) -> Iterator[None]:
    """Within the block, seed torch's global generator from a named stream, for libraries that use it to draw initial
    weights.

    The block runs under `exclusive` and `fixed_state`, so that draws depend only on the seed and the name.
    """
    with exclusive(), fixed_state(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, name))
        yield


@contextmanager
def global_draws(generator: torch.Generator) -> Iterator[None]:
    """Within the block, seed torch's global generators with a number drawn from `generator`, for layers that use them,
    such as dropout."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    with exclusive(), torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
