"""Evaluation: a policy plays a sample of tasks; success with confidence intervals, resumable."""
