"""perfdb.mounts: SQLite is refused on a network file system, with the way out, before a file is made."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfdb
from perfdb import mounts, schema
from perfdb.mounts import mount_of, refuse_network

TABLE = """22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /home rw,relatime shared:2 - {kind} server:/home rw,vers=4.2{options}
31 30 8:2 / /home/local\\040disk rw - xfs /dev/sdb rw
a line of another kind
"""


def table(folder: Path, kind: str, options: str = "") -> Path:
    path = folder / "mountinfo"
    path.write_text(TABLE.format(kind=kind, options=options))
    return path


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nfs4", ""),
        ("nfs", ""),
        ("cifs", ""),
        ("smb3", ""),
        ("lustre", ""),
        ("ceph", ""),
        ("fuse.sshfs", ""),
        ("9p", ",trans=tcp"),
    ],
)
def test_network_file_systems_are_refused(tmp_path: Path, kind: str, options: str) -> None:
    with pytest.raises(perfdb.DatabaseError) as caught:
        refuse_network(Path("/home/me/perf.db"), table(tmp_path, kind, options))
    text = str(caught.value)
    assert "local file system" in text
    assert f"/home/me/perf.db is on {kind} mounted at /home" in text
    assert "postgresql://" in text


@pytest.mark.parametrize(
    ("kind", "options"), [("ext4", ""), ("fuse.mergerfs", ""), ("tmpfs", ""), ("9p", ",trans=virtio")]
)
def test_local_ones_are_not(tmp_path: Path, kind: str, options: str) -> None:
    refuse_network(Path("/home/me/perf.db"), table(tmp_path, kind, options))


def test_the_deepest_mount_holds_the_file(tmp_path: Path) -> None:
    found = table(tmp_path, "nfs4")
    refuse_network(Path("/home/local disk/perf.db"), found)
    refuse_network(Path("/homework/perf.db"), found)
    refuse_network(Path("/var/perf.db"), found)
    holding = mount_of(Path("/home/local disk/perf.db"), found)
    assert holding is not None
    assert (holding.point, holding.kind) == ("/home/local disk", "xfs")
    assert mount_of(Path("/x"), tmp_path / "missing") is None


def test_opening_asks_before_it_makes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "mountinfo"
    place.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(schema, "refuse_network", lambda path: mounts.refuse_network(path, place))
    with pytest.raises(perfdb.DatabaseError, match="nfs4"):
        perfdb.open_database(tmp_path / "perf.db")
    assert not (tmp_path / "perf.db").exists()
