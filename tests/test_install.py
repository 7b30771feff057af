"""What is installed is pinned, and every file of it has a hash, except where the file depends on the machine."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Packages whose files differ from machine to machine.
WITHOUT_HASHES = {"torch"}


def pins(name):
    """The versions that a file of requirements pins, with the hashes of each."""
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            requirement, *options = line.split()
            found[re.sub(r"[-_.]+", "-", requirement).lower()] = options
    return found


def test_every_pinned_version_has_hashes_and_no_other():
    hashes = pins("hashes.txt")
    expected = {pin for pin in pins("constraints.txt") if pin.partition("==")[0] not in WITHOUT_HASHES}
    assert set(hashes) == expected  # after a change of constraints.txt: make hashes
    for pin, options in hashes.items():
        assert options, pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in options), pin


def test_the_files_name_no_registry():
    for name in ("constraints.txt", "hashes.txt"):
        assert not re.search(r"://|--(extra-)?index|--find-links", (ROOT / name).read_text())


def test_packages_without_hashes_are_named():
    head = "".join(line for line in (ROOT / "hashes.txt").read_text().splitlines(True) if line.startswith("#"))
    assert all(package in head for package in WITHOUT_HASHES)


def test_continuous_integration_installs_by_hash_and_tries_the_wheel():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert workflow.count("make locked") == 2  # before the tests and before the site
    assert "make wheel-test" in workflow
