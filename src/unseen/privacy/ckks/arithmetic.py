"""What either side does with ciphertexts: rows in and out, inner products and weighted sums."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.privacy.kinds import Sealed
from unseen.privacy.seal import SLOTS, Keys, Scheme
from unseen.privacy.wire import name_of, pack

Floats = NDArray[np.float64]
#: A number x enters a ciphertext as x · 2^40, a layer's mask as 2^48, a weight w as w · 2^50.
SCALE, MASK_SCALE, WEIGHT_SCALE = 2.0**40, 2.0**48, 2.0**50
#: Standard deviation of a fresh ciphertext's error per number: 3.2 · √(8192 / 2) / 2^40.
SIGMA = 3.2 * 64 / SCALE
#: Error per number of a mask, whose coefficients are rounded to integers: √(8192 / 12) / 2^48.
MASK_ERROR = 26.2 / MASK_SCALE
#: What no |Σ w_i| may exceed: a modulus of 60 bits holds numbers below 2^9 at the weights' scale.
LARGEST = 2.0**8
#: Weights go back as multiples of 2^-30.
WEIGHT_STEP = 2.0**-30
#: A decrypted sum goes to a server that is not blind in multiples of 2^-27 of its power of two,
#: 40 times as coarse as the noise of one row.
SUM_BITS = 27
#: How far, in standard deviations, an inner product must lie from 0 for its sign to be known.
DECIDED = 8.0
#: The same for a sketch, whose error is a matter of chance, not of noise.
DECIDED_SKETCH = 3.0


# At a site, with the secret key.


def encrypt(
    keys: Keys | bytes,
    row: Tensor,
    header: Mapping[str, Any],
    levels: int = 1,
    sketch: Tensor | None = None,
) -> bytes:
    """Return a row [P] as one message: full ciphertexts across all layers, symmetric and seeded.

    Args:
        keys: The site's, or the file that holds them.
        row: The row [P].
        header: What else the message says.
        levels: Multiplicative levels of the scheme; 2 for inner products of layers.
        sketch: The row's random projection, which goes along.

    In the clear the message says only the power of 16 next above the largest entry, of row and
    sketch.
    """
    keys = keys if isinstance(keys, Keys) else Keys(keys, "secret")
    x = row.detach().double().cpu().numpy()
    exponent, parts = _encrypted(keys, levels, x)
    head = {
        **header, "context": keys.identity, "levels": levels, "size": len(x),
        "shape": list(row.shape), "dtype": name_of(row.dtype), "exponent": exponent,
        "chunks": len(parts),
    }  # fmt: skip
    if sketch is not None:
        head["sketch exponent"], more = _encrypted(keys, levels, sketch.numpy())
        parts += more
    return pack(head, parts)


def _encrypted(keys: Keys, levels: int, x: Floats) -> tuple[int, list[bytes]]:
    """Return e and the ciphertexts of y, where x = 2^e · y with |y| <= 1."""
    scheme, encryptor, _ = keys.tools(levels)
    largest = float(np.abs(x).max(initial=0.0))
    exponent = 4 * int(np.ceil(np.log2(largest) / 4)) if largest > 0 else 0
    y = np.ldexp(x, -exponent)
    plains = (scheme.encoded(y[at : at + SLOTS], SCALE) for at in range(0, len(y), SLOTS))
    return exponent, [scheme.to_bytes(encryptor.encrypt_symmetric(plain)) for plain in plains]


def sketched(x: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Return a random projection of x [P] to `width` numbers that keeps inner products on average.

    s_b = Σ_{k: h(k) = b} ±x_k with h and the signs drawn from the generator.

    <s, t> has the mean <x, y> and a variance of at most (‖x‖²‖y‖² + <x, y>²) / width.

    Source:
        Charikar, Chen, Farach-Colton 2002, the count sketch.
    """
    bucket = torch.randint(width, x.shape, generator=generator)
    sign = torch.randint(2, x.shape, generator=generator).mul_(2).sub_(1)
    return torch.zeros(width, dtype=torch.float64).index_add_(0, bucket, x.double() * sign)


def inner_products(keys: Keys, header: Mapping[str, Any], parts: Sequence[memoryview]) -> Floats:
    """Return the question's inner products [B, K, K] (B = 1 for the whole vector)."""
    scheme, _, decryptor = keys.tools(header["levels"])
    exponents = header["exponents"]
    K, contents = len(exponents), iter(parts)
    gram = np.zeros((header["count"], K, K))
    for block in gram:
        for i, j in pairs(K):
            if len(content := next(contents)):  # nothing for a block of no columns
                mean = scheme.mean(decryptor, scheme.ciphertext(content, "an inner product"))
                block[i, j] = block[j, i] = np.ldexp(mean * SLOTS, exponents[i] + exponents[j])
    return gram


