"""Claims of files, as several processes see them."""

import errno
import fcntl

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
