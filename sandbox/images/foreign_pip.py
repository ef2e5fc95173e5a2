"""pip for another Python than the one that runs it: ``python -m rollcage.sandbox.images.foreign_pip 3.9 download ...``.

pip can choose wheels for another Python (``--python-version``), but what a package requires "on Python < 3.11" it asks
the Python that it runs on, and source distributions it refuses. Both are mended here, for this process. Source
distributions are got as they are, to be built where that Python is; to learn what they require, this one runs their
setup.
"""

from __future__ import annotations

import os
import sys
from typing import Any

LIBC = {"3.9": 31, "3.11": 36, "3.13": 41}
"""Python -> the newest minor version of glibc 2 that its base image is sure to have."""


def arguments(python: str, machine: str) -> list[str]:
    """Return the arguments that say for which Python and machine pip chooses wheels."""
    tags = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, LIBC.get(python, 31) + 1))]
    return ["--python-version", python, *(part for tag in tags for part in ("--platform", f"{tag}_{machine}"))]


def main(argv: list[str]) -> int:
    """Run pip with ``argv[1:]`` as if on Python ``argv[0]``, on Linux."""
    from pip._internal.cli import cmdoptions
    from pip._internal.cli.main import main as pip
    from pip._vendor.packaging import markers

    here = markers.default_environment

    def there() -> Any:
        linux = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
        return {**here(), **linux, "python_version": argv[0], "python_full_version": f"{argv[0]}.0"}

    markers.default_environment = there
    cmdoptions.check_dist_restriction = lambda *_arguments, **_options: None
    return int(pip(argv[1:]))


if __name__ == "__main__":
    os.environ["PIP_NO_PYTHON_VERSION_WARNING"] = "1"
    sys.exit(main(sys.argv[1:]))
