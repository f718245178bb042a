"""The subcommand ``dask daskwire``."""

from __future__ import annotations

from importlib.metadata import entry_points, version

import click


@click.command("daskwire")
def main() -> None:
    """Show the version of daskwire and its transports."""
    click.echo(f"daskwire {version('daskwire')}")
    for transport in entry_points(group="distributed.comm.backends"):
        if transport.value.startswith("daskwire."):
            click.echo(f"{transport.name}://")
