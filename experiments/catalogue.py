"""The named data sets: shape, columns, hash, source, licence and raw format of each."""

import gzip
import io
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

UCI_LICENCE = "CC BY 4.0"
NO_LICENCE = "none stated"


class Mirror(NamedTuple):
    """A public address and how its bytes become the whole table (`parse` raises ValueError if it cannot)."""

    url: str
    parse: Callable[[bytes], np.ndarray]


@dataclass(frozen=True)
class Source:
    """One named data set.

    `shape` counts the target, which is the last of `columns`. `sha256` is of the values, not of the file
    (float64, little-endian, row by row), so neither compression nor trailing zeros matter. `by_hand` says why
    a set without mirrors has none. `paper_rows` is set where the paper's runs use only the first rows.
    """

    name: str
    shape: tuple[int, int]
    columns: tuple[str, ...]
    sha256: str
    citation: str
    licence: str
    mirrors: tuple[Mirror, ...] = ()
    by_hand: str = ""
    paper_rows: int | None = None

    @property
    def file_names(self) -> tuple[str, str]:
        """The names under which a directory may hold it, first choice first."""
        return f"{self.name}.csv", f"{self.name}.csv.gz"


def parse_table(raw: bytes) -> np.ndarray:
    """The library's own format: CSV with a header row, gzip or not."""
    if raw.startswith(b"\x1f\x8b"):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"truncated or damaged gzip ({error})") from None
    return parse_separated(raw)


def parse_separated(raw: bytes, separator: str = ",", columns: int | None = None) -> np.ndarray:
    """A header line, then rows of numbers with a separator, of which the first `columns` count."""
    return _numbers([(i, line.split(separator)[:columns]) for i, line in _lines(raw, skip=1)])


def parse_whitespace(raw: bytes) -> np.ndarray:
    """Rows of numbers with blanks between them and no header."""
    return _numbers([(i, line.split()) for i, line in _lines(raw, skip=0)])


def parse_semicolons(raw: bytes) -> np.ndarray:
    """One header line, then numbers with semicolons between them."""
    return parse_separated(raw, separator=";")


def parse_energy(raw: bytes) -> np.ndarray:
    """A CSV of ten columns: eight inputs, heating load and, not used here, cooling load."""
    return parse_separated(raw, columns=9)


def parse_statlib_boston(raw: bytes) -> np.ndarray:
    """22 lines of text, then each row on two lines (11 and 3 numbers)."""
    lines = [(i, line.split()) for i, line in _lines(raw, skip=22)]
    if len(lines) % 2:
        raise ValueError("an odd number of lines, where each row has two")
    return _numbers([(i, head + tail) for (i, head), (_, tail) in zip(lines[::2], lines[1::2], strict=True)])


def zip_member(member: str, parse: Callable[[bytes], np.ndarray]) -> Callable[[bytes], np.ndarray]:
    """Parser of one file within a zip archive."""

    def parse_member(raw: bytes) -> np.ndarray:
        try:
            return parse(zipfile.ZipFile(io.BytesIO(raw)).read(member))
        except (KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"not a zip archive with {member} ({error})") from None

    return parse_member


def _lines(raw: bytes, skip: int) -> list[tuple[int, str]]:
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"not a text file ({error})") from None
    return [(i, line) for i, line in enumerate(lines, start=1) if i > skip and line.strip()]


def _numbers(rows: list[tuple[int, list[str]]]) -> np.ndarray:
    if not rows:
        raise ValueError("it has no rows")
    width, values = len(rows[0][1]), []
    for i, cells in rows:
        if len(cells) != width:
            raise ValueError(f"line {i} has {len(cells)} values where the first row has {width}")
        values.append([_number(cell, i) for cell in cells])
    return np.array(values, dtype=np.float64)


def _number(cell: str, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"line {line} holds {cell[:40]!r} where a number is expected") from None


UCI = "https://archive.ics.uci.edu"


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_BOSTON = _names("CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT MEDV")

