"""Secrets: kept encrypted, resolved at the moment of use, seen only by the tool that uses them."""
