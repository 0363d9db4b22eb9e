"""What keeps a client's data from the server and from the others: noise, masks, encryption, and
what tells how well it does."""

__all__ = ["accounting", "channel", "ckks", "dp", "kinds", "ledger", "masks"]
