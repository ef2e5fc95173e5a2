"""Images that need no registry: the base (Debian, Python, git), one with Rollcage in it, and a bare one (busybox)."""

BASE_IMAGE = "rollcage-base"
BARE_IMAGE = "rollcage-bare"
"""The bare image: one static busybox, without Python."""
ENV_IMAGE = "rollcage-env"
"""The base image with Rollcage itself: environments run inside."""
ENV_PYTHON = "/opt/rollcage/bin/python"
"""The interpreter there that has it."""
ENV_DATA = "/opt/rollcage-data"
"""Where environments there find published data."""
BASE_PYTHON = "3.11"
"""The Python of the base image, whichever way that was made."""


def base_image(python: str = BASE_PYTHON) -> str:
    """Return the name of the base image with this version of Python, such as "3.9"."""
    return BASE_IMAGE if python == BASE_PYTHON else f"{BASE_IMAGE}:py{python}"