def uncertainty(gram: Floats, exponents: Sequence[int], size: int, layers: bool) -> Floats:
    """Return the standard deviation of each inner product's error, from the scheme's noise.

    `exponents` are the powers of two that the rows were divided by [K]; `layers` says that the
    products are of layers, cut out by masks. It is [B, K, K].
    """
    square = np.einsum("bii->bi", gram).clip(0)
    noise = SIGMA * np.ldexp(1.0, np.array(exponents))
    norms = np.sqrt(square)
    spread = np.hypot(norms[:, :, None] * noise, norms[:, None, :] * noise[:, None])
    # The product of two errors is in every slot, even where the rows are zero.
    floor = 2 * np.sqrt(SLOTS * -(-size // SLOTS)) * noise[:, None] * noise
    if layers:  # a mask lets a little of its neighbours through
        whole = np.sqrt(square.sum(0))
        spread = spread + MASK_ERROR * np.maximum.outer(whole, whole) * np.ldexp(
            1.0, np.maximum.outer(exponents, exponents)
        )
    total: Floats = spread + floor
    return total


def sum_scale(scheme: Scheme) -> float:
    """Return the scale of a sum of rows: theirs times the weights', less the modulus given up."""
    return SCALE * WEIGHT_SCALE / scheme.moduli[1]


# At the server, with the public key.


def pairs(K: int) -> Iterator[tuple[int, int]]:
    """Yield (i, j) with i <= j, in the order in which products are sent."""
    yield from combinations_with_replacement(range(K), 2)


def products(
    keys: Keys, rows: Sequence[Sealed], blocks: list[list[int]] | None, sketch: int
) -> list[bytes]:
    """Return encrypted inner products, each covered but for its mean over the slots.

    Rows have sketches of the length `sketch`, which are multiplied in their place; 0 for none.

    Returns:
        Block by block and pair by pair; empty for a block of no columns.
    """
    first = rows[0].header
    scheme, encryptor, _ = keys.tools(first["levels"])
    chunks = range(first["chunks"], len(rows[0].parts)) if sketch else range(first["chunks"])
    sums = Sums(scheme, sketch or first["size"], blocks)
    for c, at in enumerate(chunks):
        sums.add(c, [scheme.ciphertext(r.parts[at], f"the row of {r.client!r}") for r in rows])
    messages = []
    for total in sums.totals(len(rows)):
        if total is not None:
            scheme.evaluator.add_inplace(total, scheme.blanket(encryptor, total.scale))
        messages.append(b"" if total is None else scheme.to_bytes(total))
    return messages


class Sums:
    """Running sums of products of ciphertexts, by block and pair."""

    def __init__(self, scheme: Scheme, size: int, blocks: list[list[int]] | None) -> None:
        self.scheme, self.size = scheme, size
        self.blocks = [[0, size]] if blocks is None else blocks
        #: (block, i, j) -> ciphertext, of chunks that lie in a block and of chunks that are cut.
        self.whole: dict[tuple[int, int, int], Any] = {}
        self.partial: dict[tuple[int, int, int], Any] = {}

    def add(self, c: int, chunk: Sequence[Any]) -> None:
        scheme, begin = self.scheme, c * SLOTS
        end, columns, masks = min(begin + SLOTS, self.size), np.arange(begin, begin + SLOTS), {}
        for b, (x, y) in enumerate(self.blocks):
            if x < end and y > begin and x < y:
                inside = ((x <= columns) & (columns < y)).astype(float)
                cut = x > begin or y < end
                masks[b] = scheme.encoded(inside, MASK_SCALE) if cut else None
        for i, j in pairs(len(chunk)):
            product = scheme.api.Ciphertext(scheme.context)
            scheme.evaluator.multiply(chunk[i], chunk[j], product)
            for b, mask in masks.items():
                sums, part = self.whole, product
                if mask is not None:
                    sums, part = self.partial, scheme.api.Ciphertext(scheme.context)
                    scheme.evaluator.multiply_plain(product, mask, part)
                if (b, i, j) in sums:
                    scheme.evaluator.add_inplace(sums[b, i, j], part)
                else:
                    sums[b, i, j] = part

    def totals(self, K: int) -> Iterator[Any]:
        """Yield the sums, block by block and pair by pair; None for a block of no columns."""
        one = self.scheme.encoded(1.0, MASK_SCALE) if self.partial else None
        for b in range(len(self.blocks)):
            for i, j in pairs(K):
                total, part = self.whole.get((b, i, j)), self.partial.get((b, i, j))
                if total is not None and part is not None:
                    self.scheme.evaluator.multiply_plain_inplace(total, one)
                    self.scheme.evaluator.add_inplace(total, part)
                yield part if total is None else total


def weighted_sum(
    keys: Keys, rows: Sequence[Sealed], weights: Floats, blocks: list[tuple[int, int]] | None
) -> tuple[list[int], list[bytes]]:
    """Return the chunks that are not 0 everywhere, and their ciphertexts of Σ w_i u_i.

    Weights are [K], or [B, K] with one row for each block of columns.
    """
    first = rows[0].header
    scheme, _, _ = keys.tools(first["levels"])
    present, parts = [], []
    for c in range(first["chunks"]):
        total = None
        for i, row in enumerate(rows):
            w = weights[i] if blocks is None else spread(weights[:, i], blocks, c, first["size"])
            if float(np.abs(w).max()) * WEIGHT_SCALE < 1:
                continue
            x = scheme.ciphertext(row.parts[c], f"the row of {row.client!r}")
            if first["levels"] == 2:
                scheme.evaluator.mod_switch_to_next_inplace(x)
            values = np.ravel(w)
            same = bool((values == values[0]).all())
            plain = scheme.encoded(float(values[0]) if same else w, WEIGHT_SCALE, x.parms_id())
            scheme.evaluator.multiply_plain_inplace(x, plain)
            if total is not None:
                scheme.evaluator.add_inplace(total, x)
            total = x if total is None else total
        if total is not None:
            scheme.evaluator.rescale_to_next_inplace(total)
            present.append(c)
            parts.append(scheme.to_bytes(total))
    return present, parts


def spread(weights: Floats, blocks: list[tuple[int, int]], c: int, size: int) -> Floats:
    """Return the weights [B] of one client as one number per slot of chunk c."""
    begin, slots = c * SLOTS, np.zeros(min(SLOTS, size - c * SLOTS))
    for w, (x, y) in zip(weights, blocks, strict=True):
        slots[max(x - begin, 0) : max(y - begin, 0)] = w
    return slots
