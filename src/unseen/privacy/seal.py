"""Microsoft SEAL through TenSEAL: contexts, ciphertexts as bytes, and plaintexts by coefficient.

All of the scheme that is not arithmetic on vectors: `unseen.privacy.ckks` never sees SEAL itself.
"""

from __future__ import annotations

import os
import struct
import tempfile
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.errors import UnseenError

#: Degree of the polynomials, and numbers in one ciphertext.
DEGREE, SLOTS = 8192, 4096
#: Bits of the moduli by multiplicative levels; the last one is SEAL's own. 128-bit security
#: allows 218 bits at this degree.
MODULI = {1: (60, 40, 60), 2: (60, 40, 40, 60)}


def sealapi() -> Any:
    """TenSEAL's bindings of SEAL, or an error that names the extra."""
    try:
        import tenseal.sealapi as api
    except ImportError as error:
        raise UnseenError(
            "encrypted aggregation needs TenSEAL: install it with pip install 'unseen[he]'."
        ) from error
    return api


class Scheme:
    """CKKS with fixed parameters, for vectors of at most SLOTS numbers; holds no key.

    A ciphertext's bytes are SEAL's own, compressed. SEAL's bindings read and write files only;
    this one lies in memory where the system can do that.
    """

    def __init__(self, levels: int) -> None:
        self.api = api = sealapi()
        parameters = api.EncryptionParameters(api.SCHEME_TYPE.CKKS)
        parameters.set_poly_modulus_degree(DEGREE)
        parameters.set_coeff_modulus(api.CoeffModulus.Create(DEGREE, list(MODULI[levels])))
        self.context = api.SEALContext(parameters, True, api.SEC_LEVEL_TYPE.TC128)
        self.encoder = api.CKKSEncoder(self.context)
        self.evaluator = api.Evaluator(self.context)
        self.moduli: list[int] = [m.value() for m in parameters.coeff_modulus()][:-1]
        self.first: Any = self.context.first_parms_id()
        self._descriptor, self._path = _file()

    def to_bytes(self, thing: Any) -> bytes:
        """Return what SEAL saves of a ciphertext or a key."""
        thing.save(self._path)
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def read(self, thing: Any, content: bytes | memoryview, what: str) -> Any:
        """Load saved bytes into a fresh object; SEAL checks them against the parameters."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)
        try:
            thing.load(self.context, self._path)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise UnseenError(f"{what} cannot be read: {error}.") from None
        finally:
            os.ftruncate(self._descriptor, 0)  # what was read may have been a key
        return thing

    def ciphertext(self, content: bytes | memoryview, what: str) -> Any:
        """Return a ciphertext from bytes."""
        return self.read(self.api.Ciphertext(self.context), content, what)

    def encoded(self, values: NDArray[np.float64] | float, scale: float, level: Any = None) -> Any:
        """Up to SLOTS numbers, or one number in every slot, as a plaintext."""
        plain = self.api.Plaintext()
        numbers = float(values) if np.ndim(values) == 0 else np.asarray(values).tolist()
        self.encoder.encode(numbers, level if level is not None else self.first, scale, plain)
        return plain

    def decoded(self, decryptor: Any, ciphertext: Any) -> NDArray[np.float64]:
        """Return the SLOTS numbers of a ciphertext."""
        plain = self.api.Plaintext()
        decryptor.decrypt(ciphertext, plain)
        return np.array(self.encoder.decode_double(plain))

    def mean(self, decryptor: Any, ciphertext: Any) -> float:
        """Return the mean over all slots, which is the constant coefficient; no other is looked at.

        The values of a polynomial at all roots sum to DEGREE times its constant coefficient, in
        each modulus; the remainders make the integer.
        """
        plain = self.api.Plaintext()
        decryptor.decrypt(ciphertext, plain)
        numbers, total, modulus = plain.dyn_array(), 0, 1
        for m in self.moduli:
            modulus *= m
        for k, m in enumerate(self.moduli):
            values = map(numbers.__getitem__, range(k * DEGREE, (k + 1) * DEGREE))
            rest = sum(values) * pow(DEGREE, -1, m) % m
            others = modulus // m
            total += rest * others * pow(others, -1, m)
        total %= modulus
        centred = total - modulus if total > modulus // 2 else total
        return float(centred / ciphertext.scale)

    def blanket(self, encryptor: Any, scale: float) -> Any:
        """Return a fresh encryption of uniformly random coefficients whose constant one is 0.

        Added to a ciphertext it leaves the mean over the slots, and nothing else, to be decrypted.
        """
        columns = []
        for m in self.moduli:
            column = _uniform(m)
            column[0] = (int(column[0]) - sum(column.tolist())) % m
            columns.append(column)
        numbers = np.concatenate(columns)
        inner = struct.pack("<Q", len(numbers)) + numbers.tobytes()
        body = struct.pack("<4Q", *self.first) + struct.pack("<Qd", len(numbers), scale)
        content = self._framed(body + self._framed(inner))
        plain = self.read(self.api.Plaintext(), content, "a random plaintext")
        covered = self.api.Ciphertext(self.context)
        encryptor.encrypt(plain, covered)
        return covered

    def _framed(self, body: bytes) -> bytes:
        """SEAL's header for bytes that are not compressed, of the version of this library."""
        sample = _sample(self)
        return sample[:5] + bytes(3) + struct.pack("<Q", 16 + len(body)) + body


def _uniform(modulus: int) -> NDArray[np.uint64]:
    """DEGREE numbers below the modulus from the system's own randomness."""
    mask = np.uint64((1 << modulus.bit_length()) - 1)
    numbers = np.empty(0, np.uint64)
    while len(numbers) < DEGREE:  # a modulus is just below a power of 2, so that few are refused
        drawn = np.frombuffer(os.urandom(8 * DEGREE), np.uint64) & mask
        numbers = np.concatenate([numbers, drawn[drawn < np.uint64(modulus)]])
    return numbers[:DEGREE].copy()


@cache
def _sample(scheme: Scheme) -> bytes:
    return scheme.to_bytes(scheme.encoded(1.0, 2.0**20))


def _file() -> tuple[int, str]:
    """A file that this process alone can open, in memory where there is such a thing."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("unseen")
        return descriptor, f"/proc/self/fd/{descriptor}"
    return tempfile.mkstemp(prefix="unseen-")  # 0600


def scheme(levels: int) -> Scheme:
    """Return the scheme with a number of multiplicative levels, made once per process."""
    return _scheme(levels, os.getpid())  # a forked process must not share the parent's file


@cache
def _scheme(levels: int, process: int) -> Scheme:
    return Scheme(levels)
