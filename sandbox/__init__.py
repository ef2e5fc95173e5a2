"""The sandbox manager: one Docker container per agent. Not part of this release; see CHANGELOG.md."""
