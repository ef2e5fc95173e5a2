"""FrozenLake: cross a frozen lake, move by move."""
