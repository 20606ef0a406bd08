"""Grid arithmetic: the right numbers, clear refusals, and no way to run code."""

from __future__ import annotations

import re
import threading
import time

import pytest

from faperf.arithmetic import LIMIT, ExpressionError, evaluate, evaluate_real

NAMES = {"B": 2, "H": 64, "S": 1000, "D": 128}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (7, 7),
        (-7, -7),
        ("7", 7),
        ("  7\n", 7),
        ("0x10", 16),
        ("58 * 1024", 59392),
        ("B * H", 128),
        ("S - D", 872),
        ("S + D", 1128),
        ("S / 8", 125),
        ("S // 128", 7),
        ("S % 128", 104),
        ("cdiv(S, 128)", 8),
        ("cdiv(1024, 128)", 8),
        ("cdiv(1, 128)", 1),
        ("cdiv(0, 128)", 0),
        ("min(S, D)", 128),
        ("max(S, D)", 1000),
        ("-S", -1000),
        ("--S", 1000),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("20 - 5 - 3", 12),
        ("64 / 8 / 2", 4),
        ("max(cdiv(S, 64) * B, min(H, 3))", 32),
        ("5 * 64 * 256 + 72", 81992),
    ],
)
def test_value(expression: int | str, value: int) -> None:
    answer = evaluate(expression, NAMES)
    assert answer == value
    assert type(answer) is int


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("S / 128", "'S / 128': 1000 / 128 leaves 104 (cdiv rounds up, // down)"),
        ("7 / 2", "7 / 2 leaves 1"),
        ("S / 0", "divides by zero"),
        ("S // (H - 64)", "divides by zero"),
        ("S % 0", "divides by zero"),
        ("cdiv(S, 0)", "divides by zero"),
        ("T", "'T' names T, which the workload lacks (it has B, H, S, D)"),
        ("s / 8", "names s, which the workload lacks"),
        ("cdiv(S)", "cdiv takes two values"),
        ("max(1, 2, 3)", "max takes two values"),
        ("", "'' is not arithmetic"),
        ("S +", "is not arithmetic"),
        ("1 2", "is not arithmetic"),
        ("1; 2", "is not arithmetic"),
        ("S = 4", "is not arithmetic"),
        ("1\n2", "is not arithmetic"),
        ("\x00", "is not arithmetic"),
        ("1.5", "only + - * / // %"),
        ("1e3", "only + - * / // %"),
        ("2 ** 3", "only + - * / // %"),
        ("1 << 3", "only + - * / // %"),
        ("S & 1", "only + - * / // %"),
        ("~S", "only + - * / // %"),
        ("not S", "only + - * / // %"),
        ("S == 1", "only + - * / // %"),
        ("S if S else 1", "only + - * / // %"),
        ("True", "only + - * / // %"),
        ("None", "only + - * / // %"),
    ],
)
def test_refused(expression: str, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(expression, NAMES)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        (2**63 - 1, True),
        (str(2**63 - 1), True),
        (2**63, False),
        (-(2**63), False),
        (str(2**63), False),
        ("4294967296 * 2147483647", True),  # 2^63 − 2^32
        ("4294967296 * 2147483648", False),  # 2^63
        ("9223372036854775807 + 1", False),
        ("-9223372036854775807 - 1", False),
        ("9223372036854775807 + 1 - 1", False),  # what is in between must fit as well
        (2**70, False),
    ],
)
def test_64_bits(expression: int | str, fits: bool) -> None:
    if fits:
        assert abs(evaluate(expression, {})) < LIMIT
    else:
        with pytest.raises(ExpressionError, match="64 bits"):
            evaluate(expression, {})


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch ran')",
        "open('ran', 'w')",
        "exec('x = 1')",
        "print(1)",
        "S.__class__",
        "S.real",
        "S[0]",
        "(1).__add__(2)",
        "[n for n in (1, 2)]",
        "{n: n for n in (1, 2)}",
        "(n for n in (1, 2))",
        "lambda: 1",
        "(lambda: 1)()",
        "(x := 5)",
        "'text'",
        "'a' * 1000000000",
        "b'text'",
        "f'{S}'",
        "(1, 2)",
        "[1, 2]",
        "{1, 2}",
        "*S",
        "...",
        "1j",
        "min(*[1, 2])",
        "cdiv(a=1, b=2)",
        "cdiv(**{})",
        "min(1, key=print)",
        "min.__self__(1, 2)",
        "cdiv",
        "await S",
        "yield S",
        "import os",
    ],
)
def test_no_code_runs(expression: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExpressionError):
        evaluate(expression, NAMES)
    assert list(tmp_path.glob("ran")) == []


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9 ** 9",
        "*".join(["9223372036854775807"] * 500),
        "9" * 100_000,
        "(" * 5_000 + "1" + ")" * 5_000,
        "-" * 5_000 + "1",
        "1" + "+1" * 5_000,
        "1" + " // 1" * 100_000,
        "min(1, " * 500 + "1" + ")" * 500,
    ],
    ids=["powers", "products", "digits", "parentheses", "minuses", "sums", "divisions", "calls"],
)
def test_no_expression_takes_long(expression: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ExpressionError) as caught:
        evaluate(expression, NAMES)
    assert time.perf_counter() - started < 2
    assert caught.value.args


@pytest.mark.parametrize("terms", [100, 700, 900, 950, 980, 995, 1_100, 2_000])
def test_a_long_sum_is_right_or_refused(terms: int) -> None:
    """Whatever the depth of the caller's own stack, the outcome is a number or an ExpressionError."""
    try:
        assert evaluate("+".join(["1"] * terms), {}) == terms
    except ExpressionError:
        assert terms > 700


def test_evaluation_in_another_thread() -> None:
    """Versions are resolved in worker threads, whose C stacks are small."""
    answers: list[int | str] = []

    def work() -> None:
        try:
            answers.append(evaluate("-" * 3_000 + "1", {}))
        except ExpressionError:
            answers.append("refused")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers in ([1], ["refused"])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (2, 2.0), (0.125, 0.125), ("1 / sqrt(D * 2)", 0.0625), ("-0.5 * H", -32.0), ("1e-3", 0.001),
        ("S / H", 15.625), ("(B + 1) / 4 - .75", 0.0), ("2 * 3", 6.0),
    ],
)  # fmt: skip
def test_real_scalars(expression: float | str, value: float) -> None:
    assert evaluate_real(expression, NAMES) == value
    assert isinstance(evaluate_real(expression, NAMES), float)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("sqrt(0 - B)", "has no finite value"), ("1 / (B - 2)", "divides by zero"), ("1e999", "has no finite value"),
        (float("nan"), "has no finite value"), ("T * 0.5", "names T, which the workload lacks"), ("S // 3", "only + - * /"),
        ("sqrt(B, 2)", "only + - * /"), ("B ** 2", "only + - * /"), ("open('x')", "only + - * /"),
        ("0.5 0.5", "is not arithmetic"), ("True", "only + - * /"), ("9" * 400, "has no finite value"),
    ],
)  # fmt: skip
def test_what_is_no_real_scalar(expression: float | str, said: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(said)):
        evaluate_real(expression, NAMES)


def test_a_fraction_is_no_integer() -> None:
    with pytest.raises(ExpressionError, match=r"0\.5 is no integer"):
        evaluate(0.5, NAMES)
