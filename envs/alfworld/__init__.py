"""ALFWorld: household tasks in text, on the official games, with TextWorld's own translation of their rules."""
