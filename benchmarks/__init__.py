"""Throughput, learning and environment benchmarks; each is a command."""
