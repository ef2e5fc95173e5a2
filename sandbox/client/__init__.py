"""The client: the manager's interface, spoken over HTTP."""
