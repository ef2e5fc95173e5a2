"""Images that need no registry: the base (Debian, Python, git), one with Rollcage in it, and a bare one (busybox)."""

BASE_IMAGE = "rollcage-base"
BARE_IMAGE = "rollcage-bare"
ENV_IMAGE = "rollcage-env"
"""The base image with Rollcage itself: environments run inside."""
ENV_PYTHON = "/opt/rollcage/bin/python"
"""The interpreter there that has it."""
