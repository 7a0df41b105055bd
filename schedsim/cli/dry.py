"""``--device dry:NAME``: run the command again, in a process on the dry CUDA device."""

from __future__ import annotations

import sys

import click

PREFIX = "dry:"


def on_device(name: str | None) -> None:
    """Restart the command on the dry device if `name` is ``dry:NAME``, unless it is there already.

    Raises
    ------
    SchedsimError
        There is no such dry device, or a library that it needs is missing.
    """
    if name is None or not name.startswith(PREFIX):
        return
    from ..validation.dry_cuda import dry_device_name, get_dry_device
    from ..validation.dry_cuda.launch import start

    device = get_dry_device(name.removeprefix(PREFIX))
    if dry_device_name() == device.key:
        return
    arguments = click.get_current_context().find_root().obj
    start([sys.executable, "-m", "schedsim", *arguments], device)
