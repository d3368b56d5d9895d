"""Pure control flow: facts in, facts and effects out. No clock, no chance, no files, no network."""
