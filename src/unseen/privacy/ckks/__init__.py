"""Encrypted rows: the server adds and multiplies what only the sites can read.

A site packs its whole row into full ciphertexts of 4096 numbers and encrypts it with the secret
key, which all sites share. For weights w the server forms E(Σ w_i u_i). For a rule of
inner products it forms E(<u_i, u_j>); the sites decrypt the K×K numbers, compute the weights by
the rule itself and send those back, rounded; all sites must find the same.

The server needs parameters and a public key, and neither relinearisation nor rotation keys:
products stay of three parts, and the sum over slots is the constant coefficient, the only one that
the sites learn: the others are covered by fresh uniform numbers.

Source:
    The scheme: Cheon, Kim, Kim, Song 2017, "Homomorphic Encryption for Arithmetic of Approximate
    Numbers". The rounding of what goes back: Li, Micciancio 2021, "On the Security of Homomorphic
    Encryption on Approximate Numbers".
"""

from unseen.privacy.ckks.arithmetic import encrypt
from unseen.privacy.ckks.sides import EncryptedRows, Server, Site
from unseen.privacy.seal import Keys, check_public, make_keys

__all__ = ["EncryptedRows", "Keys", "Server", "Site", "check_public", "encrypt", "make_keys"]
