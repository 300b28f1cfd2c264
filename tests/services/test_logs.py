"""Log lines, plain and JSON."""

import io
import json
import logging
import sys

import pytest

from services.contract.errors import InvalidRequest, StartError
from services.runtime.logs import JsonFormatter, explained, setup_logging


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    kept = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = kept


def test_json_logs_are_one_object_a_line_with_the_given_context():
    formatter = JsonFormatter(lambda: {"trace_id": "abc"})
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord(
            "a.b", logging.WARNING, "f", 1, "said %s", ("x",), sys.exc_info()
        )
    line = formatter.format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields["message"] == "said x"
    assert (fields["level"], fields["logger"]) == ("warning", "a.b")
    assert fields["trace_id"] == "abc"
    assert "ValueError" in fields["exception"]


def test_setting_logs_up_twice_leaves_one_handler(root_logger, capsys):
    setup_logging(json=False)
    setup_logging(json=True, level="info")
    logging.getLogger("x").info("hello")
    assert len(root_logger.handlers) == 1
    assert json.loads(capsys.readouterr().err)["message"] == "hello"


def raised(error, cause=None):
    try:
        try:
            raise cause or KeyError("never shown")
        except Exception as first:
            raise error from (first if cause else None)
    except Exception as caught:
        return caught


TEXT = "the prompt of somebody"


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize(
    "error", [KeyError(TEXT), ValueError(TEXT), InvalidRequest("stop", TEXT, "text")]
)
def test_what_an_exception_quotes_is_in_no_log_line(root_logger, capsys, error, json):
    setup_logging(json=json)
    logging.getLogger("x").error("it failed", exc_info=raised(error))
    logging.getLogger("x").error("it failed", exc_info=raised(StartError("no file"), error))
    written = capsys.readouterr().err
    assert TEXT not in written
    assert written.count(type(error).__name__) >= 2
    assert __file__ in written
    assert "StartError: no file" in written


def test_an_exception_that_speaks_of_the_machine_is_logged_with_its_cause_first():
    text = explained(raised(RuntimeError("out of memory"), OSError(28, "No space left")))
    assert "OSError: [Errno 28] No space left" in text
    assert text.index("No space left") < text.index("which led to") < text.index("out of memory")


def test_a_loop_of_causes_ends():
    error = raised(RuntimeError("a"))
    error.__cause__ = error
    assert explained(error).count("RuntimeError: a") == 8


def test_a_line_without_an_exception_under_way_is_written(root_logger, capsys):
    setup_logging()
    logging.getLogger("x").exception("nothing raised")
    assert "nothing raised" in capsys.readouterr().err


def test_a_line_that_cannot_be_written_is_dropped_in_silence(root_logger, monkeypatch, capsys):
    closed = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", closed)
        setup_logging()
    closed.close()
    logging.getLogger("x").error("it failed", exc_info=raised(KeyError(TEXT)))
    assert capsys.readouterr().err == ""
