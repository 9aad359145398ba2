"""Where a file lies: SQLite's locks and shared memory do not reach over a network, so such places are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfdb.errors import DatabaseError

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs3",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "wekafs",
    ]
)
# User-space file systems name themselves after a dot: fuse.sshfs.
NETWORK_FUSE = frozenset(
    [
        "ceph",
        "glusterfs",
        "s3fs",
        "sshfs",
        "rclone",
        "goofys",
        "gcsfuse",
        "juicefs",
        "curlftpfs",
        "smbnetfs",
        "mount-s3",
    ]
)


@dataclass(frozen=True)
class Mount:
    """One mounted file system: where, of which type, with which options."""

    point: str
    kind: str
    options: tuple[str, ...]

    @property
    def is_network(self) -> bool:
        """Whether other machines may hold the same files."""
        family, _, member = self.kind.partition(".")
        if family == "fuse" and member:
            return member in NETWORK_FUSE
        if self.kind == "9p":
            # The folders of a sandbox or a guest are 9p as well, of this one machine; only these two are shared.
            return any(option in ("trans=tcp", "aname=drvfs") or option.startswith("addr=") for option in self.options)
        return self.kind in NETWORK


def mount_of(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """The file system that holds `path` (or will), None where the system does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = path.resolve()
    best: Mount | None = None
    for line in lines:
        found = _parsed(line)
        # Of mounts on one point, the last one listed is on top.
        if (
            found is not None
            and place.is_relative_to(found.point)
            and (best is None or len(found.point) >= len(best.point))
        ):
            best = found
    return best


def _parsed(line: str) -> Mount | None:
    """`36 35 98:0 /root /point options - type source superoptions`, spaces in names as octal escapes."""
    left, separator, right = line.partition(" - ")
    fields, rest = left.split(), right.split()
    if not separator or len(fields) < 6 or not rest:
        return None
    point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
    options = (*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ()))
    return Mount(point, rest[0], options)


def refuse_network(path: Path, mounts: Path = MOUNTS) -> None:
    """Errors: DatabaseError if the file lies, or would lie, on a network file system."""
    mount = mount_of(path, mounts)
    if mount is not None and mount.is_network:
        raise DatabaseError(
            "a SQLite database lies on a local file system",
            f"{path} is on {mount.kind} mounted at {mount.point}",
            "SQLite's locks do not hold over a network and the file would be damaged: give a local path, or share a "
            "PostgreSQL server (--db postgresql://host/name); collect local databases with `perfdb merge`",
        )
