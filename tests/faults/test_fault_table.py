"""The README says what the tests show: its table of faults is made from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from table import README, TableError, all_rows, covered, main, table, with_table


def test_the_readme_has_the_table_that_the_tests_make() -> None:
    readme = README.read_text()
    assert with_table(readme, table(covered())) == readme, "run: python tests/faults/table.py --write"


def test_every_row_has_a_test() -> None:
    assert list(covered()) == list(all_rows())


def test_the_table_is_printed_and_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "| C1 |" in capsys.readouterr().out
    assert main(["--what"]) == 2


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('@pytest.mark.fault("C99")\ndef test_a():\n    """x"""\n', "C99"),
        ('@pytest.mark.fault("C1")\nasync def test_a():\n    pass\n', "docstring"),
    ],
)
def test_a_test_that_fits_no_row_or_says_nothing_is_refused(tmp_path: Path, body: str, complaint: str) -> None:
    (tmp_path / "test_x.py").write_text(body)
    with pytest.raises(TableError, match=complaint):
        covered(tmp_path)


def test_several_tests_of_a_row_and_several_rows_of_a_test_are_joined(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        '@pytest.mark.fault("C2")\n@pytest.mark.fault("S1", "C1")\ndef test_a():\n    """One | two.\n    Three."""\n'
        '@pytest.mark.fault("C1")\ndef test_b():\n    """Four."""\n'
    )
    found = covered(tmp_path)
    assert list(found) == ["C1", "C2", "S1"]
    assert "| C1 | One \\| two. Three. Four. |" in table(found)
