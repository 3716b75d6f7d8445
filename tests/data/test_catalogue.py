import io
import zipfile

import numpy as np
import pytest

from integrand.data.catalogue import (
    SOURCES,
    parse_energy,
    parse_semicolons,
    parse_statlib_boston,
    parse_whitespace,
    zip_member,
)


def test_catalogue_is_consistent():
    for name, source in SOURCES.items():
        assert source.name == name
        assert len(source.columns) == source.shape[1] == len(set(source.columns))
        assert bool(source.mirrors) != bool(source.by_hand)
        assert len(source.sha256) == 64
        assert source.citation
        assert source.licence


def test_blanks_of_any_width_and_empty_lines():
    raw = b" 1   2.50\n\n.5\t-3e-4 \n\n"
    np.testing.assert_array_equal(parse_whitespace(raw), [[1, 2.5], [0.5, -3e-4]])


def test_semicolons_with_quoted_header():
    raw = b'"fixed acidity";"quality"\r\n7.4;5\r\n7.8;6\r\n'
    np.testing.assert_array_equal(parse_semicolons(raw), [[7.4, 5], [7.8, 6]])


def test_energy_keeps_heating_and_drops_cooling_load():
    raw = b"X1,X2,X3,X4,X5,X6,X7,X8,Y1,Y2\n1,2,3,4,5,6,7,8,15.5,21.3\n"
    np.testing.assert_array_equal(parse_energy(raw), [[1, 2, 3, 4, 5, 6, 7, 8, 15.5]])


def test_statlib_rows_span_two_lines():
    rows = np.arange(28.0).reshape(2, 14)
    body = "".join(" ".join(map(str, row[:11])) + "\n  " + " ".join(map(str, row[11:])) + "\n" for row in rows)
    raw = ("text\n" * 21 + "\n" + body).encode()
    np.testing.assert_array_equal(parse_statlib_boston(raw), rows)
    with pytest.raises(ValueError, match="odd number"):
        parse_statlib_boston(raw + b"1 2 3\n")


def test_zip_member_reads_one_file():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inner.data", b"1 2\n3 4\n")
    np.testing.assert_array_equal(zip_member("inner.data", parse_whitespace)(buffer.getvalue()), [[1, 2], [3, 4]])
    for member, raw in (("other.data", buffer.getvalue()), ("inner.data", buffer.getvalue()[:40])):
        with pytest.raises(ValueError, match="not a zip archive with"):
            zip_member(member, parse_whitespace)(raw)
