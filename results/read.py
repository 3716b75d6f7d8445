"""Read a table of measured results back into Python objects, or write one.

    from results.read import read
    read("paper")["default/yacht/sgpr-hmc-m100-pooled/split-0"]["scores"]["rmse"]

`python -m results.read` lists the tables with their numbers of rows. A row is one result, a JSON object; the column
`path` names it. Each other column is one key of the objects, missing where an object does not have it. A column whose
values are all whole numbers, all floats, all booleans or all texts holds them as they are, so that
`pandas.read_parquet("results/paper.parquet")` can filter by them. The values of all other columns are JSON texts; the
schema marks those columns.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
_JSON = {b"values": b"json"}
_ARROW = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}

Results = dict[str, dict[str, Any]]


def read(table: str | Path) -> Results:
    """All results of a table by path; `table` is a file, or the name of one in this folder."""
    file = HERE / f"{table}.parquet" if isinstance(table, str) else table
    rows = pq.read_table(file)
    columns = {}
    for field in rows.schema:
        values = rows[field.name].to_pylist()
        if (field.metadata or {}).get(b"values") == b"json":
            values = [None if value is None else json.loads(value) for value in values]
            missing = [value is None for value in rows[field.name].to_pylist()]
        else:
            missing = [value is None for value in values]
        columns[field.name] = values, missing
    paths, _ = columns.pop("path")
    return {
        path: {name: values[i] for name, (values, missing) in columns.items() if not missing[i]}
        for i, path in enumerate(paths)
    }


def about(table: str | Path) -> dict[str, Any]:
    """What was noted of a table as a whole."""
    file = HERE / f"{table}.parquet" if isinstance(table, str) else table
    return json.loads((pq.read_schema(file).metadata or {}).get(b"about", b"{}"))


def write(file: Path, results: Mapping[str, Mapping[str, Any]], note: Mapping[str, Any] | None = None) -> None:
    """Write results to a table, sorted by path: the same results give the same file."""
    paths = sorted(results)
    names = list(dict.fromkeys(name for path in paths for name in results[path]))
    if "path" in names:
        raise ValueError("a result cannot have a key `path`: that column holds its name")
    fields, arrays = [pa.field("path", pa.string())], [pa.array(paths, pa.string())]
    for name in names:
        present = [results[path][name] for path in paths if name in results[path]]
        kinds = {type(value) for value in present}
        plain = _ARROW.get(kinds.pop()) if len(kinds) == 1 else None
        if plain is None:
            values = [json.dumps(results[path][name]) if name in results[path] else None for path in paths]
        else:
            values = [results[path].get(name) for path in paths]
        fields.append(pa.field(name, plain or pa.string(), metadata=None if plain else _JSON))
        arrays.append(pa.array(values, plain or pa.string()))
    schema = pa.schema(fields, metadata={"about": json.dumps(note or {})})
    texts: Any = [field.name for field in fields if field.type == pa.string() and not field.metadata]
    part = file.with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table(arrays, schema=schema), part, compression="zstd", compression_level=19, use_dictionary=texts
    )
    part.replace(file)


def read_files(folder: Path) -> Results:
    """The JSON files below a folder, by path without the ending."""
    files = sorted(folder.rglob("*.json"))
    return {file.relative_to(folder).with_suffix("").as_posix(): json.loads(file.read_text()) for file in files}


if __name__ == "__main__":
    for found in sorted(HERE.glob("*.parquet")):
        print(f"{found.stem}: {len(read(found))} results")
