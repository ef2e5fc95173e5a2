"""The sandbox service: the manager over HTTP, for other processes, hosts and languages."""
