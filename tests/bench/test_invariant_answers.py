"""What is shown of answers with the batch-invariant mode and without."""

from research.invariant_answers import parser, rows, show


def figures(tokens_s, cpu_ms):
    return [{"tokens_s": a, "cpu_ms": b} for a, b in zip(tokens_s, cpu_ms, strict=True)]


def test_both_modes_are_compared_pair_by_pair():
    report = {
        "figures": {
            "plain 1 without": figures((10, 40, 30), (50, 52, 54)),
            "plain 1 with": figures((9, 30, 30), (60, 52, 54)),
        },
        "load": {"min": 1.2, "max": 7.9},
    }
    [row] = rows(report)
    assert (row["tokens_s without"], row["tokens_s with"]) == (30, 30)
    assert row["tokens_s ratio"] == "0.90 (0.75-1.00)"
    assert row["cpu_ms ratio"] == "1.00 (1.00-1.20)"
    assert show(report).endswith("load 1 to 8")


def test_its_crowds_are_those_of_the_page_unless_told():
    assert parser().parse_args([]).crowds == (1, 8, 16)
    assert parser().parse_args(["--crowds", "2", "3"]).crowds == [2, 3]
