"""NoETL: durable workflows from YAML playbooks. These names are the public promise."""

from noetl.version import __version__

__all__ = ["__version__"]
