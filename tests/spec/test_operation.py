"""Operations: what goes between processes is the name of one."""

from __future__ import annotations

import pickle

from support import reduction

from tilescale.spec.operation import OPERATIONS


def test_an_operation_comes_back_as_the_one_of_its_name() -> None:
    assert len(OPERATIONS) > 10
    for operation in OPERATIONS:
        assert pickle.loads(pickle.dumps(operation)) is operation


def test_a_declaration_comes_back_with_its_operation() -> None:
    spec = reduction()
    found = pickle.loads(pickle.dumps(spec))
    assert found == spec
    assert found.operation is spec.operation
