"""The agent: runs inside a container, starts commands there and moves files, told over its stdin and stdout.

It needs the standard library of Python 3.7 and Linux, nothing else. The host hands it over stdin as one program, these
files compiled and as source (`rollcage.sandbox.guest.program`), so that it needs no file, no network and no rights in
the container; importing them on the host does nothing, so that frames and archives are defined once.

It is one loop over file descriptors: no thread, no polling. A command is a session and process group of its own, and
carries a marker in its environment, by which what it started is found again however it was detached. Files are moved by
a forked child, which is a command like any other.
"""
