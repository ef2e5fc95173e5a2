"""Alerts: rules that are declared, pure functions over a window of rows, judged by the run itself and afterwards."""
