"""Images that need no registry: the base image (Debian, Python, git), and a bare one (busybox) without Python."""

BASE_IMAGE = "rollcage-base"
BARE_IMAGE = "rollcage-bare"
