"""Operations on some ranks of a job, on one axis of a mesh and in any order, in rank processes that meet over gloo."""

from __future__ import annotations

from pathlib import Path

from deploy.ranks import run_ranks

RANK = Path(__file__).with_name("members_rank.py")


def run(case, bundle, tmp_path, world=4):
    """What each rank of a case printed."""
    return run_ranks([RANK, case, bundle, tmp_path / f"init-{case}"], world)


def test_case_b7_groups_that_overlap_and_orders_of_their_own_are_right(exported, tmp_path):
    found = run("subsets", exported, tmp_path)
    assert [set(each.values()) for each in found] == [{True}] * 4
    assert [len(each) for each in found] == [5, 6, 5, 2]


def test_case_b7_b9_what_cannot_be_loaded_is_refused_on_every_rank(exported, tmp_path):
    found = run("refused", exported, tmp_path)
    for each in found:
        assert 'a mesh of one axis; got: 2 axes; pass one axis of it, such as mesh["tp"]' in each["two axes"]
        assert "a mesh has the order of its ranks" in each["both"]
    for each in found[:3]:
        assert "tuned for 2 ranks; got: a group of 3; pass a group of 2, or export for 3" in each["size"]
        assert "the ranks of the group: [0, 1, 2], each once; got: [0, 1, 3]" in each["other ranks"]
    assert "a rank that loads is in the group; got: this one is not" in found[3]["no member"]
    for each in found[2:]:
        assert "(rank 0: gpu-0, rank 1: gpu-0)" in each["sharing"]


def test_each_axis_of_a_mesh_has_its_own_order_and_takes_its_own_dtensors(exported, tmp_path):
    for found in run("axes", exported, tmp_path):
        for name in ("dp", "tp"):
            for what in ("", " place", " dtensor"):
                assert found[name + what] is True, name + what
            assert "in this order; got: a DTensor on [0, 1, 2, 3]; load it with group=mesh" in found[f"{name} other mesh"]


def test_every_library_operation_is_right_in_another_order_of_ranks(exported, tmp_path):
    for found in run("reordered", exported, tmp_path, world=3):
        assert len(found) == 38
        assert found == dict.fromkeys(found, True)
