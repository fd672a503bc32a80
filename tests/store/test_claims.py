"""Claims of files, as several processes see them."""

import errno
import fcntl

import pytest

from joulecast.store.claims import FileClaims


def test_links_to_one_store_share_their_claims(tmp_path):
    store, link = tmp_path / "store.sqlite", tmp_path / "link.sqlite"
    store.touch()
    link.symlink_to(store)
    with FileClaims(store).hold("ab", 0.0) as first, FileClaims(link).hold("ab", 0.0) as second:
        assert (first, second) == (True, False)
    with FileClaims(link).hold("ab", 0.0) as held:
        assert held
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.sqlite", "store.sqlite"]


def test_a_drive_without_locks_allows_every_claim(monkeypatch, tmp_path):
    def fail(*_args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with FileClaims(tmp_path / "store.sqlite").hold("ab", 0.0) as held:
        assert held
    assert list(tmp_path.iterdir()) == []


def test_looking_at_a_claim_does_not_take_it(tmp_path):
    claims = FileClaims(tmp_path / "store.sqlite")
    assert claims.is_free("ab") and list(tmp_path.iterdir()) == []
    with claims.hold("ab", 0.0):
        assert not claims.is_free("ab") and claims.is_free("cd")
    assert claims.is_free("ab")


@pytest.mark.parametrize("function", ["os.open", "fcntl.flock"])
def test_a_claim_that_cannot_be_looked_at_is_not_called_free(monkeypatch, tmp_path, function):
    """The dashboard may belong to a user who cannot read the file, or the drive has no locks."""

    def fail(*_args):
        raise PermissionError(errno.EACCES, "Permission denied")

    claims = FileClaims(tmp_path / "store.sqlite")
    with claims.hold("ab", 0.0):
        monkeypatch.setattr(function, fail)
        assert not claims.is_free("ab")
