"""Credentials: kept encrypted, resolved at the moment of use, and never shown."""
