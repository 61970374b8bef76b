"""Finds the published files in the user's folder, the cache or the network; verifies each."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pooch

from softorder_experiments.errors import UserError, report_write_errors, write_atomically

FOLDER_VARIABLE = "SOFTORDER_DATA"
_RETRIES = 3


@dataclass(frozen=True)
class File:
    """A published file: its path below the data folder, and its SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Download:
    """A download and its files.

    Args:
        url: The address.
        sha256: The checksum of the download.
        files: The downloaded file, or the files to extract from the downloaded archive.
    """

    url: str
    sha256: str
    files: tuple[File, ...]

    @property
    def is_archive(self) -> bool:
        """Tell whether the download is an archive."""
        return not self.url.endswith(self.files[0].path.rsplit("/", 1)[-1])


def find(downloads: Sequence[Download]) -> list[Path]:
    """Return the paths of all files, verified; missing files are downloaded."""
    try:
        return [path for download in downloads for path in _find(download)]
    except OSError as error:
        names = [file.path for download in downloads for file in download.files]
        folder = os.environ.get(FOLDER_VARIABLE)
        raise UserError(
            f"these files must be in the folder {FOLDER_VARIABLE}, "
            f"or the network must be available: {', '.join(names)}",
            f"{FOLDER_VARIABLE}={folder or ''} without the files, and no network "
            f"({type(error).__name__}: {str(error)[:120]}...)",
            f"Put the files into a folder, keeping their paths, and set {FOLDER_VARIABLE} to it",
        ) from error


def cache_folder() -> Path:
    """Return the folder of downloaded files."""
    return Path(pooch.os_cache("softorder"))


def _places() -> Iterator[Path]:
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        yield Path(named).expanduser()
    yield cache_folder()


def _find(download: Download) -> list[Path]:
    for place in _places():
        paths = [place / file.path for file in download.files]
        if all(path.exists() for path in paths):
            for path, file in zip(paths, download.files, strict=True):
                _check(path, file.sha256)
            return paths
    return _fetch(download)


def _fetch(download: Download) -> list[Path]:
    """Download into the cache, with a progress bar and retries; only verified files are kept."""
    cache = cache_folder()
    paths = [cache / file.path for file in download.files]
    folder = cache if download.is_archive else paths[0].parent
    name = download.url.rsplit("/", 1)[-1]
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    source = pooch.create(
        folder,
        base_url="",
        registry={name: f"sha256:{download.sha256}"},
        urls={name: download.url},
        retry_if_failed=_RETRIES,
    )
    try:
        archive = Path(source.fetch(name, progressbar=True))
    except ValueError as error:  # the checksum differs
        raise UserError(
            f"{download.url} must be the published file", str(error)[:200], "Try again later"
        ) from error
    if download.is_archive:
        _unpack(archive, download, cache)
    return paths


def _unpack(archive: Path, download: Download, folder: Path) -> None:
    """Extract the wanted files in one pass through the archive."""
    with tarfile.open(archive) as members:
        for file in download.files:
            content = members.extractfile(file.path)
            assert content is not None  # the archive's checksum was verified
            path = folder / file.path
            with report_write_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.read())
            _check(path, file.sha256)


def _check(path: Path, sha256: str) -> None:
    """Verify the checksum of a file."""
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise UserError(
            f"{path} must be the published file with SHA-256 {sha256[:12]}...",
            f"{path.stat().st_size:,} bytes with SHA-256 {found[:12]}...: truncated or corrupt",
            "Replace it; or delete it, and `softorder data get` downloads it",
        )
