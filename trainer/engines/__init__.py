"""Engines: one backend a file, behind one seam (`base`)."""
