"""The lock files, the jar cache, and their errors. A folder serves as the Maven repository."""

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.spark import conf as conf_module
from cdc_lake.spark import java
from cdc_lake.spark.conf import write_spark_defaults
from cdc_lake.spark.fetch import fetch, relock
from cdc_lake.spark.jars import LOCKS, Jar, lock_file, read_lock, require, unpack, verify
from cdc_lake.spark.java import bundled_java_home, find_java, java_version, java_versions

pytestmark = pytest.mark.core

CONTENT = b"a jar"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def jar(artifact: str = "tool", digest: str = DIGEST, ext: str = "jar", classifier: str = "") -> Jar:
    return Jar(("spark",), "org.example", artifact, "1.0", ext, classifier, digest)


def write_lock(folder: Path, *lines: str) -> Path:
    file = folder / "some.lock"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository with `org.example:tool:1.0`."""
    folder = tmp_path / "repository"
    place = folder / "org/example/tool/1.0"
    place.mkdir(parents=True)
    (place / "tool-1.0.jar").write_bytes(CONTENT)
    monkeypatch.setenv("CDC_LAKE_MAVEN_MIRROR", folder.as_uri())
    return folder


def test_lock_line_is_read_with_or_without_type_and_classifier(tmp_path: Path) -> None:
    lock = write_lock(
        tmp_path,
        "# a comment",
        "",
        f"kafka,connect g:a:1 {DIGEST}",
        f"x g:b:2:tar.gz {DIGEST}",
        f"x g:c:3:jar:d {DIGEST}",
    )
    assert read_lock(lock) == (
        Jar(("kafka", "connect"), "g", "a", "1", "jar", "", DIGEST),
        Jar(("x",), "g", "b", "2", "tar.gz", "", DIGEST),
        Jar(("x",), "g", "c", "3", "jar", "d", DIGEST),
    )
    assert [found.coordinates for found in read_lock(lock)] == ["g:a:1", "g:b:2:tar.gz", "g:c:3:jar:d"]


@pytest.mark.parametrize(
    "line",
    [
        "spark g:a:1",
        f"spark g:a {DIGEST}",
        f"spark g:a:1:jar:c:more {DIGEST}",
        f"spark g:a:1 {DIGEST[:-1]}",
        f"spark g:a:1 {DIGEST} more",
    ],
)
def test_malformed_lock_line_is_named_by_file_and_number(tmp_path: Path, line: str) -> None:
    lock = write_lock(tmp_path, "# a comment", line)
    with pytest.raises(ConfigError, match=rf"some\.lock:2: cannot read `{line}`"):
        read_lock(lock)


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.lock")), ids=lambda lock: lock.stem)
def test_every_lock_file_is_readable_and_lists_no_jar_twice(lock: Path) -> None:
    coordinates = [found.coordinates for found in read_lock(lock)]
    assert coordinates
    assert len(coordinates) == len(set(coordinates))


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean emr7"):
        lock_file("emr8")


def test_missing_jar_error_names_jars_fetch(tmp_path: Path) -> None:
    with pytest.raises(InstallationError, match=r"org\.example:tool:1\.0 is missing; run `cdc-lake jars fetch`"):
        require([jar()], tmp_path)


def test_damaged_jar_is_distinguished_from_a_missing_one(tmp_path: Path) -> None:
    damaged, right = jar("damaged"), jar("right")
    for found, content in ((damaged, b"other"), (right, CONTENT)):
        found.path(tmp_path).parent.mkdir(exist_ok=True)
        found.path(tmp_path).write_bytes(content)
    assert verify([damaged, right, jar("missing")], tmp_path) == [
        "org.example:damaged:1.0 is damaged",
        "org.example:missing:1.0 is missing",
    ]


def test_only_missing_or_damaged_jars_are_fetched(repository: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert fetch([jar()], cache) == 1
    assert jar().path(cache).read_bytes() == CONTENT
    assert fetch([jar()], cache) == 0
    jar().path(cache).write_bytes(b"damaged")
    assert fetch([jar()], cache) == 1
    assert verify([jar()], cache) == []
    assert [path.name for path in cache.iterdir()] == ["org.example"]


def test_two_jars_of_one_module_are_fetched(repository: Path, tmp_path: Path) -> None:
    (repository / "org/example/tool/1.0/tool-1.0-tests.jar").write_bytes(CONTENT)

    assert fetch([jar(), jar(classifier="tests")], tmp_path / "cache") == 2


def test_jar_with_wrong_hash_is_refused_and_deleted(repository: Path, tmp_path: Path) -> None:
    cache, wanted = tmp_path / "cache", "0" * 64
    with pytest.raises(InstallationError, match=rf"org\.example:tool:1\.0: .*the SHA-256 {DIGEST} instead of {wanted}"):
        fetch([jar(digest=wanted)], cache)
    assert list(cache.rglob("*")) == []


@pytest.mark.usefixtures("repository")
def test_jar_missing_in_the_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstallationError, match=r"org\.example:absent:1\.0: .*the repository does not have it \(404\)"):
        fetch([jar(), jar("absent")], tmp_path / "cache")


def test_unknown_host_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE_MAVEN_MIRROR", "http://mirror.invalid/jars")
    with pytest.raises(InstallationError, match=r"the host is unknown or unreachable \(mirror\.invalid\)"):
        fetch([jar()], tmp_path)


def test_unresponsive_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE_MAVEN_MIRROR", "http://127.0.0.1:1/jars")
    with pytest.raises(InstallationError, match=r"the server does not respond \(.*Connection refused"):
        fetch([jar()], tmp_path)


def test_archive_is_unpacked_once_next_to_itself(tmp_path: Path) -> None:
    (tmp_path / "readme").write_text("hello")
    archive = jar(ext="tar.gz", classifier="plugin")
    archive.path(tmp_path).parent.mkdir()
    with tarfile.open(archive.path(tmp_path), "w:gz") as tar:
        tar.add(tmp_path / "readme", arcname="readme")
    folder = unpack(archive, tmp_path)
    assert (folder / "readme").read_text() == "hello"
    assert folder.parent == archive.path(tmp_path).parent
    archive.path(tmp_path).unlink()
    assert unpack(archive, tmp_path) == folder


def test_relock_writes_the_hashes_of_the_repository(repository: Path, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, "# kept", f"a,b org.example:tool:1.0 {'0' * 64}")
    relock(lock)
    assert lock.read_text() == f"# kept\na,b org.example:tool:1.0 {DIGEST}\n"


@pytest.fixture
def spark_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(conf_module, "spark_home", lambda: tmp_path)
    return tmp_path / "conf"


SETTINGS = {
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieExtension,io.delta.sql.DeltaSparkSessionExtension",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.odd": r"back\slash",
}


def test_spark_defaults_contain_the_jars_and_the_settings(spark_folder: Path, tmp_path: Path) -> None:
    hudi = Jar(("spark",), "org.apache.hudi", "hudi", "1", "jar", "", DIGEST)
    lines = write_spark_defaults([jar(), hudi], tmp_path, SETTINGS).read_text().splitlines()
    assert lines[1:] == [
        f"spark.jars {tmp_path}/org.example/tool-1.0.jar,{tmp_path}/org.apache.hudi/hudi-1.jar",
        "spark.driver.host 127.0.0.1",
        "spark.driver.bindAddress 127.0.0.1",
        f"spark.sql.extensions {SETTINGS['spark.sql.extensions']}",
        f"spark.kryo.registrator {SETTINGS['spark.kryo.registrator']}",
        r"spark.odd back\\slash",
    ]


def test_spark_defaults_omit_hudi_classes_without_hudi(spark_folder: Path, tmp_path: Path) -> None:
    lines = write_spark_defaults([jar()], tmp_path, SETTINGS).read_text().splitlines()
    assert lines[4:] == ["spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension", r"spark.odd back\\slash"]


SPARK_ENV = '. "$0/spark-env.sh"; printf %s "${JAVA_HOME:-}"'


def java_home(conf: Path, path: Path | str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Source spark-env.sh like spark-submit, and print the resulting JAVA_HOME."""
    environment = {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", "-c", SPARK_ENV, str(conf)], env=environment, capture_output=True, text=True)


def test_spark_env_sets_bundled_java_only_if_none_is_found(spark_folder: Path, tmp_path: Path) -> None:
    write_spark_defaults([jar()], tmp_path, {})
    bundled = str(bundled_java_home())
    other = fake_java(tmp_path / "other", "21.0.2").parent
    chosen = str(fake_java(tmp_path / "chosen", "17.0.1").parents[1])

    assert java_home(spark_folder, other).stdout == bundled
    assert java_home(spark_folder, f"{bundled}/bin").stdout == ""
    assert java_home(spark_folder, other, JAVA_HOME=chosen).stdout == chosen
    nowhere = java_home(spark_folder, other, JAVA_HOME="/nowhere")
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert nowhere.stderr == "error CDC-202 /nowhere: Java is missing; install Java 17 and set JAVA_HOME to it\n"


def test_spark_env_refuses_an_incompatible_java(spark_folder: Path, tmp_path: Path) -> None:
    write_spark_defaults([jar()], tmp_path, {})
    new, right = (fake_java(tmp_path / version, version).parents[1] for version in ("25.0.3", "17.0.1"))
    for home in (new, right):
        (home / "release").write_text(f'JAVA_VERSION="{home.name}"\nMODULES="java.base jdk.zipfs"\n')

    refused = java_home(spark_folder, "", JAVA_HOME=str(new))

    assert refused.returncode == 2
    assert refused.stderr == (
        f"error CDC-202 {new}/bin/java: this Spark requires Java 17; set JAVA_HOME to a complete Java 17\n"
    )
    assert java_home(spark_folder, "", JAVA_HOME=str(right)).stdout == str(right)


def test_spark_env_refuses_a_java_without_the_required_module(spark_folder: Path, tmp_path: Path) -> None:
    write_spark_defaults([jar()], tmp_path, {}, java_module="jdk.incubator.vector")
    small, whole = (fake_java(tmp_path / name, "17.0.1").parents[1] for name in ("small", "whole"))
    for home, modules in ((small, "java.base"), (whole, "java.base jdk.incubator.vector")):
        (home / "release").write_text(f'JAVA_VERSION="17.0.1"\nMODULES="{modules}"\n')

    refused = java_home(spark_folder, "", JAVA_HOME=str(small))

    assert refused.returncode == 2
    assert "this Spark requires Java 17 with the module jdk.incubator.vector; set JAVA_HOME to a" in refused.stderr
    assert java_home(spark_folder, "", JAVA_HOME=str(whole)).stdout == str(whole)
    assert java_home(spark_folder, whole / "bin").stdout == ""
    assert java_home(spark_folder, small / "bin").returncode == 2  # the embedded Java would fail too
    assert str(bundled_java_home()) not in (spark_folder / "spark-env.sh").read_text()


def test_spark_env_accepts_each_java_of_its_spark(spark_folder: Path, tmp_path: Path) -> None:
    write_spark_defaults([jar()], tmp_path, {}, java_versions=java_versions("4.1.1"))
    bundled = str(bundled_java_home())
    versions = "17.0.1", "21.0.2", "25", "210"
    homes = {version: fake_java(tmp_path / version, version).parents[1] for version in versions}
    for version, home in homes.items():
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')

    assert [java_home(spark_folder, home / "bin").stdout for home in homes.values()] == ["", "", bundled, bundled]
    refused = java_home(spark_folder, "", JAVA_HOME=str(homes["25"]))
    assert "this Spark requires Java 17 or 21; set JAVA_HOME to a complete Java 17" in refused.stderr
    assert java_home(spark_folder, "", JAVA_HOME=str(homes["21.0.2"])).returncode == 0


def test_settings_can_be_written_for_another_spark_conf_dir(spark_folder: Path, tmp_path: Path) -> None:
    written = write_spark_defaults([jar()], tmp_path, SETTINGS, conf=tmp_path / "a" / "conf")

    assert written == tmp_path / "a" / "conf" / "spark-defaults.conf"
    assert sorted(file.name for file in written.parent.iterdir()) == [
        "log4j2.properties",
        "spark-defaults.conf",
        "spark-env.sh",
    ]
    assert not spark_folder.exists()


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_takes_precedence_and_must_be_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, old = fake_java(tmp_path / "right", "17.0.1"), fake_java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "right"))
    assert find_java() == right
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(InstallationError, match=rf"{old} is Java 8, but Java 17 is required; install Java 17"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(InstallationError, match="does not run"):
        find_java()


def test_java_of_path_fits_the_installed_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = fake_java(tmp_path, "21.0.2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(newer.parent))
    monkeypatch.setattr(java, "version", lambda package: "4.1.1")
    assert find_java() == newer
    monkeypatch.setattr(java, "version", lambda package: "3.5.7")
    assert find_java() != newer


def test_java_of_another_version_on_path_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = fake_java(tmp_path, "21.0.2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(other.parent))
    bundled = bundled_java_home()
    assert bundled is not None
    assert find_java() == bundled / "bin" / "java"
    assert java_version(find_java()) == 17
