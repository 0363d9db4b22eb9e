"""Microsoft SEAL through TenSEAL: contexts, keys, ciphertexts as bytes, plaintexts by coefficient.

All of the scheme that is not arithmetic on vectors: `unseen.privacy.ckks` never sees SEAL itself.
"""

import hashlib
import math
import os
import struct
import tempfile
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.errors import BadReply, UnseenError, optional
from unseen.privacy.wire import expect, pack, unpack

#: Degree of the polynomials, and numbers in one ciphertext.
DEGREE, SLOTS = 8192, 4096
#: Bits of the moduli by multiplicative levels; the last one is SEAL's own. 128-bit security
#: allows 218 bits at this degree.
MODULI = {1: (60, 40, 60), 2: (60, 40, 40, 60)}


class Scheme:
    """CKKS with fixed parameters, for vectors of at most SLOTS numbers; holds no key.

    A ciphertext's bytes are SEAL's own, compressed. SEAL's bindings read and write files only; this
    one lies in memory where the system can do that.
    """

    def __init__(self, levels: int) -> None:
        instead = "take channel = 'masks()', which serves rules of scalars"
        self.api = api = optional("tenseal.sealapi", "encrypted sums need", "he", instead)
        parameters = api.EncryptionParameters(api.SCHEME_TYPE.CKKS)
        parameters.set_poly_modulus_degree(DEGREE)
        parameters.set_coeff_modulus(api.CoeffModulus.Create(DEGREE, list(MODULI[levels])))
        self.context = api.SEALContext(parameters, True, api.SEC_LEVEL_TYPE.TC128)
        self.encoder = api.CKKSEncoder(self.context)
        self.evaluator = api.Evaluator(self.context)
        self.moduli: list[int] = [m.value() for m in parameters.coeff_modulus()][:-1]
        self.first: Any = self.context.first_parms_id()
        self._descriptor, self._path = _file()
        self._head = self.to_bytes(self.encoded(1.0, 2.0**20))[:5]

    def to_bytes(self, thing: Any) -> bytes:
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
        return self.read(self.api.Ciphertext(self.context), content, what)

    def encoded(self, values: NDArray[np.float64] | float, scale: float, level: Any = None) -> Any:
        """Encode up to SLOTS numbers, or one number in every slot, as a plaintext.

        `level` is SEAL's id of the modulus; by default that of a fresh ciphertext.
        """
        plain = self.api.Plaintext()
        numbers = float(values) if np.ndim(values) == 0 else np.asarray(values).tolist()
        self.encoder.encode(numbers, level if level is not None else self.first, scale, plain)
        return plain

    def decoded(self, decryptor: Any, ciphertext: Any) -> NDArray[np.float64]:
        return np.array(self.encoder.decode_double(self._decrypted(decryptor, ciphertext)))

    def _decrypted(self, decryptor: Any, ciphertext: Any) -> Any:
        plain = self.api.Plaintext()
        decryptor.decrypt(ciphertext, plain)
        return plain

    def mean(self, decryptor: Any, ciphertext: Any) -> float:
        """Return the mean over all slots, which is the constant coefficient; no other is looked at.

        The values of a polynomial at all roots sum to DEGREE times its constant coefficient, in
        each modulus; the remainders make the integer.
        """
        plain = self._decrypted(decryptor, ciphertext)
        numbers, total, modulus = plain.dyn_array(), 0, math.prod(self.moduli)
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
        columns = [_uniform(m) for m in self.moduli]
        for m, column in zip(self.moduli, columns, strict=True):
            column[0] = (int(column[0]) - sum(column.tolist())) % m
        numbers = np.concatenate(columns)
        inner = struct.pack("<Q", len(numbers)) + numbers.tobytes()
        body = struct.pack("<4Q", *self.first) + struct.pack("<Qd", len(numbers), scale)
        content = self._framed(body + self._framed(inner))
        plain = self.read(self.api.Plaintext(), content, "a random plaintext")
        covered = self.api.Ciphertext(self.context)
        encryptor.encrypt(plain, covered)
        return covered

    def _framed(self, body: bytes) -> bytes:
        """Frame bytes that are not compressed by SEAL's header, of the version of this library."""
        return self._head + bytes(3) + struct.pack("<Q", 16 + len(body)) + body


def _uniform(modulus: int) -> NDArray[np.uint64]:
    """Draw DEGREE numbers below the modulus from the system's own randomness."""
    mask = np.uint64((1 << modulus.bit_length()) - 1)
    numbers = np.empty(0, np.uint64)
    while len(numbers) < DEGREE:  # a modulus is just below a power of 2, so that few are refused
        batch = np.frombuffer(os.urandom(8 * DEGREE), np.uint64) & mask
        numbers = np.concatenate([numbers, batch[batch < np.uint64(modulus)]])
    return numbers[:DEGREE].copy()


def _file() -> tuple[int, str]:
    """Open a file that this process alone can open, in memory where there is such a thing."""
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


def make_keys() -> tuple[bytes, bytes]:
    """Return fresh keys, (secret, public): the one for every site, the other for the server too."""
    secrets, publics = [], []
    for levels in MODULI:
        own = scheme(levels)
        generator, public = own.api.KeyGenerator(own.context), own.api.PublicKey()
        generator.create_public_key(public)
        secrets.append(own.to_bytes(generator.secret_key()))
        publics.append(own.to_bytes(public))
    head = {"identity": _identity(publics), "levels": list(MODULI)}
    secret = pack({"kind": "ckks secret", **head}, secrets)
    return secret, pack({"kind": "ckks public", **head}, publics)


def _identity(publics: Iterable[bytes | memoryview]) -> str:
    return hashlib.sha256(b"".join(publics)).hexdigest()[:16]


def check_public(content: bytes) -> str:
    """Return the identity of a server's key."""
    try:
        header, parts = unpack(content, "the public context")
    except BadReply:
        header, parts = {}, ()
    kind = str(header.get("kind"))
    if kind != "ckks public" or b"ckks secret" in content:
        actual = "a secret key, which reads every update" if "secret" in kind else "something else"
        raise UnseenError(
            f"the server's context must be the public one of unseen's make_keys; found {actual}.",
            remedy="Take it away from there, make new keys, and give the server the public part.",
        )
    identity = _identity(parts)
    expect(header, "the public context", identity=identity)
    return identity


class Keys:
    """A side's keys as SEAL has them. They are never pickled and show nothing."""

    def __init__(self, content: bytes, kind: str) -> None:
        header, parts = unpack(content, f"the file of the {kind} key")
        expect(header, f"the file of the {kind} key", kind=f"ckks {kind}")
        self.identity: str = header["identity"]
        self.kind = kind
        self._tools: dict[int, tuple[Scheme, Any, Any]] = {}
        for levels, part in zip(header["levels"], parts, strict=True):
            own, public = scheme(levels), kind == "public"
            empty = own.api.PublicKey() if public else own.api.SecretKey()
            key = own.read(empty, part, f"the {kind} key")
            decryptor = None if public else own.api.Decryptor(own.context, key)
            self._tools[levels] = (own, own.api.Encryptor(own.context, key), decryptor)

    def tools(self, levels: int) -> tuple[Scheme, Any, Any]:
        """Return the scheme, its encryptor, and its decryptor (none with a public key)."""
        return self._tools[levels]

    def __repr__(self) -> str:
        return f"Keys({self.identity}, {self.kind})"

    def __reduce__(self) -> Any:
        raise UnseenError("keys are never pickled: pass the file that holds them.")
