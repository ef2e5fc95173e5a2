"""What runs inside a sandbox, and how the manager talks to it."""
