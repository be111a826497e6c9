"""`ckptool verify`."""

from __future__ import annotations

import click

from ..disk.addresses import is_url
from ..disk.urls import size_of
from ..errors import CheckpointError, RuleError, printable
from ..reports import manifests
from ..reports import verify as report
from ..reports.verify_text import verify_text
from . import launched
from .documents import Documents
from .help import Command
from .options import FileName, SideOutput, json_options, parts_option
from .output import check_side_outputs, collect, fetching, progress_bar, say_error, terminal_width
from .typed import keyword_arguments


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=FileName(), metavar="FILE…")
@click.option("--against", type=FileName(), metavar="REF", help="Another file that should have the same weights.")
@click.option("--manifest", type=FileName(), metavar="MANIFEST", help="Compare the weights with these digests.")
@click.option(
    "--write-manifest", type=SideOutput("manifest"), metavar="MANIFEST", help="Write the digests of the weights."
)
@click.option("--overwrite", is_flag=True, help="Replace MANIFEST if it exists.")
@click.option("--digest", is_flag=True, help="Print a digest of the weights, the same in every format.")
@click.option(
    "--fits", "model", metavar="MODEL.py", help="A model that the weights should fit: MODEL.py:Name (it is run)."
)
@click.option("--kwargs", multiple=True, metavar="NAME=VALUE", help="An argument for the model of --fits.")
@click.option("--strict", is_flag=True, help="Count NaN, infinite values and pages of zeros as damage.")
@parts_option
@json_options
@click.option("-q", "--quiet", is_flag=True, help="Show only files that are not sound.")
@click.option("-v", "--verbose", is_flag=True, help="List everything, however long.")
def verify(
    files: tuple[str, ...],
    against: str | None,
    manifest: str | None,
    write_manifest: str | None,
    overwrite: bool,
    digest: bool,
    model: str | None,
    kwargs: tuple[str, ...],
    strict: bool,
    as_json: bool,
    as_lines: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Read every byte of a checkpoint once, and check it against the checksums and rules of its format.

    Exit code 0: sound. 1: not sound, and the first line says why. 2: it could not be opened.

    \b
    ckptool verify model.pth
    ckptool verify model.safetensors --against model.pth
    ckptool verify model.pth --write-manifest model.manifest
    ckptool verify model.safetensors --manifest model.manifest
    """
    if len(files) > 1 and (manifest or write_manifest or against):
        option = "--against" if against else "--manifest" if manifest else "--write-manifest"
        raise RuleError("is for one file at a time", where=option)
    if launched.leads():
        check_side_outputs()
    arguments = keyword_arguments(kwargs, "--kwargs")
    status = 0
    documents = Documents("verify", as_json=as_json, as_lines=as_lines)
    for number, path in enumerate(files):
        collect(number)
        size = size_of(path)
        try:
            with (
                progress_bar("reading", size, wanted=not quiet, far=is_url(path)) as progress,
                fetching(path, wanted=not quiet and progress is None),
            ):
                found = report.verify(
                    path,
                    against=against,
                    manifest=manifest,
                    digest=digest or write_manifest is not None,
                    progress=progress,
                    ranks=launched.ranks(),
                )
        except CheckpointError as error:
            if len(files) == 1 or (not error.on_all_ranks and launched.ranks()):
                raise
            status = 2
            from ..reports.diagnosis.rescue import point_to_rescue

            point_to_rescue(error, path)
            documents.fail(error, path)
            say_error(error)
            continue
        if not launched.leads():
            continue
        fit = None
        if model:
            from ..reports.diagnosis.fits import fits

            fit = fits(path, model, kwargs=arguments)
        good = found.verdict(strict=strict, fits=fit is None or fit.fits) == "sound"
        status = max(status, 0 if good else 1)
        if write_manifest and not found.damage and launched.leads():
            manifests.write_manifest(write_manifest, found.digests, overwrite=overwrite)
            click.echo(f"wrote {printable(write_manifest)}", err=True)
        if documents.wanted:
            documents.add({**found.as_json(), "sound": good, "fit": fit.as_json() if fit else None})
        elif not (quiet and good):
            click.echo(verify_text(found, fit, strict=strict, everything=verbose, width=terminal_width()))
    if launched.leads():
        documents.end()
    return status
