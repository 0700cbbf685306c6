"""`kvsim`: finds the verb, and turns what went wrong into a message and an exit code.

Exit codes: 0 done, 1 a check or a point failed, 2 the user's input is wrong, 130 interrupted. A bug keeps its traceback (exit code 1).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import click

from kvsim import __version__
from kvsim.errors import KvsimError, did_you_mean


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb is (`module:attribute`) and what `kvsim --help` says of it, so that help imports no verb."""

    where: str
    help: str


VERBS: Mapping[str, Verb] = {
    "list": Verb("kvsim.cli.listing:listing", "What there is to choose from: policies, models, hardware, formats."),
    "run": Verb("kvsim.cli.run:run", "Simulate a scenario and write its results."),
    "schema": Verb("kvsim.cli.schema:schema", "JSON Schema of scenario files, for editors."),
    "trace": Verb("kvsim.cli.trace:trace", "Look at traces."),
    "verify": Verb("kvsim.cli.verify:verify", "Replay recorded decisions of real engines."),
}


class Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, by name."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command behind a verb."""
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name].where.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a guess at what an unknown verb was meant to be."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            ctx.fail(f"there is no verb {args[0]!r}{did_you_mean(args[0], VERBS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of verbs in `kvsim --help`."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS[name].help) for name in sorted(VERBS)])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvsim")
def kvsim() -> None:
    """Simulate KV-cache tiering for LLM inference: throughput, latency and margin of a cluster, a policy and your traffic."""


def main() -> None:
    """The program `kvsim`."""
    # One short run: collecting the garbage of imports, again and again, costs a tenth of it.
    gc.set_threshold(100_000, 50, 50)
    try:
        sys.exit(kvsim.main(standalone_mode=False))
    except KvsimError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of a pipe has seen enough; what is left in the buffer has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
