"""What the clock drives: scheduler, episodes, router, buffer."""
