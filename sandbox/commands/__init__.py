"""The commands ``rollcage sandbox ...``, one file for those that belong together."""
