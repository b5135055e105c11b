"""What `--help` and `--version` print. A module of its own, because click takes 2.8 MB, and a job needs none of it."""

from __future__ import annotations

import click

from .config.flag import Flag
from .config.flags import FLAGS

PROGRAM = "elastic-agent"

_INTRO = """\
Usage: elastic-agent [FLAGS] SCRIPT [SCRIPT'S OWN ARGUMENTS]

Run SCRIPT as the workers of a distributed training job on this node, and keep
the job going when workers fail and nodes leave or arrive. Takes torchrun's
command line: flags may be abbreviated, _ may be written for -, and a variable
such as PET_NNODES sets the default of --nnodes. (In brackets: the default.)

  elastic-agent --nproc-per-node 2 train.py --lr 0.1
  elastic-agent --nnodes 1:4 --max-restarts 3 --rdzv-backend c10d \\
      --rdzv-endpoint node0:29400 --rdzv-id job1 train.py
"""


def show(page: str) -> None:
    """Print the page that this flag asks for, `--help` or `--version`, on standard output."""
    if page == "--version":
        from .. import __version__

        click.echo(f"{PROGRAM} {__version__}")
        return
    # The context finds out how wide the terminal is.
    context = click.Context(click.Command(PROGRAM), info_name=PROGRAM, max_content_width=100)
    formatter = context.make_formatter()
    formatter.write(_INTRO)
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        rows = [(_spelling(flag), flag.help) for flag in FLAGS if flag.group == group]
        with formatter.section(group):
            formatter.write_dl(rows, col_max=28)
    click.echo(formatter.getvalue().rstrip("\n"))


def _spelling(flag: Flag) -> str:
    short = f"-{flag.short}, " if flag.short else ""
    return f"{short}--{flag.name}" + (f" {flag.metavar}" if flag.metavar else "")
