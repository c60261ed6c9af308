"""Who takes part in a distributed run, with which prompts, by whose clock; and joining where nobody comes."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from runtime.distributed import Launch, find_launch, share_out
from runtime.rendezvous import compare_clocks
from runtime.workloads import WorkItem
from telemetry.errors import UsageError
from tests.runtime.rank_processes import finish, start, write_hostfile

JOIN = """
import sys
from runtime.distributed import Context, Launch, join
from telemetry.errors import RoundscopeError
try: join(Launch({rank}, "ring"), Context("r", 0, ""), "digest", patience_s={patience_s})
except RoundscopeError as error: sys.exit(str(error))
"""


def test_a_rank_that_is_alone_waits_for_so_long_and_no_longer(tmp_path: Path) -> None:
    hostfile = write_hostfile(tmp_path, 2)
    [(code, out, err)] = finish([start(0, hostfile, JOIN.format(rank=0, patience_s=2))])
    assert (code, out) == (1, "")
    assert err.startswith("the other ranks did not come within 2 s (backend ring): ")


def test_a_hostfile_that_is_none_is_told_from_a_rank_that_is_late(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text("no JSON")
    [(code, _, err)] = finish([start(0, path, JOIN.format(rank=0, patience_s=60))])
    assert code == 1
    assert err.startswith("cannot join the other ranks by MLX's backend ring: ")


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"MLX_RANK": "1"}, None),
        ({"MLX_HOSTFILE": "{hosts}"}, None),
        ({"MLX_RANK": "1", "MLX_HOSTFILE": "{hosts}"}, Launch(1, "ring")),
        ({"MLX_RANK": "0", "MLX_HOSTFILE": "{blank}"}, None),
        ({"MLX_RANK": "3", "MLX_WORLD_SIZE": "4", "NCCL_HOST_IP": "h"}, Launch(3, "nccl")),
        ({"MLX_RANK": "0", "MLX_WORLD_SIZE": "1", "NCCL_HOST_IP": "h"}, None),
        ({"MLX_RANK": "2", "MLX_JACCL_COORDINATOR": "h:1", "MLX_IBV_DEVICES": "f"}, Launch(2, "jaccl")),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, Launch(2, "mpi")),
    ],
)
def test_who_launched_this_process_is_read_off_its_environment(
    tmp_path: Path, variables: dict[str, str], found: Launch | None
) -> None:
    hosts, blank = write_hostfile(tmp_path, 2), tmp_path / "blank"
    blank.write_text("\n")
    environment = {name: value.format(hosts=hosts, blank=blank) for name, value in variables.items()}
    assert find_launch(environment) == found


@pytest.mark.parametrize(
    ("rank", "hostfile", "said"), [("one", "hosts", "MLX_RANK is 'one'"), ("1", "nowhere", "which cannot be read: No")]
)
def test_what_a_launcher_cannot_have_meant_is_refused(tmp_path: Path, rank: str, hostfile: str, said: str) -> None:
    (tmp_path / "hosts").write_text("[]")
    with pytest.raises(UsageError, match=said):
        find_launch({"MLX_RANK": rank, "MLX_HOSTFILE": str(tmp_path / hostfile)})


def test_every_item_is_dealt_once_and_every_class_evenly() -> None:
    draw = random.Random(5)
    for _ in range(50):
        items = [WorkItem(f"p{i}", draw.choice("abc"), "text") for i in range(draw.randint(5, 40))]
        size = draw.randint(1, 5)
        shares = [share_out(items, rank, size) for rank in range(size)]
        assert sorted(item.id for share in shares for item in share) == sorted(item.id for item in items)
        for class_ in "abc":
            counts = [sum(item.class_ == class_ for item in share) for share in shares]
            assert max(counts) - min(counts) <= 1
        lengths = [len(share) for share in shares]
        assert max(lengths) - min(lengths) <= 1


def test_no_rank_goes_empty() -> None:
    with pytest.raises(UsageError, match="3 ranks and 2 prompts: start 2 at most"):
        share_out([WorkItem("p", "x", "text"), WorkItem("q", "x", "text")], 0, 3)


@pytest.mark.parametrize("ahead_ns", [0, 5_000_000_000, -7_000_000])
def test_the_offset_of_a_clock_is_found_within_what_is_called_its_uncertainty(ahead_ns: int) -> None:
    """By two threads with one clock, of which one adds to it, and delays that are anything but the same both ways."""
    meeting, numbers = threading.Barrier(2), [0, 0]
    found: dict[int, tuple[int, int]] = {}

    def take_part(rank: int) -> None:
        draw = random.Random(rank)

        def gather(number: int) -> list[int]:
            time.sleep(draw.random() * 0.002)
            numbers[rank] = number
            meeting.wait()
            both = list(numbers)
            meeting.wait()
            return both

        found[rank] = compare_clocks(gather, lambda: time.perf_counter_ns() + rank * ahead_ns)

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    offset, uncertainty = found[1]
    assert abs(offset - ahead_ns) <= uncertainty
