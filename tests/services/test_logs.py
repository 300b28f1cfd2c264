"""Log lines, plain and JSON."""

import json
import logging
import sys

import pytest

from services.common.logs import JsonFormatter, setup_logging


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
