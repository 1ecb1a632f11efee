"""Rows of a table: a Parquet file that pandas reads, one row a sample.

    python examples/python_datasets/table_rows.py

Numbers become one float32 array, the text of a column stays text. Rows are small: `cache="items"` keeps all. """

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import larder
import numpy as np
import two_jobs

COUNT = 600
NUMBERS = ["age", "income", "visits"]


def write(folder: Path) -> None:
    import pandas as pd

    r = np.random.default_rng(0)
    table = pd.DataFrame({
        "age": r.integers(18, 90, COUNT), "income": r.normal(3000, 800, COUNT), "visits": r.poisson(3, COUNT),
        "town": r.choice(["Bern", "Basel", "Zürich"], COUNT),
    })
    table["bought"] = table["visits"] > 3
    table.to_parquet(folder / "customers.parquet")


class Rows:
    """A row as (numbers, town, label)."""

    def __init__(self, path: Path) -> None:
        import pandas as pd

        self.table = pd.read_parquet(path)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[np.ndarray, str, int]:
        row = self.table.iloc[index]
        return row[NUMBERS].to_numpy(np.float32), str(row["town"]), int(row["bought"])


def train(job: int, epochs: int, folder: Path) -> None:
    rows = Rows(folder / "customers.parquet")
    loader = larder.Loader(
        rows, name="customers", cache="items", batch_size=50, shuffle=True, num_workers=1, job=f"table-{job}"
    )
    with loader:
        for epoch in range(epochs):
            count, bought, towns = 0, 0, set()
            for numbers, town, label in loader:
                assert numbers.shape[1:] == (len(NUMBERS),) and len(town) == len(label)
                count, bought, towns = count + len(label), bought + int(label.sum()), towns | set(town)
            print(f"job {job}, epoch {epoch}: {count} rows, {bought} bought, {len(towns)} towns", flush=True)


if __name__ == "__main__":
    missing = [m for m in ("pandas", "pyarrow") if importlib.util.find_spec(m) is None]
    if missing:
        sys.exit(f"this example needs {' and '.join(missing)}")
    sys.exit(two_jobs.main(train, write))
