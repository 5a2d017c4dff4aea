"""Random numbers without a generator's state: each is a function of a seed and a position. Standard library only."""


def random_uniform(seed: int, position: int) -> float:
    """Draw a uniform number in [0, 1), a multiple of 2**-53, that depends on (seed, position) alone.

    It is made of the first word of Philox2x64-10 with key = low 64 bits of the seed, and counter = (position, next 64
    bits of the seed). Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return (philox2x64(position, seed >> 64, seed)[0] >> 11) * 2.0**-53


def philox2x64(counter_low: int, counter_high: int, key: int) -> tuple[int, int]:
    """Mix a 128-bit counter under a 64-bit key into two 64-bit words (Philox2x64-10); arguments are cut to 64 bits."""
    mask = 0xFFFFFFFFFFFFFFFF
    low, high, key = counter_low & mask, counter_high & mask, key & mask
    for _ in range(10):
        product = 0xD2B74407B1CE6E93 * low
        low, high = (product >> 64) ^ key ^ high, product & mask
        key = (key + 0x9E3779B97F4A7C15) & mask
    return low, high
