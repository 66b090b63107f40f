# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Pairs of released hosts, each in its own environment; and the table in the documentation."""

import csv
from pathlib import Path

import pytest
import verify
from releases import ALWAYS
from releases import PAIRS
from releases import Pair

ALL = [pytest.param(pair, marks=[] if pair in ALWAYS else pytest.mark.slow, id=pair.models) for pair in PAIRS]


@pytest.mark.parametrize("pair", ALL)
def test_pair(pair: Pair, tmp_path: Path) -> None:
    worst = verify.check_pair(pair, tmp_path)
    assert set(worst) == {"layers", "transformer_layers", "by_variable", "by_configuration"}
    assert (worst["by_configuration"] is None) == (not pair.takes_options)


def test_wrong_answers_are_noticed() -> None:
    pair = ALWAYS[0]
    for wrong in (1e-3, float("nan"), None):
        with pytest.raises(verify.Mismatch, match=r"0\.3\.1, layers: off by"):
            verify._worst_layer(pair, "layers", {"self, window": {"definition": wrong, "released": 0.0}})
    # What the release ignores is not held against it.
    assert verify._worst_layer(pair, "layers", {"self, window": {"definition": 1e-7, "released": 0.3}}) == 1e-7
    with pytest.raises(verify.Mismatch, match="off by"):
        verify._worst_layer(ALWAYS[-1], "layers", {"self, window": {"definition": 1e-7, "released": 0.3}})


def test_the_table_has_all_pairs() -> None:
    table = verify.HERE.parent / "docs" / "compatibility.csv"
    head, *rows = csv.reader(table.read_text().splitlines())
    assert tuple(head) == verify.HEAD
    assert [tuple(row[:2]) for row in rows] == [(pair.models, pair.inference) for pair in PAIRS]
