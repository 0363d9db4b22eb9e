"""Startup kits: what each site and the server need to run a federation over Flower, made in one
place and carried to where they belong."""

__all__ = ["doctor", "kit", "provision", "serve"]
