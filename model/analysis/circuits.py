"""Circuits of a head: its low-rank matrices OV, which moves information, and QK, which directs attention. No matrix of
size d_model x d_model is built.

Elhage et al. 2021, "A mathematical framework for transformer circuits". In [in, out] matrices, x a row vector:

    OV = W_V W_O      key's residual . OV = its addition to the query's  [d_model, d_model], rank <= d_head
    QK = W_Q W_K^T    query's residual . QK . key's residual = the dot   [d_model, d_model], rank <= d_head

Gains and biases of norms are not folded in, and a rotation between query and key is left out (rotary QK holds for
distance 0). For grouped heads W_K and W_V are the group's. With the factors' QR, W_V = Q1 R1 and W_O^T = Q2 R2, OV has
the singular values of R1 R2^T [D, D]; its eigenvalues other than 0 are also the eigenvalues of W_O W_V.

Axes: D numbers of a head.
"""

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Head:
    """The factors of one head, float64, and the R of each factor's QR, computed once: ||factor X|| = ||R X||."""

    w_q: torch.Tensor
    """[d_model, D]"""
    w_k: torch.Tensor
    """[d_model, D]; of cross attention the first axis is the encoder's."""
    w_v: torch.Tensor
    """[d_model, D], likewise."""
    w_o: torch.Tensor
    """[D, d_model]"""

    @cached_property
    def r_q(self) -> torch.Tensor:
        return _r(self.w_q)

    @cached_property
    def r_k(self) -> torch.Tensor:
        return _r(self.w_k)

    @cached_property
    def r_v(self) -> torch.Tensor:
        return _r(self.w_v)

    @cached_property
    def r_o(self) -> torch.Tensor:
        """Return R of the QR of W_O^T."""
        return _r(self.w_o.T)

    @cached_property
    def ov_norm(self) -> torch.Tensor:
        """Return the Frobenius norm of OV."""
        return _norm(self.r_v @ self.r_o.T)

    @cached_property
    def qk_norm(self) -> torch.Tensor:
        """Return the Frobenius norm of QK."""
        return _norm(self.r_q @ self.r_k.T)


def singular_values(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the singular values [D], falling, of OV from `r_v`, `r_o` of its head, and of QK from `r_q`, `r_k`."""
    values: torch.Tensor = torch.linalg.svdvals(left @ right.T)
    return values


def ov_eigenvalues(head: Head) -> torch.Tensor:
    """Return the D eigenvalues of OV that can be other than 0, complex; across, only of stacks of one width."""
    values: torch.Tensor = torch.linalg.eigvals(head.w_o @ head.w_v)
    return values


def composition(earlier: Head, later: Head) -> torch.Tensor:
    """Return how far `later` reads the output of `earlier`: ||A B||_F / (||A||_F ||B||_F) with A = OV of the earlier
    and B = QK (Q-composition), QK^T (K-composition), OV (V-composition) of the later; [3] in this order.

    Source: Elhage et al. 2021, "Composition scores"; for random matrices it is about 1/sqrt(d_model).
    """
    through = (
        (earlier.w_o @ later.w_q @ later.r_k.T, later.qk_norm),
        (earlier.w_o @ later.w_k @ later.r_q.T, later.qk_norm),
        (earlier.w_o @ later.w_v @ later.r_o.T, later.ov_norm),
    )
    sizes = [(_norm(earlier.r_v @ inner), earlier.ov_norm * norm) for inner, norm in through]
    return torch.stack([size / whole if whole > 0 else torch.zeros_like(size) for size, whole in sizes])


def _r(factor: torch.Tensor) -> torch.Tensor:
    """Return R of the factor's QR: [min(d_model, D), D]."""
    r: torch.Tensor = torch.linalg.qr(factor, mode="r").R
    return r


def _norm(matrix: torch.Tensor) -> torch.Tensor:
    size: torch.Tensor = torch.linalg.matrix_norm(matrix)
    return size
