from __future__ import annotations

from dataclasses import replace

from support import local_gemm

from tilescale.costmodel.analytic import predict
from tilescale.costmodel.product import product_us
from tilescale.schedules.schedule import Schedule

BASE = Schedule(compute="generated", block_m=128, block_n=256, block_k=64, num_stages=4, raster_group=8)


def test_more_work_takes_longer() -> None:
    small, large = local_gemm((4096, 4096, 4096)), local_gemm((4096, 4096, 8192))
    assert 1.8 < product_us(large, BASE) / product_us(small, BASE) < 2.0


def test_tiles_that_leave_no_wave_half_empty_are_preferred() -> None:
    spec = local_gemm((4096, 1280, 8192))  # 160 tiles of 128x256 are more than one wave of 132, 128 of 256x160 fill it
    assert product_us(spec, replace(BASE, block_m=256, block_n=160)) < product_us(spec, BASE)


def test_a_contraction_is_shared_where_tiles_are_few_and_it_is_long() -> None:
    one, four = replace(BASE, block_n=128, num_stages=6), replace(BASE, block_n=128, num_stages=6, split_k=4)
    few, many = local_gemm((512, 768, 16384)), local_gemm((4096, 4096, 1024))
    assert product_us(few, four) < product_us(few, one)
    assert product_us(many, one) < product_us(many, four)


def test_shared_tiles_take_longer_than_measured_whole_ones_and_less_so_in_clusters() -> None:
    spec, whole = local_gemm((8192, 8192, 4096)), local_gemm((4096, 8448, 4096))
    short = replace(BASE, block_m=128)  # 2048 tiles are 15 waves of 132 and 68 tiles; 1056 are 8 waves
    alone, pairs = (product_us(spec, replace(short, stream_k=2, cluster_m=size)) for size in (1, 2))
    assert product_us(spec, short) < pairs < alone
    assert product_us(whole, short) < product_us(whole, replace(short, stream_k=2))


def test_stores_beneath_products_cost_less_where_there_are_many_waves() -> None:
    spec, small = local_gemm((8192, 8192, 512)), replace(BASE, block_n=128)
    assert product_us(spec, replace(small, consumers="pingpong")) < product_us(spec, small)


def test_leaving_sums_costs_more_than_it_saves_where_a_contraction_is_short() -> None:
    spec = local_gemm((4096, 4096, 512))
    assert product_us(spec, BASE) < product_us(spec, replace(BASE, stream_k=2))


def test_weights_are_read_by_enough_blocks() -> None:
    spec = local_gemm((1, 1280, 8192))
    one = replace(BASE, block_m=8, block_n=64, block_k=256, num_stages=5, raster_group=4)
    assert product_us(spec, replace(one, split_k=4)) < product_us(spec, one)


def test_the_simulation_of_a_plan_takes_what_the_product_takes() -> None:
    spec = local_gemm((4096, 4096, 4096))
    assert 0 < predict(spec, BASE).us - product_us(spec, BASE) < 10
