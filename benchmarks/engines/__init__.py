"""How fast the engines generate."""
