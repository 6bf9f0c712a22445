"""The README's table of faults, from the markers and docstrings of the tests that cover them; none is run.

python tests/faults/table.py            # print it
python tests/faults/table.py --write    # put it into the README
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
README = FOLDER.parent.parent / "README.md"
BEGIN, END = "<!-- faults: begin (tests/faults/table.py --write) -->", "<!-- faults: end -->"
SECTIONS = {"C": ("The contract", 18), "S": ("The stream", 17), "L": ("Choice and load", 10), "H": ("HTTP", 12)}
"""Name of each section of the fault list, and how many rows it has."""


class TableError(ValueError):
    """A test that the table cannot be made from; the message names it."""


def all_rows() -> list[str]:
    """Every row of the fault list, in its order."""
    return [f"{letter}{number}" for letter, (_, count) in SECTIONS.items() for number in range(1, count + 1)]


def covered(folder: Path = FOLDER) -> dict[str, list[str]]:
    """Docstrings of the tests by row, rows in the order of the list, tests in the order of the files.

    Raises:
        TableError: a test without a docstring, or of a row that the list does not have.
    """
    found: dict[str, list[str]] = {row: [] for row in all_rows()}
    for path in sorted(folder.glob("test_*.py")):
        for row, name, sentence in _tests(path):
            if row not in found:
                raise TableError(f"{path.name}: {name} covers {row!r}, which is no row of the list")
            if not sentence:
                raise TableError(f"{path.name}: {name} has no docstring")
            found[row].append(" ".join(sentence.split()))
    return {row: sentences for row, sentences in found.items() if sentences}


def _tests(path: Path) -> Iterator[tuple[str, str, str | None]]:
    """Row, name and docstring of each marked test of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for row in _marked(node):
                yield row, node.name, ast.get_docstring(node)


def _marked(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def table(rows: dict[str, list[str]]) -> str:
    """Markdown: a table a section."""
    parts = []
    for letter, (title, _) in SECTIONS.items():
        lines = [f"| {row} | {_cell(rows[row])} |" for row in rows if row[0] == letter]
        if lines:
            parts.append("\n".join([f"| | {title} |", "|---|---|", *lines]))
    return "\n\n".join(parts)


def _cell(sentences: list[str]) -> str:
    return " ".join(dict.fromkeys(sentences)).replace("|", "\\|")


def with_table(readme: str, made: str) -> str:
    """The README with the table between its marks.

    Raises:
        TableError: the marks are not there.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise TableError(f"the README has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main(argv: list[str]) -> int:
    """Print the table, or write it; the exit status."""
    made = table(covered())
    if argv == ["--write"]:
        README.write_text(with_table(README.read_text(), made))
    elif argv:
        print("usage: table.py [--write]", file=sys.stderr)
        return 2
    else:
        print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
