"""API keys: the file that holds them, its changes while the server runs, and the limits of a key."""

import hmac
import os
from pathlib import Path

import pytest

from lightwell.server.config.auth.keys import MAX_KEYS, KeyFileError, Keyring, hash_of, key_entry, new_key, read_keys
from lightwell.server.config.auth.quotas import KeyLimits, KeyUse, LimitReached
from lightwell.server.observability.access_log import RequestRecord
from tests.support.clock import Clock


def entry(name: str, key: str, more: str = "") -> str:
    return f'[{name}]\nhash = "{hash_of(key)}"\n{more}\n'


def name_of(keys: Keyring, key: str) -> str | None:
    known = keys.find(key.encode())
    return None if known is None else known.key.name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(entry("alice", "a" * 40) + entry("bob", "b" * 40))
    return path


def test_a_made_key_is_found_by_its_entry(file: Path) -> None:
    key = new_key()
    assert len(key) > 40
    assert key != new_key()
    file.write_text(key_entry("carol", key, is_admin=True))
    keys = Keyring(file=file)
    assert keys.has_admin
    assert (name_of(keys, key), name_of(keys, key[:-1]), name_of(keys, "")) == ("carol", None, None)


def test_the_time_of_a_look_up_tells_nothing_about_the_keys(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the digest of any given text is compared with the digest of every key, in constant time."""
    compare, compared = hmac.compare_digest, list[tuple[bytes, bytes]]()

    def watched(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return compare(given, known)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    keys = Keyring([hash_of("one")], file)
    for key in ("one", "a" * 40, "b" * 40, "no key", ""):
        compared.clear()
        keys.find(key.encode())
        digest = bytes.fromhex(hash_of(key).removeprefix("sha256:"))
        assert compared == [(digest, known.key.digest) for known in keys.known]
        assert len(compared) == 3


def test_keys_of_flags_and_file_open_together(file: Path) -> None:
    keys = Keyring([hash_of("one"), hash_of("two")], file)
    assert [name_of(keys, key) for key in ("one", "two", "a" * 40)] == ["key-1", "key-2", "alice"]
    assert not keys.is_open
    assert Keyring().is_open


def test_the_file_is_read_again_when_it_changes_and_at_most_once_a_second(file: Path) -> None:
    clock = Clock()
    keys = Keyring(file=file, clock=clock)
    replacement = file.with_suffix(".new")
    replacement.write_text(entry("bob", "b" * 40) + entry("carol", "c" * 40))
    os.replace(replacement, file)
    clock.now += 0.5
    assert (name_of(keys, "a" * 40), name_of(keys, "c" * 40)) == ("alice", None)
    clock.now += 0.6
    assert (name_of(keys, "a" * 40), name_of(keys, "b" * 40), name_of(keys, "c" * 40)) == (None, "bob", "carol")


@pytest.mark.parametrize("content", ["", "not toml", '[alice]\nhash = "plain"\n', None])
def test_a_broken_file_changes_nothing_and_is_told_once(
    content: str | None, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    keys = Keyring(file=file, clock=clock)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    for _ in range(3):
        clock.now += 2
        assert name_of(keys, "a" * 40) == "alice"
    assert keys.file_errors == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    file.write_text(entry("alice", "d" * 40))
    clock.now += 2
    assert (name_of(keys, "a" * 40), name_of(keys, "d" * 40)) == (None, "alice")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has 0 keys"),
        ("alice = 1", "'alice' is not a table"),
        ('[alice]\nhash = "lw-secret"', "hash must be sha256:"),
        (entry("alice", "a", "max_request = 3"), "'max_request'; accepted are hash, max_requests"),
        (entry("alice", "a", "max_requests = 0"), "max_requests is 0; an integer from 1 to 9007199254740992"),
        (entry("alice", "a", f"tokens_per_minute = 1{'0' * 400}"), "tokens_per_minute is 10"),
        (entry("alice", "a", f"max_requests = {'9' * 5000}"), "is not valid TOML: a value is too large"),
        (entry("alice", "a", f"max_requests = 0x{'F' * 5000}"), "max_requests is an integer that is too large"),
        (entry("alice", "a", f"expires = 0x{'F' * 5000}"), "expires is an integer that is too large"),
        (entry("alice", "a", f"min_priority = 0x{'F' * 5000}"), "min_priority is an integer that is too large"),
        (entry("alice", "a", f"admin = 0x{'F' * 5000}"), "admin is an integer that is too large"),
        (f"x = {'[' * 100_000}", "is not valid TOML: a value is too large"),
        (entry("alice", "a", "tokens_per_minute = true"), "tokens_per_minute is True"),
        (entry("alice", "a", "min_priority = -1001"), "min_priority is -1001; -1000 to 1000 are"),
        (entry("alice", "a", "min_priority = false"), "min_priority is False"),
        (entry("alice", "a", 'admin = "no"'), "admin is 'no'; true and false"),
        (entry("alice", "a", 'expires = "soon"'), "expires is 'soon'; a day such as"),
        (entry("key-1", "a"), "'key-1' is not a valid name"),
        ('["a b"]\n' + f'hash = "{hash_of("a")}"', "'a b' is not a valid name"),
        ("".join(entry(f"k{i}", str(i)) for i in range(MAX_KEYS + 1)), f"1 to {MAX_KEYS} are accepted"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(content: str, said: str) -> None:
    with pytest.raises(KeyFileError, match=r"keys\.toml") as raised:
        read_keys(content.encode(), "keys.toml")
    assert said in str(raised.value)
    assert "lw-secret" not in str(raised.value)


def test_a_server_does_not_start_without_its_key_file_or_with_two_entries_of_one_key(file: Path) -> None:
    file.write_text(entry("alice", "same") + entry("bob", "same"))
    with pytest.raises(KeyFileError, match="bob has the same hash as alice"):
        Keyring(file=file)
    file.unlink()
    with pytest.raises(KeyFileError, match=r"keys\.toml cannot be read: No such file"):
        Keyring(file=file)


@pytest.mark.parametrize(
    ("expires", "is_over"),
    [("2020-01-01", True), ("2020-01-01T00:00:00", True), ("2020-01-01T00:00:00+02:00", True), ("9999-01-01", False)],
)
def test_a_key_expires_at_its_day_or_time(expires: str, is_over: bool) -> None:
    (key,) = read_keys(entry("alice", "a", f"expires = {expires}").encode(), "keys.toml")
    assert key.is_expired == is_over


def test_a_key_keeps_its_count_when_the_file_is_read_again(file: Path) -> None:
    keys = Keyring(file=file)
    alice = keys.find(b"a" * 40)
    assert alice is not None
    alice.use.begin(takes_tokens=True)
    file.write_text(entry("alice", "new", "max_requests = 1"))
    keys.reload()
    again = keys.find(b"new")
    assert again is not None
    with pytest.raises(LimitReached, match="'alice' has 1 requests in flight; at most 1 are accepted"):
        again.use.begin(takes_tokens=True)
    alice.use.end()
    again.use.begin(takes_tokens=True)


def test_a_first_admin_key_is_noticed_by_whoever_asks_for_one(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "keys.toml"
    file.write_text(key_entry("alice", new_key(), is_admin=False))
    keys = Keyring(file=file, clock=clock)
    assert not keys.has_admin
    file.write_text(key_entry("root", new_key(), is_admin=True))
    clock.now += 2
    assert keys.has_admin


# ---- limits


def refusal(use: KeyUse, *, takes_tokens: bool = False) -> LimitReached:
    with pytest.raises(LimitReached) as raised:
        use.begin(takes_tokens=takes_tokens)
    return raised.value


def limited(clock: Clock, max_requests: int | None = None, tokens_per_minute: int | None = None) -> KeyUse:
    use = KeyUse("alice", clock)
    use.limits = KeyLimits(max_requests, tokens_per_minute)
    return use


def test_requests_in_flight_are_bounded() -> None:
    use = limited(Clock(), max_requests=2)
    use.begin(takes_tokens=False)
    use.begin(takes_tokens=False)
    refused = refusal(use)
    assert (refused.code, refused.retry_after) == ("key_requests_exceeded", 1)
    use.end()
    use.begin(takes_tokens=False)
    assert (use.num_requests, use.requests_total, use.refusals["max_requests"]) == (2, 3, 1)


def test_retry_after_of_a_full_key_is_the_time_in_which_its_own_requests_end() -> None:
    clock = Clock()
    use = limited(clock, max_requests=2)
    use.begin(takes_tokens=False)
    for _ in range(10):  # one at a time while the first runs, 8 seconds each
        use.begin(takes_tokens=False)
        clock.now += 8
        use.end()
    use.begin(takes_tokens=False)
    assert refusal(use).retry_after == pytest.approx(8, abs=4)
    clock.now += 60  # no request has ended since: after 8 seconds the limit would still be reached
    assert refusal(use).retry_after >= 60


def test_a_key_in_debt_is_let_in_exactly_when_retry_after_is_over() -> None:
    clock = Clock()
    use = limited(clock, tokens_per_minute=600)
    use.begin(takes_tokens=True)
    use.charge(900)  # 600 were there: 300 in debt, and 10 come each second
    refused = refusal(use, takes_tokens=True)
    wait = refused.retry_after
    assert (refused.code, wait) == ("key_tokens_exceeded", 31)
    assert "'alice' has used its 600 tokens a minute" in str(refused)
    clock.now += wait - 1
    refusal(use, takes_tokens=True)
    use.begin(takes_tokens=False)  # a request without tokens does not wait
    clock.now += 1
    use.begin(takes_tokens=True)


def test_no_more_than_a_minutes_tokens_are_saved_up() -> None:
    clock = Clock()
    use = limited(clock, tokens_per_minute=60)
    clock.now += 3600
    use.charge(60)
    refusal(use, takes_tokens=True)


def test_over_time_a_key_gets_its_tokens_a_minute_and_no_more() -> None:
    clock = Clock()
    use = limited(clock, tokens_per_minute=1000)
    for _ in range(60 * 60):
        clock.now += 1
        try:
            use.begin(takes_tokens=True)
        except LimitReached:
            continue
        use.charge(150)
        use.end()
    assert use.tokens_total == pytest.approx(61 * 1000, abs=300)


def test_a_limit_that_comes_later_begins_with_a_full_bucket() -> None:
    use = KeyUse("alice", Clock())
    use.charge(10**6)
    use.limits = KeyLimits(tokens_per_minute=10)
    use.begin(takes_tokens=True)
    use.charge(10)
    refusal(use, takes_tokens=True)


def test_limits_that_are_read_again_fill_no_bucket_and_what_accrued_before_is_at_the_old_rate() -> None:
    clock = Clock()
    use = limited(clock, tokens_per_minute=60)
    use.charge(60)
    use.limits = KeyLimits(tokens_per_minute=60)
    assert refusal(use, takes_tokens=True).retry_after == 1
    clock.now += 10  # 10 tokens
    use.limits = KeyLimits(tokens_per_minute=6000)
    use.charge(10)
    refusal(use, takes_tokens=True)
    assert (use.refusals["tokens_per_minute"], use.refusals["max_requests"]) == (2, 0)


def test_a_key_whose_limit_was_lowered_waits_until_as_many_end_as_are_too_many() -> None:
    clock = Clock()
    use = limited(clock)
    for _ in range(40):  # one ends each second while three others run
        for _ in range(4 - use.num_requests):
            use.begin(takes_tokens=False)
        clock.now += 1
        use.end()
    use.limits = KeyLimits(max_requests=1)
    refused = refusal(use)
    assert "has 3 requests in flight; at most 1 are accepted" in str(refused)
    assert refused.retry_after == pytest.approx(3, abs=1)


def test_prompt_and_generated_tokens_of_a_request_are_charged_to_its_key() -> None:
    clock = Clock()
    use = limited(clock, tokens_per_minute=10)
    record = RequestRecord("request", use=use)
    record.count_prompt(7)
    for _ in range(3):
        use.begin(takes_tokens=True)
        record.count_generated()
    refusal(use, takes_tokens=True)
    assert use.tokens_total == record.prompt_tokens + record.generated_tokens == 10
