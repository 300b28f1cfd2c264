"""Redis URLs are read strictly, and no message quotes what may be a secret."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.redis_url import LONGEST, Login, RedisUrl, Tls, parse, shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h", RedisUrl("redis", "server", (("h", 6379),))),
        ("redis://h:1/3", RedisUrl("redis", "server", (("h", 1),), db=3)),
        ("redis://[::1]:7", RedisUrl("redis", "server", (("::1", 7),))),
        ("redis://h?db=2", RedisUrl("redis", "server", (("h", 6379),), db=2)),
        (
            "unix:///r?username=u&password=p%25",
            RedisUrl("unix", "unix", path="/r", login=Login("u", "p%")),
        ),
        ("redis://:p@h", RedisUrl("redis", "server", (("h", 6379),), login=Login("", "p"))),
        (
            "redis://u%40:p%2F%3A@h",
            RedisUrl("redis", "server", (("h", 6379),), login=Login("u@", "p/:")),
        ),
        (
            "redis://u@h?password_file=/run/s%40x",
            RedisUrl("redis", "server", (("h", 6379),), login=Login("u", "", Path("/run/s@x"))),
        ),
        ("unix:///run/r.sock", RedisUrl("unix", "unix", path="/run/r.sock")),
        (
            "unix://u:p@/run/r.sock?db=1",
            RedisUrl("unix", "unix", path="/run/r.sock", db=1, login=Login("u", "p")),
        ),
        (
            "rediss://h?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k&ssl_check_hostname=no",
            RedisUrl(
                "rediss",
                "server",
                (("h", 6379),),
                tls=Tls(Path("/ca"), Path("/c"), Path("/k"), check_hostname=False),
            ),
        ),
        (
            "redis+sentinel://a,b:2/main/5?sentinel_username=s&sentinel_password=q",
            RedisUrl(
                "redis+sentinel",
                "sentinel",
                (("a", 26379), ("b", 2)),
                service="main",
                db=5,
                sentinel_login=Login("s", "q"),
            ),
        ),
        (
            "rediss+cluster://a:1,b:2",
            RedisUrl("rediss+cluster", "cluster", (("a", 1), ("b", 2)), tls=Tls()),
        ),
    ],
)
def test_a_url_says_all_there_is_to_say(url, said):
    assert parse(url) == said


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "scheme"),
        ("http://:hunter2@h:1", "scheme"),
        ("localhost:6379", "scheme"),
        ("REDIS://h", "scheme"),
        ("redis:///0", "host"),
        ("redis://h:hunter2", "port"),
        ("redis://h:0", "port"),
        ("redis://h:65536", "port"),
        ("redis://h:", "port"),
        ("redis://[::1", "host"),
        ("redis://a,b", "host"),
        ("redis://a,,b", "host"),
        ("redis://a b", "spaces"),
        ("redis://a\n", "spaces"),
        ("redis://h#x", "scheme"),
        ("redis://h/x", "db"),
        ("redis://h/1/2", "path"),
        ("redis://h/1?db=1", "path"),
        ("redis://h?db=x", "db"),
        ("redis://h?db=-1", "db"),
        ("redis://h?db=1&db=1", "'db': given twice"),
        ("redis://h?db=", "'db': empty"),
        ("redis://h?socket_timeout=1", "option 'socket_timeout': unknown"),
        ("redis://h?hunter2", "option: unknown"),
        ("redis://u:hunter2/x@h", "percent-encoded"),
        ("redis://u:hunter2?x@h", "option: unknown"),
        ("redis://u:hunter2%@h", "password"),
        ("redis://u:%ff@h", "password"),
        ("redis://u@h", "password"),
        ("redis://u:hunter2@h?password_file=/f", "password_file"),
        ("redis://u:hunter2@h?password=hunter2", "not both"),
        ("redis://h?username=u", "password"),
        ("redis://h?ssl_ca_certs=/ca", "ssl_ca_certs"),
        ("rediss://h?ssl_certfile=/c", "ssl_certfile and ssl_keyfile"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("rediss://h?ssl_check_hostname=maybe", "ssl_check_hostname"),
        ("redis://h?protocol=4", "protocol"),
        ("redis://h?sentinel_password=hunter2", "sentinel_password"),
        ("redis+sentinel://h", "service"),
        ("redis+sentinel://h/a%20b", "service"),
        ("redis+sentinel://h/s?sentinel_username=u", "sentinel_username"),
        ("redis+cluster://h/1", "db"),
        ("redis+cluster://" + ",".join("h" * 65), "host"),
        ("unix://h/run", "host"),
        ("unix://", "path"),
        ("redis://" + "h" * LONGEST, "longer"),
    ],
)
def test_what_is_wrong_is_named_in_one_line_without_secrets(url, part):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as told:
        parse(url)
    assert part in str(told.value)
    assert "hunter2" not in str(told.value)
    assert shown(url) == "(malformed)"


def test_what_is_shown_has_no_secrets():
    url = "rediss+sentinel://u:hunter2@a:1,[::1]:2/main/3?sentinel_password=hunter2"
    assert shown(url) == "rediss+sentinel://a:1,[::1]:2/main/3"
    assert "hunter2" not in repr(parse(url))


@given(st.text(max_size=60), st.sampled_from(["", "redis://", "rediss+cluster://", "unix://"]))
def test_any_text_is_a_url_or_a_value_error(text, scheme):
    told = ""
    try:
        parse(scheme + text)
    except ValueError as error:
        told = str(error)
    assert "\n" not in told
