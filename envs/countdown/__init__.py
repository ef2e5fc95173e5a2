"""Countdown: reach a target from given numbers."""
