"""How far apart the distributions of two samples of features are."""

from typing import Any, Literal

import torch
from torch import Tensor

from unseen.errors import UnseenError

#: Exponents k of the bandwidths 3^k of the Gaussian kernels, as released with CSAC.
BANDWIDTHS = range(-3, 2)


def mmd(x: Tensor, y: Tensor, estimator: Literal["unbiased", "biased"] = "unbiased") -> Tensor:
    """Return the squared maximum mean discrepancy [R, S] of every pair of samples.

        mean k(x, x') + mean k(y, y') − 2 mean k(x, y),     k = Σ_k exp(−‖·‖² / 2σ_k²)

    with σ_k² = 3^k times the mean squared distance among the pair's 2N points, their zero
    distances from themselves included, for k = −3 ... 1; no gradient through it.

    Args:
        x: samples [R, N, D].
        y: samples [S, N, D].
        estimator: `"unbiased"`, the first two means leave out k(x_i, x_i) (Gretton et al. 2012, Eq.
            3); `"biased"`, they do not (Eq. 5). The released code is the unbiased one plus the
            constant 2/(N − 1).
    """
    N = x.shape[1]
    if N < 2:
        raise UnseenError(
            "the discrepancy of two distributions needs batches of two examples or more; found "
            "one example.",
            remedy="Set training.drop_last = true, or another batch size.",
        )
    xx, yy, xy = squared_distances(x, y)
    xx, yy = xx[:, None], yy[None]
    total = (xx.sum((-1, -2)) + yy.sum((-1, -2)) + 2 * xy.sum((-1, -2))).detach()
    # Points that coincide have no scale, and any will do.
    mean = torch.where(total > torch.finfo(x.dtype).tiny, total / (2 * N) ** 2, 1)[..., None, None]

    def kernel(squared: Tensor) -> Tensor:
        return torch.stack([(squared / (-2 * 3.0**k * mean)).exp() for k in BANDWIDTHS]).sum(0)

    def within(k: Tensor) -> Tensor:
        if estimator == "biased":
            return k.mean((-1, -2))
        return (k.sum((-1, -2)) - k.diagonal(dim1=-2, dim2=-1).sum(-1)) / (N * (N - 1))

    return within(kernel(xx)) + within(kernel(yy)) - 2 * kernel(xy).mean((-1, -2))


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared difference [R, S] of the same examples in every pair of x and y."""
    return (x[:, None] - y[None]).square().mean((-1, -2))


def squared_distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ‖x_i − x_j‖² [R, N, N], ‖y_i − y_j‖² [S, N, N] and ‖x_i − y_j‖² [R, S, N, N]."""
    xx, yy, xy = _SquaredDistances.apply(x, y)
    return xx, yy, xy


class _SquaredDistances(torch.autograd.Function):
    """Squared distances, from inner products of points around their own sample's mean.

    Note:
        x = μ + a, y = ν + b and δ = μ − ν give ‖x − y‖² = ‖a‖² + ‖b‖² + ‖δ‖² − 2ab + 2δa − 2δb, in
        which nothing large cancels, however far from 0 the samples lie. The gradient of
        Σ W_ij ‖z_i − z_j‖² is 2 L z with L the Laplacian of W + Wᵀ, one product for all points
        together; torch's own, through every term above, takes twice as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, nu = x.mean(1, keepdim=True), y.mean(1, keepdim=True)
        centre = torch.cat([mu, nu]).mean(0)
        ctx.save_for_backward(torch.cat([x - centre, y - centre]).flatten(0, 1))
        a, b, delta = x - mu, y - nu, mu - nu.transpose(0, 1)
        aa, bb = a @ a.transpose(1, 2), b @ b.transpose(1, 2)
        ab = (a.flatten(0, 1) @ b.flatten(0, 1).T).view(*x.shape[:2], *y.shape[:2]).transpose(1, 2)
        na, nb = aa.diagonal(dim1=1, dim2=2), bb.diagonal(dim1=1, dim2=2)
        left = na[:, None] + 2 * torch.einsum("lmd,lid->lmi", delta, a)
        right = nb[None] - 2 * torch.einsum("lmd,mjd->lmj", delta, b)
        right += delta.square().sum(-1, keepdim=True)
        return (
            (na[:, :, None] + na[:, None] - 2 * aa).clamp_min_(0),
            (nb[:, :, None] + nb[:, None] - 2 * bb).clamp_min_(0),
            (left[..., None] + right[..., None, :] - 2 * ab).clamp_min_(0),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (z,) = ctx.saved_tensors
        xx, yy, xy = gradients
        R, S, N, _ = xy.shape
        W = torch.block_diag(*xx, *yy)
        W[: R * N, R * N :] = xy.transpose(1, 2).reshape(R * N, S * N)
        W = W + W.T
        laplacian = W.sum(1).diag() - W
        x, y = (2 * laplacian @ z).split([R * N, S * N])
        return x.view(R, N, -1), y.view(S, N, -1)
