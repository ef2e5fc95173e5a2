"""Sandboxes measured, side by side with public packages."""
