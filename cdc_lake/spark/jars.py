"""Download the jars of Spark and of the embedded servers, as locked by their hashes.

A lock file in conf/jars has one jar per line, `<parts> <group>:<artifact>:<version>[:<ext>[:<classifier>]] <sha256>`.
Exactly these jars are downloaded: there is no resolution of transitive dependencies.
"""

import difflib
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from cdc_lake.config import CHECKOUT
from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.spark.java import JAVA_VERSION, bundled_java_home, find_java

LOCKS = CHECKOUT / "conf" / "jars"
EMBEDDED_PROFILE = "embedded"

_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Makes local sessions listen on loopback; Spark's default is the address of the host name."""
_LOG_SETTINGS = """# Written by `cdc-lake jars fetch`: Spark logs warnings only, so that a job's own lines are visible.
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1} %m%n%ex
logger.hostname.name = org.apache.spark.util.Utils
logger.hostname.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""
CONF_FILES = frozenset(("spark-defaults.conf", "spark-env.sh", "log4j2.properties"))
"""The files that `write_spark_defaults` writes."""
ARCHIVE_FOLDER = "class-archive"
"""Folder in PySpark's folder that `cdc-lake jars archive` writes."""
_FETCH = "run `cdc-lake jars fetch`"
_TRUST_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/ca-trust/extracted/java/cacerts"),
    Path("/etc/pki/java/cacerts"),
)
_TRUST_STORE_PASSWORD = "changeit"
_FETCH_TIMEOUT_SECONDS = 1800


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
        """The coordinates in the lock file."""
        kind = f":{self.ext}:{self.classifier}" if self.classifier else "" if self.ext == "jar" else f":{self.ext}"
        return f"{self.group}:{self.artifact}:{self.version}{kind}"

    @property
    def is_on_emr(self) -> bool:
        """Whether Amazon EMR has its own build, which must not be loaded twice."""
        return self.group in ("io.delta", "org.apache.hudi")

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
    """Problems of the jars in the cache: a line for each missing or damaged one."""
    with ThreadPoolExecutor() as pool:
        return [problem for problem in pool.map(lambda jar: _problem(jar, cache), jars) if problem]


def require(jars: Iterable[Jar], cache: Path) -> None:
    """Check that no jar is missing or damaged.

    Raises:
        InstallationError: names the first missing or damaged jar, and the number of others.
    """
    problems = verify(jars, cache)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InstallationError(f"jars in {cache}", problems[0] + more, _FETCH)


def fetch(jars: Sequence[Jar], cache: Path, progress: Callable[[str], None] = lambda text: None) -> int:
    """Download missing and damaged jars to the cache, and unpack archives. Safe for concurrent processes.

    Args:
        progress: called with a short description of each step.

    Returns:
        Number of downloaded files.

    Raises:
        InstallationError: a jar cannot be downloaded, or does not match its hash.
    """
    with ThreadPoolExecutor() as pool:
        problems = pool.map(lambda jar: _problem(jar, cache), jars)
        wanted = [jar for jar, problem in zip(jars, problems, strict=True) if problem]
    if wanted:
        progress(f"downloading {len(wanted)} of {len(jars)} jars")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as work:
            download(wanted, Path(work))
            for jar in wanted:
                _accept(jar, Path(work), cache)
    for jar in jars:
        if jar.ext == "tar.gz":
            unpack(jar, cache)
    return len(wanted)


def download(jars: Sequence[Jar], folder: Path) -> None:
    """Download jars to `folder` with the Ivy that PySpark includes, without checking their hashes; see `Jar.path`.

    Raises:
        InstallationError: names the jar and the cause.
    """
    settings, order = folder / "ivysettings.xml", folder / "ivy.xml"
    settings.write_text(_ivy_settings(os.environ.get("CDC_LAKE_MAVEN_MIRROR")), encoding="utf-8")
    order.write_text(_ivy_order(jars), encoding="utf-8")
    java = find_java()
    pattern = f"{folder}/[organisation]/[artifact]-[revision](-[classifier]).[ext]"
    ivy = ["-jar", str(_ivy_jar()), "-verbose", "-settings", str(settings), "-ivy", str(order)]
    target = ["-cache", str(folder / "ivy-cache"), "-retrieve", pattern]
    command = [str(java), *_trust_options(java, folder), *ivy, *target]
    try:
        output = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_FETCH_TIMEOUT_SECONDS
        ).stdout
    except subprocess.TimeoutExpired as exc:
        raise InstallationError(
            "jars",
            f"the download took longer than {_FETCH_TIMEOUT_SECONDS} s",
            "check the network, then run it again",
        ) from exc
    missing = [jar for jar in jars if not jar.path(folder).is_file()]
    if missing:
        # If one jar is missing, Ivy does not write the others either.
        failed = [jar for jar in missing if f"not found: {jar.group}#{jar.artifact};{jar.version}" in output] or missing
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        cause, todo = _failure_cause(output)
        raise InstallationError(failed[0].coordinates + more, f"cannot download it: {cause}", todo)


