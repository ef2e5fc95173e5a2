"""Metrics, run folders and reports."""
