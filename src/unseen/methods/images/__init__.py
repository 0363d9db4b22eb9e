"""What methods do with images: augmentation, amplitude spectra, banks of styles, normalisation."""

__all__ = ["augment", "augmix", "bank", "features", "frequency", "norms"]
