"""`tilescale topology`: the machines that are described, or one of them, or the one at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilescale.commands.output import FAILED, reported, say, show, show_json, table
from tilescale.commands.target import AsJson, topology_named
from tilescale.errors import TopologyError

if TYPE_CHECKING:
    from tilescale.spec.topology import Topology

Name = Annotated[
    str | None, typer.Argument(help="NAME, scale_model:NAME, shared_gpu, FILE.toml, or 'here'.", show_default=False)
]


def topology(
    name: Name = None,
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="How many of its GPUs, or virtual ranks.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe machines, and say if a GPU is here."""
    with reported():
        if name is None:
            _list(as_json)
            return
        from tilescale import canon

        found = _here() if name == "here" else topology_named(name, ranks)
        gpus = _gpus() if name == "here" else []
        if as_json:
            show_json({**canon.encode(found), **_facts(found), **({"gpus": gpus} if gpus else {})})
            return
        for key, value in _facts(found).items():
            show(f"{key}: {value}")
        table(
            ["level", "units", "memory bytes", "link", "GB/s"],
            [
                [
                    level.name,
                    level.units,
                    level.memory_bytes,
                    level.link.kind if level.link else "",
                    level.link.gbps if level.link else None,
                ]
                for level in found.levels
            ],
        )
        if gpus:
            from tilescale.spec import detect

            if detect.numbers_are_cudas():
                say("CUDA may number GPUs otherwise than shown: name them by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID")
            table(list(gpus[0]), [[_words(value) for value in each.values()] for each in gpus])


def _here() -> Topology:
    from tilescale.spec.topology import Topology

    try:
        return Topology.detect()
    except TopologyError as error:
        say(f"error: {error}")
        raise typer.Exit(FAILED) from None  # asked rightly; it is not there


def _gpus() -> list[dict[str, Any]]:
    """The visible GPUs in the order of ranks; GPUs that they reach are named by the index of NVML too."""
    from tilescale.spec import detect

    return [
        {
            "rank": rank,
            "index": device.index,
            "uuid": device.uuid,
            "bus": device.bus,
            "numa": device.numa,
            "memory_bytes": device.memory_bytes,
            "nvlinks": device.active_nvlinks,
            "to_switch": device.switch_links,
            "direct": list(device.direct),
            "peers": list(device.peers),
            "atomics": list(device.atomics),
        }
        for rank, device in enumerate(detect.devices())
    ]


def _words(value: object) -> object:
    return (" ".join(map(str, value)) or "none") if isinstance(value, list) else value


def _list(as_json: bool) -> None:
    from tilescale.spec import catalog
    from tilescale.tuner.runners import gpu_note

    shipped = [_facts(catalog.load_named(name).topology()) for name in catalog.names()]
    if as_json:
        show_json({"here": gpu_note(), "topologies": shipped})
        return
    show(gpu_note())
    table(list(shipped[0]), [list(facts.values()) for facts in shipped])


def _facts(topology: Topology) -> dict[str, Any]:
    return {
        "name": topology.name,
        "kind": topology.kind,
        "ranks": topology.ranks,
        "gpu": topology.gpu.model,
        "arch": topology.gpu.arch,
        "sms_a_rank": topology.sm_share,
        "link": topology.link.kind,
        "link_gbps": topology.link.gbps,
        "peer_access": topology.link.peer_access,
        "multicast": topology.link.multicast,
        "times_are": topology.source,
        "digest": topology.digest,
    }
