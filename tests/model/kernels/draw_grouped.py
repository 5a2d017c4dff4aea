"""Draws weights with scales that groups of inputs share."""

import random

import torch

from lightwell.model.quantized import GroupedRows

VALUES = ((*range(16),), (*range(-8, 8),), (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
"""Values that the 4-bit codes of some formats stand for."""


def draw_grouped(outputs: int, inputs: int, rng: random.Random) -> GroupedRows:
    """Draw rows of any kind. inputs: a multiple of 16."""
    groups = [size for size in (16, 32, 64, 128) if inputs % size == 0]
    group = rng.choice(groups)
    superblock = rng.choice([size for size in (group, 2 * group, 256) if inputs % size == 0 and size % group == 0])
    is_nested = superblock > group or rng.random() < 0.5
    has_min, is_short = rng.random() < 0.5, rng.random() < 0.5
    dtype = rng.choice([torch.float16, torch.bfloat16])
    superblocks, of_groups = (outputs, inputs // superblock), (outputs, inputs // group)
    return GroupedRows(
        torch.randint(16, (outputs, inputs), dtype=torch.uint8)
        if is_short
        else torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8),
        (torch.randn(superblocks) / 64).to(dtype),
        torch.randn(superblocks).to(dtype) if has_min else None,
        torch.randint(-128, 128, of_groups, dtype=torch.int8) if is_nested else None,
        torch.randint(0, 256, of_groups, dtype=torch.uint8) if is_nested and has_min else None,
        rng.choice(VALUES) if is_short else None,
    )
