"""Only the user who started the embedded Postgres can read its files and its password."""

from pathlib import Path

import pytest

from cdc_lake.demo.servers import postgres
from cdc_lake.demo.servers.postgres import Postgres
from cdc_lake.demo.servers.server import PORTS, Site

pytestmark = pytest.mark.core


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "stack"
    folder.mkdir()
    return Site(folder, dict.fromkeys(PORTS, 1), Path("java"), [], tmp_path)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that others can write, where Postgres must be."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o1777)
    monkeypatch.setattr(postgres, "_SHARED_TEMP", folder)
    monkeypatch.setattr(Postgres, "_is_elsewhere", True)
    monkeypatch.setattr(Postgres, "_copy_programs", lambda self, target: target.mkdir(exist_ok=True))
    return folder


def test_each_home_in_a_shared_folder_has_a_unique_name(site: Site, shared: Path) -> None:
    Postgres(site)._make_home()
    first = (site.folder / "postgres").readlink()
    (site.folder / "postgres").unlink()
    Postgres(site)._make_home()

    assert first.parent == shared
    assert len({first, (site.folder / "postgres").readlink()}) == 2
    assert first.stat().st_mode & 0o066 == 0
    assert (first / "data").stat().st_mode & 0o077 == 0


def test_home_is_kept_between_starts(site: Site, shared: Path) -> None:
    for _ in range(2):
        Postgres(site)._make_home()

    assert len(list(shared.iterdir())) == 1


def test_foreign_symlink_is_not_followed(site: Site, shared: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (shared / "removed").symlink_to(victim)  # after a cleaner removed the folder of this name
    (site.folder / "postgres").symlink_to(shared / "removed")

    Postgres(site)._make_home()

    assert list(victim.iterdir()) == []
    assert (site.folder / "postgres").readlink() != shared / "removed"


def test_password_is_random_kept_and_private(site: Site, tmp_path: Path) -> None:
    address = Postgres(site).address
    other = tmp_path / "other"
    other.mkdir()

    assert Postgres(site).address == address
    assert Postgres(Site(other, site.ports, site.java, [], tmp_path)).address != address
    assert (site.folder / "postgres.password").stat().st_mode & 0o077 == 0
