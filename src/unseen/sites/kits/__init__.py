"""Startup kits: made, read, checked and renewed; nothing here connects to a machine.

`kit_spec` is the file that names a federation, `provision` makes one folder per machine of it, and
`kit` is such a folder as a machine finds it. `certificates` and `signatures` make and check what
the kits believe.
"""

__all__ = ["certificates", "kit", "kit_spec", "provision", "signatures"]
