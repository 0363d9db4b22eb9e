"""What a model in use is given: rows, files, images and frames, with or without labels."""

__all__ = ["bounds", "inputs", "labelled", "new_rows"]
