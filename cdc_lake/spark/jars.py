"""The locked jars of Spark and of the embedded servers, and the cache to which fetch.py downloads them.

A lock file in conf/jars has one jar per line, `<parts> <group>:<artifact>:<version>[:<ext>[:<classifier>]] <sha256>`.
Exactly these jars are used: there is no resolution of transitive dependencies.
"""

import difflib
import hashlib
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cdc_lake.config import PACKAGE
from cdc_lake.errors import ConfigError, InstallationError

LOCKS = PACKAGE / "conf" / "jars"
EMBEDDED_PROFILE = "embedded"
"""Lock file of the embedded servers; the others are Spark's."""
EXTRACTION_FILTER = getattr(tarfile, "data_filter", lambda member, path: member)
"""For archives whose hash was checked, because early releases of Python 3.11, such as Debian 12's, have no filters."""


@dataclass(frozen=True)
class Jar:
    """A line of a lock file.

    Args:
        parts: `spark`, or parts of the embedded servers that need it.
        sha256: in lower-case hex.
    """

    parts: tuple[str, ...]
    group: str
    artifact: str
    version: str
    ext: str
    classifier: str
    sha256: str

    @property
    def coordinates(self) -> str:
        kind = f":{self.ext}:{self.classifier}" if self.classifier else "" if self.ext == "jar" else f":{self.ext}"
        return f"{self.group}:{self.artifact}:{self.version}{kind}"

    @property
    def is_on_emr(self) -> bool:
        """Whether Amazon EMR has its own build, which must not be loaded twice, or cannot use it (SQLite)."""
        return self.group in ("io.delta", "org.apache.hudi", "org.apache.iceberg", "org.xerial")

    def path(self, cache: Path) -> Path:
        """Its path in the cache, whether it exists or not."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return cache / self.group / f"{self.artifact}-{self.version}{classifier}.{self.ext}"


def cache_folder() -> Path:
    """The folder of downloaded jars: CDC_LAKE_JARS, else a folder in the user's cache."""
    return Path(os.environ.get("CDC_LAKE_JARS") or "~/.cache/cdc_lake/jars").expanduser().resolve()


def lock_file(profile: str) -> Path:
    """The lock file of a profile.

    Raises:
        ConfigError: the profile does not exist; suggests a similar name.
    """
    file = LOCKS / f"{profile}.lock"
    if not file.is_file():
        known = sorted(path.stem for path in LOCKS.glob("*.lock"))
        near = difflib.get_close_matches(profile, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
        raise ConfigError(f"profile {profile}", f"{file} does not exist", hint)
    return file


def read_lock(path: Path) -> tuple[Jar, ...]:
    """The jars of a lock file, in order.

    Raises:
        ConfigError: a line is invalid; names file and line.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(
        _read_line(line, f"{path}:{number}")
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    )


def verify(jars: Iterable[Jar], cache: Path) -> list[str]:
    """A line for each jar that is missing in the cache or damaged."""
    return [f"{jar.coordinates} is {problem}" for jar, problem in problems(jars, cache).items()]


def problems(jars: Iterable[Jar], cache: Path) -> dict[Jar, str]:
    """The jars that are not in the cache as locked -> `missing` or `damaged`, in the order of `jars`."""

    def problem(jar: Jar) -> str | None:
        try:
            return None if sha256(jar.path(cache)) == jar.sha256 else "damaged"
        except FileNotFoundError:
            return "missing"

    jars = list(jars)
    with ThreadPoolExecutor() as pool:
        return {jar: status for jar, status in zip(jars, pool.map(problem, jars), strict=True) if status}


def require(jars: Iterable[Jar], cache: Path) -> None:
    """Check that no jar is missing or damaged.

    Raises:
        InstallationError: names the first missing or damaged jar, and the number of others.
    """
    wrong = verify(jars, cache)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InstallationError(f"jars in {cache}", wrong[0] + more, "run `cdc-lake jars fetch`")


def unpack(jar: Jar, cache: Path) -> Path:
    """Unpack a tar.gz next to it, unless that was done before, and return the folder."""
    archive = jar.path(cache)
    folder = archive.with_name(f"{archive.name}.unpacked-{jar.sha256[:12]}")
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=cache) as work:
        content = Path(work) / "content"
        with tarfile.open(archive) as tar:
            tar.extraction_filter = EXTRACTION_FILTER  # the archive's hash was checked
            tar.extractall(content)
        try:
            content.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _read_line(line: str, where: str) -> Jar:
    try:
        parts, coordinates, digest = line.split()
        group, artifact, revision, *kind = coordinates.split(":")
        ext, classifier = [*kind, *("jar", "")[len(kind) :]]
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError(digest)
    except ValueError as exc:
        raise ConfigError(
            where,
            f"cannot read `{line}`",
            "write `<parts> <group>:<artifact>:<version>[:<ext>[:<classifier>]] <sha256>`",
        ) from exc
    return Jar(tuple(parts.split(",")), group, artifact, revision, ext, classifier, digest)
