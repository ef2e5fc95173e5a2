"""Where environments run: `inline` and `process`, behind one seam (`base`)."""
