"""The tool kinds, a file or a folder each, listed in `registry`; and folders of shared code."""
