"""Random numbers without a state: each is a hash of the seed, the name of the variable, and integer indices.

The hash is the finaliser of splitmix64 (Steele, Lea and Flood 2014) applied once per index.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int, UInt64

Index: TypeAlias = Int[np.ndarray, "..."]


def uniform(seed: int, name: str, *index: Index) -> Float[np.ndarray, "..."]:
    """Return numbers in [0, 1), one for every combination of the broadcast indices."""
    return (_bits(seed, name, *index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(seed: int, name: str, *index: Index) -> Float[np.ndarray, "..."]:
    """Return approximately standard normal numbers with absolute values of at most 3.47.

    Each number is a scaled sum of the four 16-bit parts of one hash. This avoids logarithms and exponentials, whose
    last bits differ between machines.
    """
    bits = _bits(seed, name, *index)
    parts = sum((bits >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48))
    return (np.asarray(parts).astype(np.float64) * 2.0**-16 - 2.0) * 3**0.5


def _bits(seed: int, name: str, *index: Index) -> UInt64[np.ndarray, "..."]:
    """Return 64 random bits per combination of indices. Products and sums wrap around modulo 2^64, as the hash
    requires."""
    with np.errstate(over="ignore"):
        bits = _mix(np.array([seed], np.uint64) ^ _mix(np.array([zlib.crc32(name.encode())], np.uint64)))
        for i in index:
            bits = _mix(bits ^ (i.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)))
    return bits


def _mix(z: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