_RECORDS = (
    Source(
        name="boston",
        shape=(506, 14),
        columns=_BOSTON,
        sha256="832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7",
        citation="Harrison, D. and Rubinfeld, D. L. (1978). Hedonic housing prices and the demand for clean "
        "air. Journal of Environmental Economics and Management 5, 81-102.",
        licence=NO_LICENCE,
        mirrors=(
            Mirror(f"{UCI}/ml/machine-learning-databases/housing/housing.data", parse_whitespace),
            Mirror("http://lib.stat.cmu.edu/datasets/boston", parse_statlib_boston),
        ),
    ),
    Source(
        name="boston_as_published",
        shape=(506, 14),
        columns=_BOSTON,
        sha256="e7ea163bde28a53073e4a0b3aa656cfc0c6ed145cd020f766b22d77862b4729c",
        citation="Boston after a fixed-width reader that cut the leading digit of 191 cells (RAD, CRIM, "
        "DIS), as in the runs behind the paper. Only for comparing with the paper.",
        licence=NO_LICENCE,
        by_hand="it is the boston table as damaged in the paper's runs, and nobody publishes it; for "
        "anything but a comparison with the paper use 'boston'",
    ),
    Source(
        name="concrete",
        shape=(1030, 9),
        columns=_names(
            "cement blast_furnace_slag fly_ash water superplasticizer coarse_aggregate "
            "fine_aggregate age compressive_strength"
        ),
        sha256="8b9a7af0366e0f437ad04cfba6bb729ec0c3ea76fa780ff3d3f4d057356b6af6",
        citation="Yeh, I-C. (1998). Concrete Compressive Strength. UCI Machine Learning Repository. "
        "https://doi.org/10.24432/C5PK67",
        licence=UCI_LICENCE,
        by_hand="its source is an Excel file, which this library does not read: save Concrete_Data.xls from "
        f"{UCI}/static/public/165/concrete+compressive+strength.zip as CSV, with all digits",
    ),
    Source(
        name="energy",
        shape=(768, 9),
        columns=_names(
            "relative_compactness surface_area wall_area roof_area overall_height orientation "
            "glazing_area glazing_area_distribution heating_load"
        ),
        sha256="55a81ed6bb3f8269707924abcbc07e3a5fe403e4407f765e4e0ac4538cc64060",
        citation="Tsanas, A. and Xifara, A. (2012). Energy Efficiency. UCI Machine Learning Repository. "
        "https://doi.org/10.24432/C51307",
        licence=UCI_LICENCE,
        mirrors=(Mirror(f"{UCI}/static/public/242/data.csv", parse_energy),),
    ),
    Source(
        name="winered",
        shape=(1599, 12),
        columns=_names(
            "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides "
            "free_sulfur_dioxide total_sulfur_dioxide density pH sulphates alcohol quality"
        ),
        sha256="d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac",
        citation="Cortez, P., Cerdeira, A., Almeida, F., Matos, T. and Reis, J. (2009). Wine Quality. UCI "
        "Machine Learning Repository. https://doi.org/10.24432/C56S3T",
        licence=UCI_LICENCE,
        mirrors=(
            Mirror(f"{UCI}/ml/machine-learning-databases/wine-quality/winequality-red.csv", parse_semicolons),
            Mirror(
                f"{UCI}/static/public/186/wine+quality.zip",
                zip_member("winequality-red.csv", parse_semicolons),
            ),
        ),
    ),
    Source(
        name="yacht",
        shape=(308, 7),
        columns=_names(
            "lcb_position prismatic_coefficient length_displacement_ratio beam_draught_ratio "
            "length_beam_ratio froude_number residuary_resistance"
        ),
        sha256="ec08588637fd93582116a1ead33f0c1e787dae755168073608e030e5282a3f4e",
        citation="Gerritsma, J., Onnink, R. and Versluis, A. (1981). Yacht Hydrodynamics. UCI Machine "
        "Learning Repository. https://doi.org/10.24432/C5XG7R",
        licence=UCI_LICENCE,
        mirrors=(
            Mirror(f"{UCI}/ml/machine-learning-databases/00243/yacht_hydrodynamics.data", parse_whitespace),
            Mirror(
                f"{UCI}/static/public/243/yacht+hydrodynamics.zip",
                zip_member("yacht_hydrodynamics.data", parse_whitespace),
            ),
        ),
        paper_rows=307,
    ),
    Source(
        name="elevators",
        shape=(16599, 19),
        columns=_names(
            "climbRate Sgz p q curRoll absRoll diffClb diffRollRate diffDiffClb SaTime1 SaTime2 "
            "SaTime3 SaTime4 diffSaTime1 diffSaTime2 diffSaTime3 diffSaTime4 Sa log_Goal_centred"
        ),
        sha256="c9d3c4932a328774db34da0578c6c192a51b4a36ce8b6f4311f0a253efcf5dee",
        citation="Torgo, L. Regression data sets: elevators. Inputs centred, target log(Goal) centred, five "
        "significant digits; the row order is probably, not provably, that of the paper.",
        licence=NO_LICENCE,
        by_hand="no public copy is known in this form (centred, log target, five significant digits)",
    ),
)

SOURCES: dict[str, Source] = {record.name: record for record in _RECORDS}
