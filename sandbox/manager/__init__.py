"""The manager: which sandboxes should be, which are, and what is done about the difference."""
