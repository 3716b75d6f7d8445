"""What is said of a column that is not numeric."""

from pathlib import Path

import pandas as pd
import pytest

from integrand.data.tables import Table, read_table
from integrand.errors import InputError


def said(column):
    with pytest.raises(InputError) as error:
        Table(Path("t.csv"), pd.DataFrame({"a": column})).columns(["a"])
    return str(error.value).removeprefix("t.csv: column 'a' is not numeric: ")


@pytest.mark.parametrize("column", [["red", "green", "red"], ["red", "1", "green"], ["red", "1"]])
def test_a_column_of_words_is_to_be_encoded(column):
    assert (
        said(column) == "name it in the kernel, as in --kernel \"categorical('a')*rbf\", or leave it out with --drop a"
    )


def test_words_among_numbers_are_named():
    assert said(["1", "2.5", "abc", "4"]) == "one of its values is no number, the first 'abc' in row 3: " + MEND
    assert said(["1", "?", None, "n/a!", "4", "7"]).startswith("2 of its values are no numbers, the first '?' in row 2")


def test_a_file_with_one_bad_cell(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n2,3\noops,4\n5,6\n")
    with pytest.raises(InputError, match=r"'oops' in row 3"):
        read_table(tmp_path / "t.csv").split("b")


MEND = "mend or drop such rows"
