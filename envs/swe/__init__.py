"""Software engineering: an issue, a repository in a sandbox, and tests that decide."""
