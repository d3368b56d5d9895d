"""The nouns everybody shares: frozen structs without behaviour beyond their own invariants."""
