"""Tables as files, and the types of their columns."""
