"""The version, read by the package's build and by `noetl --version`."""

__version__ = "0.1.0"
