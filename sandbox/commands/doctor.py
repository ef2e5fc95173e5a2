"""``rollcage sandbox doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rollcage.command import CommandParser
from rollcage.sandbox.client.address import default_folder
from rollcage.sandbox.commands.opened import add_place, patience, show, show_json
from rollcage.sandbox.doctor import Finding, examine
from rollcage.sandbox.opening import default_endpoint, parse_endpoint


def run_doctor(argv: Sequence[str]) -> int:
    """Say what is missing on this machine; exit code 0 only where nothing is."""
    parser = CommandParser(
        "rollcage sandbox doctor",
        "Say what is missing on this machine for sandboxes, and how to mend it: client library, daemon, permission,\n"
        "image, disk, limits (one is tried in a sandbox), seccomp, leftovers. Exit code 0 only where all is well.",
        "rollcage sandbox doctor\nrollcage sandbox doctor --json\nrollcage sandbox doctor --endpoint unix:///var/run/docker.sock",
    )
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    args = parser.parse_args(argv)
    endpoints = [parse_endpoint(text)[1] for text in args.endpoint or (default_endpoint(),)]
    folder = args.folder or default_folder()
    findings = [finding for endpoint in endpoints for finding in asyncio.run(_look(endpoint, folder, args.json))]
    if args.json:
        show_json([asdict(finding) for finding in findings])
    return 0 if all(finding.ok for finding in findings) else 1


async def _look(endpoint: str, folder: Path, quiet: bool) -> list[Finding]:
    findings = []
    with patience(f"examining {endpoint}"):
        async for finding in examine(endpoint, folder):
            findings.append(finding)
            if not quiet:
                show(f"{'ok  ' if finding.ok else 'NO  '}{finding.check:11}{finding.text}")
                if finding.mend and not finding.ok:
                    show(f"{'':15}-> {finding.mend}")
    return findings
