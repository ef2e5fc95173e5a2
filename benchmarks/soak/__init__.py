"""A training run under attack for as long as one likes, and the account of what was promised."""
