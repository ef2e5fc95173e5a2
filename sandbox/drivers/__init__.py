"""Where sandboxes run: one driver a file."""
