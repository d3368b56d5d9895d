"""The machine of one step run: rules, what their templates see, and what follows from what."""
