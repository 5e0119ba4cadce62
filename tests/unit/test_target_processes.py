"""From any pid to the server, over built /proc trees: one per situation that occurs on real machines."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ppscope.records import RankKey
from ppscope.target import processes
from ppscope.target.building import build
from ppscope.target.errors import AttachError
from ppscope.target.processes import find_server, find_servers, resolve, still_there
from ppscope.target.procfs import CAP_SYS_PTRACE, Proc, hides_processes
from ppscope.target.redact import MARKER
from ppscope.target.tree import Tree
from tests.shared import ROOT
from tests.unit.fake_proc import LOCALHOST, SPAWN, TRACKER, FakeProc, listening

PYTHON = "/opt/venv/bin/python3"
SECRET = "s3cr3t-of-the-server"


def launch(extra: str = "", port: int = 31000) -> tuple[str, ...]:
    return (PYTHON, "-m", "sglang.launch_server", "--model-path", "org/model", "--port", str(port), *extra.split())


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    box = FakeProc(tmp_path)
    box.add(1, ["/sbin/init"], 0)
    box.add(2, [], 0, comm="kworker/0:1 (x) y")
    box.add(900, ["bash", "-c", "sleep 1000"])
    return box


def serve(
    fake: FakeProc, pid: int = 100, parent: int = 1, extra: str = "--pp-size 2", port: int = 31000, opened: bool = True
) -> None:
    """A PP 2 server: launcher `pid`, tracker +1, schedulers +2 and +3, detokenizer +4, all from one spawn."""
    fds = [f"socket:[{pid}]"] if opened else []
    tcp = [listening(LOCALHOST, port, pid)] if opened else []
    fake.add(pid, launch(extra, port), parent, env={"PATH": "/bin"}, exe="/usr/bin/python3.12", fds=fds, tcp=tcp)
    fake.add(pid + 1, [PYTHON, *TRACKER], pid, env={})
    for stage in range(2):
        fake.add(
            pid + 2 + stage,
            f"sglang::scheduler_PP{stage}",
            pid,
            env={},
            exe="/usr/bin/python3.12",
            maps=["/usr/lib/libcuda.so.1"],
        )
    fake.add(pid + 4, "sglang::detokenizer", pid, env={})


@pytest.mark.parametrize("pid", [100, 101, 102, 103, 104, 105, 106, 90, 91, 7777])
def test_every_pid_of_a_server_leads_to_it(fake: FakeProc, pid: int) -> None:
    fake.add(90, ["bash", "-c", "python -m sglang.launch_server --model-path org/model --port 31000 --pp-size 2"])
    fake.add(91, ["/usr/bin/python3", "/opt/venv/bin/ppscope", "demo"], 90, exe="/usr/bin/python3.12")
    serve(fake, parent=91)
    fake.add(105, "sglang::tokenizer_worker:105", 100)
    fake.add(106, [PYTHON, "-m", "torch._inductor.compile_worker"], 102)  # something a scheduler started
    fake.thread(7777, 103)
    found = find_server(pid, fake.root)
    assert (found.launcher_pid, found.kind, found.state) == (100, "launch_server", "serving")
    assert [(rank.key, rank.pid, rank.started_ticks) for rank in found.ranks] == [
        (RankKey(0, 0, 0), 102, 1020),
        (RankKey(0, 1, 0), 103, 1030),
    ]
    assert found.to_record(0).pp_loop_size == 2
    assert found.others == ((104, "sglang::detokenizer"), (105, "sglang::tokenizer_worker:105"))
    assert resolve(None, fake.root).launcher_pid == 100


def test_the_record_carries_what_was_found(fake: FakeProc) -> None:
    serve(fake, extra=f"--pp-size 2 --api-key {SECRET} --config c.yaml")
    server = find_server(100, fake.root).to_record(5)
    assert (server.at_ns, server.pp_size, server.tp_size, server.dp_size) == (5, 2, 1, 1)
    assert (server.model, server.host, server.port, server.device) == ("org/model", "127.0.0.1", 31000, "cuda")
    assert server.launch_command[-3:] == (MARKER, "--config", "c.yaml")
    assert SECRET not in repr(server)
    assert server.pp_loop_size is None  # the config file may set the depth
    facts = {fact.name: (fact.value, fact.source) for fact in server.facts}
    assert facts["pp_size"] == (2, "cmdline")
    assert facts["port.owned"] == ("yes", "socket")
    assert facts["config_file"] == ("c.yaml", "cmdline")
    assert facts["device"] == ("cuda", "maps")


def test_environment_is_kept_by_name_and_without_secrets(fake: FakeProc) -> None:
    env = {
        "CUDA_VISIBLE_DEVICES": "1,0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "SGLANG_API_TOKEN": SECRET,
        "HF_TOKEN": SECRET,
        "PPSCOPE_PROBE": "always",
        "EDITOR": "vi",
    }
    fake.add(100, launch("--pp-size 2 --device cuda"), env={**env, "NCCL_DEBUG": "INFO"}, fds=[])
    fake.add(102, "sglang::scheduler_PP1", 100)
    found = find_server(100, fake.root)
    assert found.env == {
        "CUDA_VISIBLE_DEVICES": "1,0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PPSCOPE_PROBE": "always",
        "SGLANG_API_TOKEN": MARKER,
        "NCCL_DEBUG": "INFO",
    }
    assert SECRET not in repr(found)
    gpu = found.ranks[0].gpu
    assert gpu is not None
    assert (gpu.index, gpu.cuda_ordinal, gpu.source) == (0, 1, "title_formula")


def test_a_loading_server_is_found_by_its_command_line(fake: FakeProc) -> None:
    fake.add(100, launch("--pp-size 2"), env={}, fds=[])
    fake.add(101, [PYTHON, *TRACKER], 100)
    fake.add(102, [PYTHON, *SPAWN], 100)
    fake.add(103, [PYTHON, *SPAWN], 100)
    for pid in (100, 101, 102):
        found = find_server(pid, fake.root)
        assert (found.launcher_pid, found.state, found.ranks, found.placement.pp_size) == (100, "loading", (), 2)


def test_titled_ranks_are_loading_until_all_are_there_and_the_port_is_open(fake: FakeProc) -> None:
    serve(fake, 100, opened=False)
    serve(fake, 200, extra="--pp-size 4", port=32000)
    assert [found.state for found in find_servers(fake.root)] == ["loading", "loading"]


def test_an_engine_inside_a_users_program(fake: FakeProc) -> None:
    fake.add(
        100,
        [PYTHON, "offline.py", "--model", "org/m", "--pp-size", "16", "--port", "9"],
        900,
        env={},
        exe="/usr/bin/python3.12",
        fds=[],
    )
    fake.add(101, [PYTHON, *TRACKER], 100)
    for stage in range(2):
        fake.add(102 + stage, f"sglang::scheduler_PP{stage}_TP0", 100)
    for pid in (100, 101, 103, 900):
        found = find_server(pid, fake.root)
        assert (found.launcher_pid, found.kind, found.state, found.port) == (100, "engine", "serving", None)
        assert (found.model, found.placement.pp_size) == ("org/m", 2)


def test_engines_in_spawned_children_are_servers_of_their_own(fake: FakeProc) -> None:
    fake.add(100, [PYTHON, "rollout.py"], 900, exe="/usr/bin/python3.12")
    for base in (110, 120):
        fake.add(base, [PYTHON, *SPAWN], 100, env={}, exe="/usr/bin/python3.12")
        fake.add(base + 1, "sglang::scheduler", base)
        fake.add(base + 2, "sglang::detokenizer", base)
    assert [(found.launcher_pid, found.kind) for found in find_servers(fake.root)] == [(110, "engine"), (120, "engine")]
    assert find_server(122, fake.root).launcher_pid == 120
    with pytest.raises(AttachError, match="2 SGLang servers run under process 100") as caught:
        find_server(100, fake.root)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("first", [0, 3])
def test_the_servers_of_a_router_are_servers_of_their_own(fake: FakeProc, first: int) -> None:
    """Each launcher calls itself `sglang::server`, and numbers its ranks by SGLANG_DP_RANK, of which it has but one."""
    router = [PYTHON, "-m", "sglang_router.launch_server", "--model-path", "m", "--dp-size", "2", "--port", "30000"]
    fake.add(
        100, router, 900, env={}, exe="/usr/bin/python3.12", fds=["socket:[1]"], tcp=[listening(LOCALHOST, 30000, 1)]
    )
    for replica, pid in enumerate((200, 300), start=first):
        port = 31000 + pid
        tcp = [listening(LOCALHOST, port, pid)]
        fake.add(pid, "sglang::server", 100, env={}, exe="/usr/bin/python3.12", fds=[f"socket:[{pid}]"], tcp=tcp)
        for stage in range(4):
            fake.add(pid + 1 + stage, f"sglang::scheduler{f'_DP{replica}' if replica else ''}_PP{stage}", pid)
        fake.add(pid + 8, "sglang::server", pid)  # a child that it forked and that is no server
    servers = find_servers(fake.root)
    assert [(found.launcher_pid, found.port, len(found.ranks)) for found in servers] == [
        (200, 31200, 4),
        (300, 31300, 4),
    ]
    for found in servers:
        assert (found.state, found.placement.pp_size, found.placement.dp_size) == ("serving", 4, 1)
        assert found.others == ()
    assert find_server(301, fake.root).launcher_pid == 300
    with pytest.raises(AttachError, match="2 SGLang servers run under process 100"):
        find_server(100, fake.root)


@pytest.mark.parametrize(
    ("titles", "kind", "sizes", "gpus"),
    [
        (["PP4", "PP5", "PP6", "PP7"], "node", (8, 1), [0, 1, 2, 3]),
        (["PP0", "PP1", "PP2", "PP3"], "engine", (4, 1), [0, 1, 2, 3]),
        (["TP8", "TP9", "TP10", "TP11", "TP12", "TP13", "TP14", "TP15"], "node", (1, 16), list(range(8))),
        (["PP2_TP0", "PP2_TP1", "PP3_TP0", "PP3_TP1"], "node", (4, 2), [0, 1, 2, 3]),
    ],
)
def test_the_nodes_of_an_engine_on_several_are_whole(
    fake: FakeProc, titles: list[str], kind: str, sizes: tuple[int, int], gpus: list[int]
) -> None:
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    fake.add(100, [PYTHON, "run.py"], env=env, exe="/usr/bin/python3.12", fds=[])
    for place, title in enumerate(titles):
        fake.add(102 + place, f"sglang::scheduler_{title}", 100, maps=["/usr/lib/libcuda.so.550"])
    found = find_server(100, fake.root)
    assert (found.kind, found.state, (found.placement.pp_size, found.placement.tp_size)) == (kind, "serving", sizes)
    assert [rank.gpu.index if rank.gpu else None for rank in found.ranks] == gpus
    fake.add(150, [PYTHON, *SPAWN], 100)
    assert find_server(100, fake.root).state == "loading", "one more may still take a title"


@pytest.mark.parametrize("through_controller", [True, False])
def test_schedulers_below_a_dp_controller_or_prelaunched_by_the_launcher(
    fake: FakeProc, through_controller: bool
) -> None:
    fake.add(
        100,
        launch("--tp 2 --dp 2 --enable-dp-attention"),
        900,
        env={},
        fds=["socket:[7]"],
        tcp=[listening(LOCALHOST, 31000, 7)],
    )
    fake.add(101, "sglang::data_parallel_controller", 100)
    for rank in range(2):
        fake.add(102 + rank, f"sglang::scheduler_DP{rank}_TP{rank}", 101 if through_controller else 100)
    found = find_server(103, fake.root)
    assert (found.launcher_pid, found.placement.dp_size, found.placement.dp_attention, found.state) == (
        100,
        2,
        True,
        "serving",
    )
    assert [rank.key for rank in found.ranks] == [RankKey(0, 0, 0), RankKey(1, 0, 1)]
    assert found.others == ((101, "sglang::data_parallel_controller"),)


def test_replicas_and_dp_attention_are_told_apart_by_titles_alone(fake: FakeProc) -> None:
    fake.add(100, [PYTHON, "a.py"], exe="/usr/bin/python3.12", env={})
    fake.add(200, [PYTHON, "b.py"], exe="/usr/bin/python3.12", env={})
    for dp in range(2):
        fake.add(101 + dp, f"sglang::scheduler_DP{dp}_TP{dp}", 100)
        for tp in range(2):
            fake.add(201 + 2 * dp + tp, f"sglang::scheduler_DP{dp}_TP{tp}", 200)
    first, second = find_servers(fake.root)
    assert (first.placement.dp_attention, second.placement.dp_attention) == (True, False)
    assert (first.state, second.state) == ("serving", "serving")


def test_a_second_node_without_http(fake: FakeProc) -> None:
    command = "--pp-size 4 --tp-size 1 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5000 --base-gpu-id 0"
    fake.add(
        100,
        launch(command),
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        fds=["socket:[7]"],
        tcp=[listening("00000000", 31000, 7)],
    )
    for stage in (2, 3):
        fake.add(100 + stage, f"sglang::scheduler_PP{stage}", 100, maps=["/usr/lib/libcuda.so.550"])
    found = find_server(103, fake.root)
    assert (found.kind, found.state, found.placement.pp_size) == ("node", "serving", 4)
    assert [rank.gpu.index if rank.gpu else None for rank in found.ranks] == [0, 1]


def test_serve_and_default_port_and_a_launcher_inside_a_profiler(fake: FakeProc) -> None:
    fake.add(
        100,
        [PYTHON, "/opt/venv/bin/sglang", "serve", "org/x", "--tp=2"],
        env={},
        fds=["socket:[7]"],
        tcp=[listening(LOCALHOST, 30000, 7)],
    )
    fake.add(101, "sglang::scheduler_TP0", 100)
    fake.add(102, "sglang::scheduler_TP1", 100)
    fake.add(
        200,
        [PYTHON, "-m", "cProfile", "-m", "sglang.launch_server", "--model", "y", "--port", "4"],
        env={},
        exe="/usr/bin/python3.12",
    )
    fake.add(201, "sglang::scheduler", 200)
    first, second = find_servers(fake.root)
    assert (first.kind, first.model, first.port, first.state) == ("serve", "org/x", 30000, "serving")
    assert (second.kind, second.model, second.port) == ("launch_server", "y", 4)


def test_a_forked_helper_with_its_parents_title_is_no_rank(fake: FakeProc) -> None:
    serve(fake)
    fake.add(150, "sglang::scheduler_PP0", 102)
    fake.add(151, launch("--pp-size 2"), 100)
    (found,) = find_servers(fake.root)
    assert [rank.pid for rank in found.ranks] == [102, 103]
    assert find_server(150, fake.root).launcher_pid == find_server(151, fake.root).launcher_pid == 100


def test_several_servers_are_listed_to_choose_from(fake: FakeProc) -> None:
    serve(fake, 100)
    serve(fake, 200, port=32000)
    with pytest.raises(AttachError) as caught:
        resolve(None, fake.root)
    assert caught.value.exit_code == 2
    lines = caught.value.message.splitlines()
    assert len(lines) == 3
    assert all(part in lines[2] for part in ("200", "org/model", "PP2", "port 32000", "user"))
    assert resolve(203, fake.root).launcher_pid == 200


def test_a_model_that_is_an_address_has_no_password(fake: FakeProc) -> None:
    command = (PYTHON, "-m", "sglang.launch_server", "--model-path", f"https://me:{SECRET}@hub.example/org/model")
    fake.add(100, command, env={}, exe=PYTHON)
    fake.add(101, "sglang::scheduler", 100, env={}, exe=PYTHON)
    (found,) = find_servers(fake.root)
    assert found.model is not None
    assert "hub.example/org/model" in found.model
    assert SECRET not in str(found.to_record(1)) + found.line() + str(found.facts)


def test_a_server_of_another_user_is_listed_but_not_attached_to(fake: FakeProc) -> None:
    fake.add(100, launch("--pp-size 1"), uid=54321)
    fake.add(101, "sglang::scheduler", 100, uid=54321)
    (found,) = find_servers(fake.root)
    assert (found.readable, found.user, found.ranks[0].pid) == (False, "54321", 101)
    assert found.port_check is not None
    assert found.port_check.owned == "unknown"
    with pytest.raises(AttachError, match="belongs to user 54321") as caught:
        resolve(101, fake.root)
    assert (caught.value.exit_code, caught.value.remedy) == (3, 'sudo env "PATH=$PATH" ppscope attach 101')


@pytest.mark.parametrize(
    ("pid", "words", "exit_code"),
    [
        (4242, "no process 4242", 3),
        (300, "is not a Python process .* nginx", 3),
        (301, "is Python but runs no SGLang server: .*train.py --password «redacted»", 3),
        (302, "has ended", 4),
        (303, "has no launcher any more", 4),
        (304, "2 untitled multiprocessing children", 3),
        (308, "belongs to Ray", 3),
        (309, "is not a Python process", 3),
    ],
)
def test_everything_else_is_named_in_one_line(fake: FakeProc, pid: int, words: str, exit_code: int) -> None:
    fake.add(300, ["nginx\x1b[31m", "-g"])
    fake.add(301, [PYTHON, "train.py", "--password", SECRET])
    fake.add(302, [], state="Z", comm="python3")
    fake.add(303, "sglang::scheduler_PP1", 1)
    fake.add(304, [PYTHON, "user.py"])
    fake.add(305, [PYTHON, *SPAWN], 304)
    fake.add(306, [PYTHON, *SPAWN], 304)
    fake.add(307, [PYTHON, *TRACKER], 304)
    fake.add(308, ["ray::SchedulerActor"])
    fake.add(309, ["vim", "sglang/launch_server.py"])
    with pytest.raises(AttachError, match=words) as caught:
        resolve(pid, fake.root)
    assert caught.value.exit_code == exit_code
    assert caught.value.remedy
    assert SECRET not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in caught.value.message


def test_hidden_processes_are_suspected_where_proc_hides_them(fake: FakeProc) -> None:
    with pytest.raises(AttachError, match="no SGLang server found on this machine"):
        resolve(None, fake.root)
    (fake.folder / "self" / "mountinfo").write_text(
        "25 30 0:23 / /proc rw,nosuid shared:1 - proc proc rw,hidepid=invisible\n"
    )
    for pid in (None, 5):
        with pytest.raises(AttachError, match="hidepid") as caught:
            resolve(pid, fake.root)
        assert caught.value.remedy.startswith("sudo ")


@pytest.mark.parametrize(
    ("options", "capabilities", "hidden"),
    [
        ("rw", 0, False),
        ("rw,hidepid=off", 0, False),
        ("rw,hidepid=2", 0, True),
        ("rw,hidepid=ptraceable", 0, True),
        ("rw,gid={other},hidepid=invisible", 0, True),
        ("rw,gid={ours},hidepid=invisible", 0, False),
        ("rw,hidepid=2", 1 << CAP_SYS_PTRACE, False),
    ],
)
def test_proc_hides_nothing_from_who_may_see_all(fake: FakeProc, options: str, capabilities: int, hidden: bool) -> None:
    options = options.format(ours=os.getegid(), other=max(os.getgroups(), default=0) + os.getegid() + 1)
    own = fake.folder / "self"
    own.mkdir(exist_ok=True)
    (own / "mountinfo").write_text(f"25 30 0:23 / /proc rw,nosuid shared:1 - proc proc {options}\n")
    (own / "status").write_text(f"CapEff:\t{capabilities:016x}\n")
    assert hides_processes(Proc(fake.root)) is hidden


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
@pytest.mark.parametrize("who", ["root", "nobody", "nobody in the group"])
def test_the_kernel_hides_from_whom_we_say(who: str) -> None:
    groups = {"nobody": "[]", "nobody in the group": "[4321]"}.get(who)
    # Rights go once all is imported: an interpreter below somebody's home is not everybody's to start.
    drop = "" if groups is None else f"os.setgroups({groups}); os.setgid(65534); os.setuid(65534);"
    script = (
        f"from ppscope.target.procfs import Proc, hides_processes; import os; {drop}"
        "print(hides_processes(Proc()), not os.path.exists('/proc/' + os.environ['OTHER']))"
    )
    mount = "mount -t proc -o hidepid=2,gid=4321 proc /proc && cd / && { sleep 60 & } && OTHER=$! exec "
    command = shlex.join([sys.executable, "-c", script])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["unshare", "--fork", "--pid", "--mount", "sh", "-c", mount + command],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.split() == [str(who == "nobody")] * 2, done.stderr


@pytest.mark.parametrize(
    ("extra", "config", "tls"),
    [
        ("", "", False),
        ("--ssl-certfile /c.pem", "", True),
        ("--ssl-certfile=/c.pem", "", True),
        ("--config /serve.yaml", "ssl-certfile: /c.pem\n", True),
        ("--config /serve.yaml", "pp-size: 2\n", False),
        ("--config /serve.yaml", "[", False),
    ],
)
def test_tls_is_asked_for_on_the_command_line_or_in_a_file(fake: FakeProc, extra: str, config: str, tls: bool) -> None:
    fake.files.mkdir(exist_ok=True)
    (fake.files / "serve.yaml").write_text(config)
    serve(fake, extra=f"--pp-size 2 {extra}")
    assert any(fact.name == "tls" for fact in resolve(100, fake.root).facts) is tls


def test_sizes_and_port_come_from_the_config_file_too_and_the_command_line_wins(fake: FakeProc) -> None:
    fake.files.mkdir(exist_ok=True)
    (fake.files / "serve.yaml").write_text("port: 8000\npp-size: 4\nbase-gpu-id: 4\nmodel-path: other/model\n")
    argv = (PYTHON, "-m", "sglang.launch_server", "--config", "/serve.yaml", "--pp-size", "2", "--model-path", "m")
    fds, tcp = ["socket:[7]", "socket:[8]"], [listening(LOCALHOST, 8000, 7), listening(LOCALHOST, 9123, 8)]
    fake.add(100, argv, 1, env={"PATH": "/bin"}, exe="/usr/bin/python3.12", fds=fds, tcp=tcp)
    for stage in range(2):
        fake.add(101 + stage, f"sglang::scheduler_PP{stage}", 100, env={}, exe="/usr/bin/python3.12")
    found = resolve(100, fake.root)
    assert found.port_check is not None
    assert (found.port, found.port_check.owned, found.state) == (8000, "yes", "serving")
    assert (found.arguments.base_gpu_id, found.arguments.pp_size, found.model) == (4, 2, "m")


def test_a_process_whose_stat_cannot_be_opened_just_now_has_not_ended(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(fake)

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("ppscope.target.procfs.os.open", full)
    assert still_there(100, 1000, fake.root) == "alive"
    assert still_there(99999, 1, fake.root) == "gone"


def test_a_pid_is_known_again_only_with_its_start_time(fake: FakeProc) -> None:
    serve(fake)
    fake.add(400, ["x"], state="T")
    fake.add(401, [], state="Z")
    assert still_there(102, 1020, fake.root) == "alive"
    assert still_there(102, 999, fake.root) == "pid_reused"
    assert still_there(99999, 1, fake.root) == "gone"
    assert still_there(400, 4000, fake.root) == "stopped"
    assert still_there(401, 4010, fake.root) == "zombie"


def test_a_server_that_ends_while_it_is_read_is_not_reported(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(fake)
    tree = Tree(Proc(fake.root))
    (fake.folder / "100" / "stat").write_text((fake.folder / "100" / "stat").read_text().replace(" 1000 ", " 1001 "))
    assert build(tree, 100, "launch_server") is None  # another process has its pid now
    monkeypatch.setattr(processes, "build", lambda *args: None)
    with pytest.raises(AttachError, match="ended during attach") as caught:
        resolve(102, fake.root)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("state", ["Z", "S"])
def test_a_launcher_on_its_way_out_shows_no_command_line(fake: FakeProc, state: str) -> None:
    fake.add(100, [], state=state, comm="python3", env={} if state == "S" else None)
    fake.add(101, "sglang::scheduler", 100)
    found = find_servers(fake.root)
    assert [server.kind for server in found] == ([] if state == "Z" else ["engine"])
    if state == "Z":
        with pytest.raises(AttachError, match="no launcher any more"):
            find_server(101, fake.root)


def test_pid_namespaces_emulated_gpus_and_cut_titles(fake: FakeProc) -> None:
    fake.add(100, launch("--pp-size 2"), env={"PPSCOPE_EMULATED_GPUS": "/x/gpus.json"}, fds=[])
    fake.add(102, "sglang::scheduler_PP1", 100, ns_pids=(102, 17))
    fake.add(103, [], 100, comm="sglang::scheduler_PP0")
    found = find_server(103, fake.root)
    assert (found.emulated, found.gpus_file, found.device) == (True, "/x/gpus.json", "cuda")
    (rank,) = found.ranks
    assert rank.ns_pid == 17
    assert rank.gpu is not None
    assert (rank.gpu.index, rank.gpu.source) == (1, "emulated")
    assert found.others == ((103, "sglang::schedul"),)
    assert found.state == "loading"


def test_of_processes_that_are_not_sglang_only_name_and_parent_are_read(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(fake)
    for pid in range(2000, 2300):
        fake.add(pid, ["/usr/bin/worker", str(pid)])
    opened: list[tuple[int | str, str]] = []
    read = Proc.read

    def counted(self: Proc, pid: int | str, name: str) -> bytes | None:
        opened.append((pid, name))
        return read(self, pid, name)

    monkeypatch.setattr(Proc, "read", counted)
    (found,) = find_servers(fake.root)
    assert found.launcher_pid == 100
    assert {name for pid, name in opened if int(pid) >= 2000} == {"cmdline", "stat"}
    assert len(opened) <= 2 * 300 + 60
