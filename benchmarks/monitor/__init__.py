"""The monitor measured: opening and following large runs."""
