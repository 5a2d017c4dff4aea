"""Formats of a census: JSON, and a table to read."""

from typing import Any

from lightwell.model.analysis.census import COMPONENTS, MATRICES, Census, WeightGroup
from lightwell.model.config import ModelConfig


def as_json(census: Census) -> dict[str, Any]:
    """Return totals, components and groups as JSON.

    A `share` is a fraction of `total`, 0 for tied weights; `share_of_matrices` is a fraction of `matrices_untied`, None
    if the rows are no matrices.
    """
    return {
        "tied": census.tied,
        "total": census.total,
        "matrices_untied": census.matrices_untied,
        "num_matrices": census.num_matrices,
        "components": [
            {
                "component": name,
                "count": sum(row.count for row in rows),
                "parameters": sum(row.parameters for row in rows),
                "share": sum(_share(census, row) for row in rows),
                "share_of_matrices": sum(row.parameters / census.matrices_untied for row in rows)
                if name in MATRICES
                else None,
            }
            for name in COMPONENTS
            if (rows := census.component(name))
        ],
        "rows": [
            {
                "stack": row.stack,
                "component": row.component,
                "weight": row.weight,
                "shape": row.shape,
                "count": row.count,
                "parameters": row.parameters,
                "share": _share(census, row),
                "share_of_matrices": _share_of_matrices(census, row),
                "tied_to": row.tied_to,
            }
            for row in census.rows
        ],
    }


def _share(census: Census, row: WeightGroup) -> float:
    return 0.0 if row.tied_to else row.parameters / census.total


def _share_of_matrices(census: Census, row: WeightGroup) -> float | None:
    return row.parameters / census.matrices_untied if row.is_matrix else None


def as_table(census: Census, config: ModelConfig) -> str:
    """Return a table with a line for each group, and both totals below it."""
    lines = [["stack", "component", "weight", "shape", "count", "parameters", "share", "of matrices"]]
    for row in census.rows:
        share = f"tied to {row.tied_to}" if row.tied_to else f"{_share(census, row):.2%}"
        shape = " x ".join(f"{length:,}" for length in row.shape)
        of_matrices = _share_of_matrices(census, row)
        shares = [share, "" if of_matrices is None else f"{of_matrices:.3%}"]
        lines.append([row.stack, row.component, row.weight, shape, f"{row.count:,}", f"{row.parameters:,}", *shares])
    if len({row.stack for row in census.rows}) == 1:
        lines = [line[1:] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    num_words = len(widths) - 5
    table = [
        "  ".join(
            cell.ljust(width) if i < num_words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    table.insert(1, "-" * max(map(len, table)))
    tied = "tied storage counted once" if census.tied else "nothing is tied"
    return "\n".join(
        [
            config.architecture,
            "",
            *table,
            "",
            f"{census.total:,} parameters in all ({tied})",
            f"{census.matrices_untied:,} in {census.num_matrices:,} matrices, the unembedding a separate one, "
            "without biases, norms and positions",
        ]
    )
