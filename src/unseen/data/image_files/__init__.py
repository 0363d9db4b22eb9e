"""Images on disk: folders, archives, masks and DICOM, decoded once."""

__all__ = ["cache", "folder", "images", "layout", "mask_files"]
