"""Build the package for a cluster: jobs, configuration, Python environment, jars, and an upload plan.

Nodes need only Spark and Python 3.11. The archive `environment.tar.gz` contains cdc_lake and its dependencies, with
compiled wheels; `environment/bin/python` starts the node's Python with them.
"""

import gzip
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from cdc_lake.config import PACKAGE
from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.spark.fetch import fetch
from cdc_lake.spark.jars import Jar, cache_folder, lock_file, read_lock, sha256
from cdc_lake.spark.versions import PROFILES

Arch = Literal["x86_64", "aarch64"]
Place = Literal["cluster", "emr"]
CHECKOUT = PACKAGE.parent
PLAN = "upload.json"
ENVIRONMENT = "environment.tar.gz"
PYTHON = "3.11"
_PLATFORM = "manylinux_2_28"
"""The wheels' platform: Amazon Linux 2023, Debian 12 and newer have its glibc."""
_BOOTSTRAP = "emr/bootstrap.sh"
_PACKAGED = {"jobs": (".py",), "conf": (".yml", ".yaml", ".sql", ".csv", ".avsc")}
"""Packaged file types by folder. Other files may be secrets, such as `.env` or a key."""
_IGNORED = (".lock", ".pyc")
"""Skipped without a warning: lock files of jars (the package has its own) and compiled Python."""
_SECRET_PATHS = ("cert", "key", "keytab")
"""Settings whose value is the path of a secret. A certificate may contain its private key."""
_START = """#!/bin/sh
# Starts this node's Python with cdc_lake and the packages it needs.
lib="$(cd "$(dirname "$0")/../lib" && pwd)"
for python in python{version} python3; do
  if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {numbers})' 2>/dev/null; then
    PYTHONPATH="$lib${{PYTHONPATH:+:$PYTHONPATH}}" exec "$python" "$@"
  fi
done
echo "cdc_lake: Python {version} is not on the PATH of $(hostname); install it on every node" >&2
exit 127
"""


class Artifact(BaseModel):
    """One file of a package.

    Attributes:
        path: relative to the package's folder and to the upload's target.
        size: in bytes.
        sha256: in hex.
        on: the targets that need it: a cluster of plain Spark, EMR.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    size: int
    sha256: str
    on: tuple[Place, ...]


class UploadPlan(BaseModel):
    """A package's files: the content of its `upload.json`.

    Attributes:
        profile: the profile of its jars, a file of conf/jars.
        spark: the Spark release line of the jars.
    """

    model_config = ConfigDict(frozen=True)

    version: str
    profile: str
    spark: str
    python: str
    arch: Arch
    files: tuple[Artifact, ...]

    def needed_on(self, place: Place) -> list[Artifact]:
        return [file for file in self.files if place in file.on]


def build(
    into: Path, profile: str, *, arch: Arch = "x86_64", s3a: bool = False, progress: Callable[[str], None]
) -> UploadPlan:
    """Build a package from this checkout; it replaces an existing one.

    Args:
        profile: a name of `versions.PROFILES`.
        s3a: include the jars for s3a://, which EMR and many clusters already have.
        progress: called with a short description of each step.

    Raises:
        ConfigError: the profile does not exist.
        InstallationError: a dependency cannot be downloaded, or this is not a checkout.
    """
    _check(profile)
    spark = PROFILES[profile].line
    jars = read_lock(lock_file(profile))
    for_s3a = read_lock(lock_file(PROFILES[profile].s3a)) if s3a else ()
    for_msk = read_lock(lock_file("msk"))
    only_on: dict[str, Place] = {"conf.zip": "emr", _BOOTSTRAP: "emr", **{_name(jar): "emr" for jar in for_msk}}
    only_on |= {_name(jar): "cluster" for jar in (*(jar for jar in jars if jar.is_on_emr), *for_s3a)}
    jars += (*for_s3a, *for_msk)
    fetch(jars, cache_folder(), progress)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".package-", dir=into.parent) as work:
        made = Path(work) / "package"
        made.mkdir()
        progress("building the wheel")
        _run("uv", "build", "--wheel", "--no-build-isolation", "--out-dir", str(made), str(CHECKOUT))
        (made / ".gitignore").unlink(missing_ok=True)
        (wheel,) = made.glob("*.whl")
        progress(f"installing its dependencies for Python {PYTHON} on {arch}")
        _environment(made / ENVIRONMENT, wheel, f"cluster-spark{spark.replace('.', '')}.txt", arch, Path(work))
        for jar in jars:
            _copy(jar.path(cache_folder()), made / _name(jar))
        for name, why in copy_sources(CHECKOUT, made).items():
            progress(f"warning: skipped {name}: {why}")
        lines = "".join(f"{jar.coordinates} {jar.sha256}\n" for jar in jars)
        (made / "jars.lock").write_text(lines, encoding="utf-8")
        _copy(CHECKOUT / "cdc_lake" / _BOOTSTRAP, made / _BOOTSTRAP)
        _zip(made / "conf", made / "conf.zip")
        plan = UploadPlan(
            version=wheel.name.split("-")[1],
            profile=profile,
            spark=spark,
            python=PYTHON,
            arch=arch,
            files=tuple(_artifacts(made, only_on)),
        )
        (made / PLAN).write_text(plan.model_dump_json(indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(into, ignore_errors=True)
        made.rename(into)
    return plan


def _check(profile: str) -> None:
    if not (CHECKOUT / "pyproject.toml").is_file():
        raise InstallationError(
            str(CHECKOUT), "it is not a checkout of cdc_lake", "clone it, and run `make package` there"
        )
    if profile not in PROFILES:
        raise ConfigError(f"profile {profile}", "unknown profile", f"use one of {', '.join(PROFILES)}")


def copy_sources(checkout: Path, into: Path) -> dict[str, str]:
    """Copy the jobs and configuration of a checkout.

    Returns:
        Why files and links were skipped, by name.

    Raises:
        ConfigError: a YAML file in conf/ is broken, so that the secrets that it references are unknown.
    """
    secrets = _secret_files(checkout / "conf")
    skipped = {}
    for folder, endings in _PACKAGED.items():
        for file in sorted(path for path in (checkout / folder).rglob("*") if path.is_file() or path.is_symlink()):
            name = file.relative_to(checkout)
            if file.suffix in _IGNORED:
                continue
            if file.resolve() != checkout.resolve() / name:
                skipped[str(name)] = "symbolic links are not followed"
            elif file.resolve() in secrets:
                skipped[str(name)] = "a setting references it as a secret"
            elif any(part.startswith(".") for part in name.parts) or file.suffix not in endings:
                skipped[str(name)] = f"only {', '.join(endings)} files in {folder}/ are packaged, and no hidden ones"
            else:
                _copy(file, into / name)
    return skipped


def _secret_files(conf: Path) -> set[Path]:
    """The files that settings reference as secrets: in YAML files of conf/, and in environment variables."""
    variables = ((name.lower(), text) for name, text in os.environ.items() if name.lower().startswith("cdc_lake__"))
    nodes = ((name.rpartition("__")[2], yaml.ScalarNode("", text)) for name, text in variables)
    paths = {conf / path for name, node in nodes for path in _referenced(node, name)}
    for file in (path for path in conf.rglob("*") if path.suffix in (".yml", ".yaml") and path.is_file()):
        try:
            documents = list(yaml.compose_all(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
        except (yaml.YAMLError, UnicodeDecodeError):
            # Without the parser's message, which quotes the file.
            raise ConfigError(str(file), "this is not YAML", "correct the file, or move it out of conf/") from None
        for document in documents:
            paths |= {file.parent / path for path in _referenced(document)}
    return {path.resolve() for path in paths}


def _referenced(node: yaml.Node | None, key: str = "") -> Iterator[str]:
    """The paths of secrets in settings."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _referenced(value, str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _referenced(value)
    elif isinstance(node, yaml.ScalarNode) and (node.value.startswith("file:") or key in _SECRET_PATHS):
        yield node.value.removeprefix("file:")