def relock(path: Path) -> None:
    """Update the hashes in a lock file, after a version was changed.

    Raises:
        InstallationError: a jar cannot be downloaded.
    """
    jars = read_lock(path)
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as work:
        download(jars, Path(work))
        for jar in jars:
            line = f"{jar.coordinates} "
            text = text.replace(f" {line}{jar.sha256}", f" {line}{sha256(jar.path(Path(work)))}")
    path.write_text(text, encoding="utf-8")


def unpack(jar: Jar, cache: Path) -> Path:
    """Unpack a tar.gz next to it, unless that was done before, and return the folder."""
    archive = jar.path(cache)
    folder = archive.with_name(f"{archive.name}.unpacked-{jar.sha256[:12]}")
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=cache) as work:
        content = Path(work) / "content"
        with tarfile.open(archive) as tar:
            # The archive's hash was checked. Early releases of Python 3.11 have no filters.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            tar.extractall(content)
        try:
            content.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def write_spark_defaults(
    jars: Sequence[Jar],
    cache: Path,
    settings: Mapping[str, str],
    *,
    conf: Path | None = None,
    java_module: str | None = None,
) -> Path:
    """Configure the jars and `settings` for every `spark-submit` of this environment.

    Args:
        conf: the folder to write to, for use with SPARK_CONF_DIR; default: PySpark's own.
        java_module: a Java module that this Spark requires.

    Returns:
        The path of spark-defaults.conf.
    """
    conf = conf or spark_home() / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    if not any(jar.group == "org.apache.hudi" for jar in jars):
        settings = without_hudi(settings)
    lines = {"spark.jars": ",".join(str(jar.path(cache)) for jar in jars), **_ON_THIS_MACHINE, **settings}
    defaults = conf / "spark-defaults.conf"
    text = "# Written by `cdc-lake jars fetch`.\n" + "".join(
        f"{key} {_property(value)}\n" for key, value in lines.items()
    )
    _write(defaults, text)
    _write(conf / "spark-env.sh", _spark_env(java_module))
    _write(conf / "log4j2.properties", _LOG_SETTINGS)
    return defaults


def reads_s3a(conf: Path | None) -> bool:
    """Whether the jars for s3a:// are configured in this conf folder; default: PySpark's own."""
    defaults = (conf or spark_home() / "conf") / "spark-defaults.conf"
    return defaults.is_file() and "/hadoop-aws-" in defaults.read_text(encoding="utf-8")


def without_hudi(settings: Mapping[str, str]) -> dict[str, str]:
    """`settings` without Hudi's classes, because a session with a missing class does not start."""
    kept = {
        key: ",".join(
            name for name in value.split(",") if not re.match(r"org\.apache\.(spark\.)?(sql\.)?hudi|.*Hoodie", name)
        )
        for key, value in settings.items()
    }
    return {key: value for key, value in kept.items() if value}


def spark_home() -> Path:
    """The folder of the installed PySpark.

    Raises:
        InstallationError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InstallationError("pyspark", "it is not installed", "run `make setup`")
    return Path(spec.origin).parent


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hex."""
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


def _problem(jar: Jar, cache: Path) -> str | None:
    try:
        return None if sha256(jar.path(cache)) == jar.sha256 else f"{jar.coordinates} is damaged"
    except FileNotFoundError:
        return f"{jar.coordinates} is missing"


def _accept(jar: Jar, work: Path, cache: Path) -> None:
    downloaded, target = jar.path(work), jar.path(cache)
    found = sha256(downloaded)
    if found != jar.sha256:
        downloaded.unlink()
        raise InstallationError(
            jar.coordinates,
            f"the downloaded file has the SHA-256 {found} instead of {jar.sha256}",
            "do not use it; ask the operator of CDC_LAKE_MAVEN_MIRROR, or of the proxy, why it differs",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    downloaded.replace(target)


def _ivy_jar() -> Path:
    found = sorted((spark_home() / "jars").glob("ivy-*.jar"))
    if not found:
        raise InstallationError("pyspark", f"{spark_home() / 'jars'} has no Ivy", "run `make clean setup`")
    return found[-1]


def _ivy_settings(mirror: str | None) -> str:
    # All revisions are kept, because two servers may need two of the same jar. SHA-256 replaces Ivy's checksums.
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    return f"""<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="maven" defaultConflictManager="all"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="15000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="maven" m2compatible="true" usepoms="false" timeoutConstraint="patient"{root}/>
  </resolvers>
</ivysettings>
"""


def _ivy_order(jars: Iterable[Jar]) -> str:
    return f"""<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="cdc_lake" module="jars"/>
  <dependencies>
{"".join(map(_ivy_dependency, jars))}  </dependencies>
</ivy-module>
"""


def _ivy_dependency(jar: Jar) -> str:
    classifier = f' e:classifier="{jar.classifier}"' if jar.classifier else ""
    return f"""    <dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false">
      <artifact name="{jar.artifact}" type="{jar.ext}" ext="{jar.ext}"{classifier}/>
    </dependency>
"""


def _trust_options(java: Path, folder: Path) -> list[str]:
    """Options that make the wheel's Java trust the system's certificate authorities, like a system's Java does."""
    home = bundled_java_home()
    if home is None or not java.is_relative_to(home):
        return []
    store = next((path for path in _TRUST_STORES if path.is_file()), None)
    if store is None:
        store = folder / "truststore.p12"
        store.write_bytes(_trust_store_of_python())
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_TRUST_STORE_PASSWORD}"]


