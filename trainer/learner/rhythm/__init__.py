"""Attention rhythm: credit for the tokens that the policy's own attention shows to matter (arXiv 2510.13554)."""
