"""Agents that act in an environment: solvers, language models behind an endpoint or in a folder."""