def _trust_store_of_python() -> bytes:
    import certifi
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or ssl.get_default_verify_paths().cafile or certifi.where()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bundles contain old certificates that violate current rules
        certificates = x509.load_pem_x509_certificates(Path(bundle).read_bytes())
    entries = [
        pkcs12.PKCS12Certificate(certificate, str(number).encode()) for number, certificate in enumerate(certificates)
    ]
    return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(_TRUST_STORE_PASSWORD.encode()))


_CAUSES = (
    (
        r"(PKIX[^\n]*|SSL\w*Exception[^\n]*)",
        "the server's certificate is not trusted",
        "set your network's trust store: JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=<file>",
    ),
    (r"Host (\S+) not found", "the host is unknown or unreachable", "check the network and CDC_LAKE_MAVEN_MIRROR"),
    (
        r"Server access error at url ([^\n]*)",
        "the server does not respond",
        "check the network and CDC_LAKE_MAVEN_MIRROR, then run again",
    ),
    (
        r"((?:SERVER|CLIENT) ERROR: (?!Not Found)[^\n]*)",
        "the server rejects the request",
        "check CDC_LAKE_MAVEN_MIRROR and its credentials, then run again",
    ),
)


def _failure_cause(output: str) -> tuple[str, str]:
    for pattern, cause, todo in _CAUSES:
        match = re.search(pattern, output)
        if match:
            return f"{cause} ({match.group(1)})", todo
    return "the repository does not have it (404)", "check whether the mirror in CDC_LAKE_MAVEN_MIRROR has it"


def _spark_env(java_module: str | None) -> str:
    """A script that selects Java, and rejects versions with which Spark fails before a job can report it."""
    home = bundled_java_home()
    text = "# Written by `cdc-lake jars fetch`.\n"
    if home is not None and _has_module(home, java_module):
        text += f"""# Use the bundled Java if there is no Java {JAVA_VERSION}.
if [ -z "${{JAVA_HOME:-}}" ] && ! java -version 2>&1 | grep -q 'version "{JAVA_VERSION}'; then
  export JAVA_HOME={_quoted(str(home))}
fi
"""
    wanted = f"Java {JAVA_VERSION}" + (f" with the module {java_module}" if java_module else "")
    has_module = f""" && grep -q '^MODULES=.*{re.escape(java_module)}' "$release\"""" if java_module else ""
    return f"""{text}# The file `release` has Java's version and modules.
java="${{JAVA_HOME:+$JAVA_HOME/bin/java}}"
java=$(readlink -f "${{java:-$(command -v java)}}")
if [ -z "$java" ]; then
  echo "error CDC-202 ${{JAVA_HOME:-Java}}: Java is missing; install {wanted} and set JAVA_HOME to it" >&2
  exit 2
fi
release="${{java%/bin/java}}/release"
if [ -f "$release" ] && ! {{ grep -q '^JAVA_VERSION="{JAVA_VERSION}[".]' "$release"{has_module}; }}; then
  echo "error CDC-202 $java: this Spark requires {wanted}; set JAVA_HOME to a complete Java {JAVA_VERSION}" >&2
  exit 2
fi
unset java release
# An archive of classes, where there is one for these settings (`cdc-lake jars archive`).
if [ "$SPARK_CONF_DIR" = "${{SPARK_HOME:-}}/conf" ] && [ -f "$SPARK_HOME/{ARCHIVE_FOLDER}/spark-env.sh" ]; then
  . "$SPARK_HOME/{ARCHIVE_FOLDER}/spark-env.sh"
fi
"""


def _has_module(home: Path, module: str | None) -> bool:
    modules = re.search(r'^MODULES="(.*)"', (home / "release").read_text(encoding="utf-8"), re.MULTILINE)
    return module is None or (modules is not None and module in modules.group(1).split())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _property(value: str) -> str:
    # Backslashes are escapes in Java properties files.
    return value.replace("\\", "\\\\")


def _write(file: Path, text: str) -> None:
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    shutil.move(draft, file)
