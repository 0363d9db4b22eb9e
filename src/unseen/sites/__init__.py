"""Real sites over Flower: what one machine of a federation runs, from its kit to its processes.

`kits` makes and reads the folder of a machine, `policy` says what a site lets a study do and what
left it, `flower` has both ends of a message. `serve` is a machine's part in the foreground,
`launch` starts a study and follows it, and `doctor` says what is wrong on this machine.
"""

__all__ = ["doctor", "kits", "launch", "policy", "serve"]
