"""A model behind HTTP: the service, its requests, the application."""

__all__ = ["endpoint", "http_app"]
