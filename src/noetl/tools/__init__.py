"""The tool kinds, a file or a folder each, gathered in `registry`; and rooms for shared code."""
