"""Learning, measured: gains over seeds, and studies whose runs differ in one thing."""
