"""Download jars to the cache with the Ivy that PySpark includes, and check their hashes."""

import os
import re
import ssl
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from cdc_lake.errors import InstallationError
from cdc_lake.spark.conf import spark_home
from cdc_lake.spark.jars import Jar, problems, read_lock, sha256, unpack
from cdc_lake.spark.java import bundled_java_home, find_java

_TRUST_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/ca-trust/extracted/java/cacerts"),
    Path("/etc/pki/java/cacerts"),
)
_TRUST_STORE_PASSWORD = "changeit"
_FETCH_TIMEOUT_SECONDS = 1800
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
"""Patterns of Ivy's output, each with the cause and what to do about it."""


def fetch(jars: Sequence[Jar], cache: Path, progress: Callable[[str], None] = lambda text: None) -> int:
    """Download missing and damaged jars to the cache, and unpack archives. Safe for concurrent processes.

    Args:
        progress: called with a short description of each step.

    Returns:
        Number of downloaded files.

    Raises:
        InstallationError: a jar cannot be downloaded, or does not match its hash.
    """
    wanted = list(problems(jars, cache))
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
        cause, cure = _failure_cause(output)
        raise InstallationError(failed[0].coordinates + more, f"cannot download it: {cause}", cure)


def _accept(jar: Jar, work: Path, cache: Path) -> None:
    downloaded, target = jar.path(work), jar.path(cache)
    digest = sha256(downloaded)
    if digest != jar.sha256:
        downloaded.unlink()
        raise InstallationError(
            jar.coordinates,
            f"the downloaded file has the SHA-256 {digest} instead of {jar.sha256}",
            "do not use it; ask the operator of CDC_LAKE_MAVEN_MIRROR, or of the proxy, why it differs",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    downloaded.replace(target)


def _ivy_jar() -> Path:
    jars = sorted((spark_home() / "jars").glob("ivy-*.jar"))
    if not jars:
        raise InstallationError("pyspark", f"{spark_home() / 'jars'} has no Ivy", "install PySpark again")
    return jars[-1]


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
    modules: dict[tuple[str, str, str], list[str]] = {}
    for jar in jars:  # Ivy downloads only one of two dependencies on the same module
        modules.setdefault((jar.group, jar.artifact, jar.version), []).append(_ivy_artifact(jar))
    return f"""<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="cdc_lake" module="jars"/>
  <dependencies>
{"".join(_ivy_dependency(*module, "".join(artifacts)) for module, artifacts in modules.items())}  </dependencies>
</ivy-module>
"""


def _ivy_dependency(group: str, artifact: str, version: str, artifacts: str) -> str:
    return f"""    <dependency org="{group}" name="{artifact}" rev="{version}" transitive="false">
{artifacts}    </dependency>
"""


def _ivy_artifact(jar: Jar) -> str:
    classifier = f' e:classifier="{jar.classifier}"' if jar.classifier else ""
    return f'''      <artifact name="{jar.artifact}" type="{jar.ext}" ext="{jar.ext}"{classifier}/>
'''


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


def _failure_cause(output: str) -> tuple[str, str]:
    for pattern, cause, cure in _CAUSES:
        match = re.search(pattern, output)
        if match:
            return f"{cause} ({match.group(1)})", cure
    return "the repository does not have it (404)", "check whether the mirror in CDC_LAKE_MAVEN_MIRROR has it"
