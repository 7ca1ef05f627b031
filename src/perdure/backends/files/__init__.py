"""The files backend: one append-only file per session in a directory."""

from perdure.backends.files.backend import FilesBackend

__all__ = ["FilesBackend"]
