"""python .ci/check_distributions.py FOLDER: checks what the wheel and the sdist in it hold."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def main(folder: Path) -> None:
    """Check both files; the first fault ends the program."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    files = {name for name in listed.stdout.splitlines() if (REPOSITORY / name).is_file()}
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    same("sdist", packed, files | {"PKG-INFO"})
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
        licenses = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    same("wheel", packed, {name for name in files if name.startswith("lightning_shards/")})
    assert "lightning_shards/py.typed" in packed
    assert licenses, "the wheel holds no LICENSE"
    relative = re.findall(r"\]\((?!https?:)[^)]*\)", text)
    assert not relative, f"links of the README that lead nowhere on a package index: {relative}"
    named = {name for name in re.findall(r": `([\w/]+\.md)`", text) if name not in files}
    assert not named, f"the README names files that the sdist does not hold: {named}"


def same(distribution: str, packed: set[str], expected: set[str]) -> None:
    """End the program unless a distribution holds these files and no others."""
    if packed != expected:
        lacks, has = sorted(expected - packed), sorted(packed - expected)
        sys.exit(f"the {distribution} lacks {lacks}, and holds {has} beyond what it should")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
