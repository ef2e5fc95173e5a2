"""Figures of a run on a Ray cluster: several raylets on this machine."""
