"""The low-rank matrices of a head: what it moves (OV) and what it looks for (QK). Never d_model x d_model.

Elhage et al. 2021, "A mathematical framework for transformer circuits". In [in, out] matrices, x a row vector:

    OV = W_V W_O      what a key's stream adds to the query's       [d_model, d_model], rank <= d_head
    QK = W_Q W_K^T    query's stream . QK . key's stream = the dot   [d_model, d_model], rank <= d_head

These are the weights alone: norms' gains and biases are not folded in, and a rotation between query and key is left
out (rotary QK is that of distance 0). Of grouped heads W_K and W_V are the group's. With the factors' QR, W_V = Q1 R1
and W_O^T = Q2 R2, OV has the singular values of R1 R2^T [D, D]; its eigenvalues other than 0 are those of W_O W_V.

Axes: D numbers of a head.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Head:
    """Factors of one head, float64."""

    w_q: torch.Tensor
    """[d_model, D]"""
    w_k: torch.Tensor
    """[d_model, D]; of cross attention the first axis is the encoder's."""
    w_v: torch.Tensor
    """[d_model, D], likewise."""
    w_o: torch.Tensor
    """[D, d_model]"""


def ov_singular_values(head: Head) -> torch.Tensor:
    """[D], largest first."""
    return _singular_values(head.w_v, head.w_o.T)


def qk_singular_values(head: Head) -> torch.Tensor:
    """[D], largest first."""
    return _singular_values(head.w_q, head.w_k)


def ov_eigenvalues(head: Head) -> torch.Tensor:
    """[D] complex; of d_model eigenvalues those that can differ from 0. (Cross attention has them only where both
    stacks have one width.)"""
    values: torch.Tensor = torch.linalg.eigvals(head.w_o @ head.w_v)
    return values


def composition(earlier: Head, later: Head) -> torch.Tensor:
    """How much of what `earlier` writes `later` reads: ||A B||_F / (||A||_F ||B||_F) with A = OV of the earlier and
    B = QK (Q-composition), QK^T (K-composition), OV (V-composition) of the later. [3] in this order.

    Source: Elhage et al. 2021, "Composition scores"; of random matrices it is about 1/sqrt(d_model).
    """
    r_v = _r(earlier.w_v)
    written = _norm(r_v @ earlier.w_o)
    pairs = ((later.w_q, later.w_k), (later.w_k, later.w_q), (later.w_v, later.w_o.T))
    scores = []
    for left, right in pairs:
        r_right = _r(right)
        size = written * _norm(_r(left) @ r_right.T)
        through = _norm(r_v @ (earlier.w_o @ left) @ r_right.T)
        scores.append(through / size if size > 0 else torch.zeros((), dtype=torch.float64))
    return torch.stack(scores)


def _r(factor: torch.Tensor) -> torch.Tensor:
    """R of the QR: [min(d_model, D), D], and ||factor X|| = ||R X|| for every X."""
    r: torch.Tensor = torch.linalg.qr(factor, mode="r").R
    return r


def _singular_values(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Of left right^T, both [d_model, D]."""
    values: torch.Tensor = torch.linalg.svdvals(_r(left) @ _r(right).T)
    return values


def _norm(matrix: torch.Tensor) -> torch.Tensor:
    size: torch.Tensor = torch.linalg.matrix_norm(matrix)
    return size
