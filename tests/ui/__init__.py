"""A package, so that its fixtures end with the last of its tests in a process and not with the
process: while the browser's event loop runs, no other test can have one.
"""
