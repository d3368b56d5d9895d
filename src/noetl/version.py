"""The version, read by the package's build and by `noetl --version`."""

__version__ = "0.2.0"