def _environment(archive: Path, wheel: Path, lock: str, arch: Arch, work: Path) -> None:
    lib = work / "environment" / "lib"
    into = ("uv", "pip", "install", "--no-config", "--quiet", "--link-mode", "copy", "--target", str(lib), "--no-deps")
    platform = ("--python-platform", f"{arch}-{_PLATFORM}", "--python-version", PYTHON, "--only-binary", ":all:")
    _run(*into, *platform, "--require-hashes", "--requirement", str(CHECKOUT / "requirements" / lock))
    _run(*into, *platform, str(wheel))
    shutil.rmtree(lib / "bin", ignore_errors=True)  # commands that name this machine's Python
    (lib / ".lock").unlink(missing_ok=True)
    start = work / "environment" / "bin" / "python"
    start.parent.mkdir()
    numbers = f"({PYTHON.replace('.', ', ')})"
    start.write_text(_START.format(version=PYTHON, numbers=numbers), encoding="utf-8")
    start.chmod(0o755)
    _pack(work / "environment", archive)


def _pack(folder: Path, archive: Path) -> None:
    """Write a reproducible tar.gz: equal files give equal bytes."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            if path.name not in ("direct_url.json", "uv_cache.json", "RECORD"):  # origin and time of the installation
                tar.add(path, path.relative_to(folder), recursive=False, filter=plain)


def _zip(folder: Path, archive: Path) -> None:
    """Write a reproducible zip of a folder's content."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            entry.external_attr = 0o644 << 16
            zipped.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def _name(jar: Jar) -> str:
    return f"jars/{jar.path(Path()).name}"


def _artifacts(folder: Path, only_on: Mapping[str, Place]) -> Iterator[Artifact]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        on: tuple[Place, ...] = (only_on[name],) if name in only_on else ("cluster", "emr")
        yield Artifact(path=name, size=path.stat().st_size, sha256=sha256(path), on=on)


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    except FileNotFoundError as exc:
        raise InstallationError(command[0], "it is not on PATH", "run `make setup`, and use its environment") from exc
    if done.returncode:
        output = done.stdout.strip().splitlines() or ["no output"]
        raise InstallationError(
            " ".join(command[:3]), f"it failed: {output[-1]}", f"run it by hand: {' '.join(command)}"
        )
