"""A stranger's plan: nothing in it chooses the program that runs on the hosts, a file that is
written, or whom a rank talks to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optics import BadFile
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.plan.reader import read_plan

INVENTORY = Path(__file__).parents[2] / "inventory" / "emulated"

# Each of these was accepted once, or is like one that was. What it does, where it is not plain from
# the name, is in the comment.
HOSTILE = {
    "OPENSSL_CONF": "/tmp/evil.cnf",  # loads a library as an engine or provider
    "OPENSSL_MODULES": "/tmp",
    "MKL_VERBOSE_OUTPUT_FILE": "/etc/cron.d/x",  # appends to any file
    "TORCH_LOGS_OUT": "/etc/cron.d/x",
    "TORCH_LOGS": "+all",
    "TORCH_FR_BUFFER_SIZE": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/etc/x",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/etc/x",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/evil",
    "TORCH_EXTENSIONS_DIR": "/tmp/evil",
    "TRITON_CACHE_DIR": "/tmp/evil",
    "NCCL_CONF_FILE": "/tmp/nccl.conf",  # sets every other variable
    "NCCL_DEBUG_FILE": "/etc/cron.d/%h",
    "NCCL_GRAPH_DUMP_FILE": "/etc/x",
    "NCCL_GRAPH_FILE": "/tmp/x",
    "NCCL_TOPO_DUMP_FILE": "/etc/x",
    "NCCL_TOPO_FILE": "/tmp/x",
    "NCCL_PROTO_FILE": "/tmp/x",
    "NCCL_RAS_ADDR": "192.0.2.1:28028",
    "NCCL_COMM_ID": "192.0.2.1:1",
    "NCCL_HOSTID": "x",
    "NCCL_NET_PLUGIN": "/tmp/libx.so",
    "NCCL_TUNER_PLUGIN": "/tmp/libx.so",
    "NCCL_TUNER_CONFIG_PATH": "/tmp/x",
    "NCCL_PROFILER_PLUGIN": "/tmp/libx.so",
    "NCCL_PROFILE_DUMP_FILE": "/etc/x",
    "NCCL_ENV_PLUGIN": "/tmp/libx.so",
    "NCCL_SOCKET_IFNAME": "mgmt0",  # out of the fabric
    "GLOO_SOCKET_IFNAME": "mgmt0",
    "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY": "/etc/ssl/private/x",
    "CUDA_INJECTION64_PATH": "/tmp/libx.so",
    "CUDA_CACHE_PATH": "/tmp/evil",
    "NVTX_INJECTION64_PATH": "/tmp/libx.so",
    "CUDA_COREDUMP_FILE": "/etc/x",
    "RDMAV_DRIVERS": "/tmp/libx",
    "IBV_DRIVERS": "/tmp/libx",
    "FI_PROVIDER_PATH": "/tmp",
    "UCX_MODULE_DIR": "/tmp",
    "UCX_CONFIG_DIR": "/tmp",
    "UCX_LOG_FILE": "/etc/x",
    "OMP_TOOL_LIBRARIES": "/tmp/libx.so",
    "OMPT_TOOL": "x",
    "OMP_AFFINITY_FORMAT": "%n",
    "KMP_SETTINGS": "1",
    "OMPI_MCA_mca_base_component_path": "/tmp",
    "CC": "/tmp/evil",
    "CXX": "/tmp/evil",
    "CFLAGS": "-fplugin=/tmp/libx.so",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "7",
    "TESTBED_JOB_DIR": "/etc",
    "TESTBED_CHECKPOINT_DIR": "/etc",
    "TESTBED_TRAFFIC": "{}",
    "TESTBED_TIMEOUT_S": "86000",
    "LD_PRELOAD": "/tmp/libx.so",
    "LD_LIBRARY_PATH": "/tmp",
    "LD_AUDIT": "/tmp/libx.so",
    "PYTHONPATH": "/tmp",
    "PYTHONSTARTUP": "/tmp/x.py",
    "PYTHONHOME": "/tmp",
    "PYTHONBREAKPOINT": "os.system",
    "PYTHONINSPECT": "1",
    "PATH": "/tmp",
    "ENV": "/tmp/x",
    "BASH_ENV": "/tmp/x",
    "HOME": "/tmp",
    "TMPDIR": "/etc",
    "XDG_CACHE_HOME": "/etc",
    "GCONV_PATH": "/tmp",
    "LOCPATH": "/tmp",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "MALLOC_TRACE": "/etc/x",
    "RES_OPTIONS": "x",
    "HOSTALIASES": "/tmp/hosts",
    "http_proxy": "http://192.0.2.1:1",
    "SSL_CERT_FILE": "/tmp/x",
    "ncc_ALGO": "Ring",
    "NOTE": "anything that nobody knows",
}
PATHS = [
    "/etc/passwd",
    "../../etc/passwd",
    "file:/tmp/x",
    "x.so",
    "$(touch x)",
    "%h",
    "a b",
    "",
    "~/x",
    "-1e9",
    "0x10",
    "1;rm",
]


@pytest.fixture(scope="module")
def lab() -> Lab:
    return read()


def read(**variables: object) -> Lab:
    hosts, devices, fibres = (
        (INVENTORY / f"{name}.yml").read_text() for name in ("hosts", "devices", "fibres")
    )
    more = "".join(f"        {name}: {json.dumps(value)}\n" for name, value in variables.items())
    return read_lab(hosts.replace("      hosts:\n", f"{more}      hosts:\n"), devices, fibres)


def text(**job: object) -> str:
    body = {"name": "j", "workload": "train", "ranks": ["gpu01", "gpu02"]} | job
    links = [{"a": "gpu01:p1", "b": "gpu02:p1"}]
    return json.dumps(
        {"schema": "testbed.plan/1", "name": "p", "links": links, "job": body}, indent=1
    )


def test_every_variable_that_is_not_known_to_only_tune_is_refused_at_its_line(lab: Lab) -> None:
    with pytest.raises(BadFile) as refused:
        read_plan(text(env=HOSTILE), "plan.json", lab)
    assert [
        line.split(" may not set ")[1].partition(";")[0] for line in refused.value.problems
    ] == list(HOSTILE)
    assert [int(line.split(":")[1]) for line in refused.value.problems] == list(
        range(18, 18 + len(HOSTILE))
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_variable_alone_is_refused(lab: Lab, name: str) -> None:
    with pytest.raises(BadFile, match=f"job.env.{name}: a plan may not set {name}"):
        read_plan(text(env={name: HOSTILE[name]}), "plan.json", lab)


@pytest.mark.parametrize("value", PATHS)
def test_no_variable_that_tunes_takes_a_path_a_command_or_nothing(lab: Lab, value: str) -> None:
    from orchestrator.plan.job_env import ALLOWED

    with pytest.raises(BadFile) as refused:
        read_plan(text(env=dict.fromkeys(ALLOWED, value)), "plan.json", lab)
    assert len(refused.value.problems) == len(ALLOWED), set(ALLOWED) - {
        p.split("env.")[1].split(":")[0] for p in refused.value.problems
    }


@pytest.mark.parametrize(
    "env",
    [
        {
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "^LL128",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
            "NCCL_NET": "Socket",
        },
        {
            "NCCL_MIN_NCHANNELS": "2",
            "NCCL_MAX_NCHANNELS": "2",
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_NET_GDR_LEVEL": "PHB",
        },
        {
            "OMP_NUM_THREADS": "4,2",
            "OMP_PROC_BIND": "close",
            "OMP_PLACES": "cores",
            "OMP_SCHEDULE": "dynamic,4",
            "OMP_STACKSIZE": "16M",
        },
        {
            "GLOO_DEVICE_TRANSPORT": "TCP",
            "TORCH_NCCL_BLOCKING_WAIT": "1",
            "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        },
    ],
)
def test_what_only_tunes_passes(lab: Lab, env: dict[str, str]) -> None:
    job = read_plan(text(env=env), "plan.json", lab).job
    assert job is not None and job.env == env


@pytest.mark.parametrize("path", ["/etc", "../../../etc", "~/.ssh", "/var/lib/testbed/jobs", "x"])
@pytest.mark.parametrize("name", ["checkpoint_dir", "checkpoint-dir", "output", "log"])
def test_no_argument_names_a_path(lab: Lab, name: str, path: str) -> None:
    with pytest.raises(BadFile):
        read_plan(text(args={name: path}), "plan.json", lab)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "$(touch x)", "--checkpoint-dir=/etc", "{{ lookup('pipe', 'id') }}"],
)
def test_no_argument_of_any_program_takes_a_word_that_is_not_its_own(lab: Lab, path: str) -> None:
    from workloads.programs.options import OPTIONS

    for workload, options in OPTIONS.items():
        for option in options:
            with pytest.raises(BadFile, match=f"job.args.{option.name}: wanted "):
                read_plan(text(workload=workload, args={option.name: path}), "plan.json", lab)


def test_the_labs_owner_opens_more_for_all_hosts_of_a_job() -> None:
    job = read_plan(text(env={"NOTE": "a word"}), "plan.json", read(testbed_job_env=["NOTE"])).job
    assert job is not None and job.env == {"NOTE": "a word"}
    hosts, devices, fibres = (
        (INVENTORY / f"{name}.yml").read_text() for name in ("hosts", "devices", "fibres")
    )
    one = hosts.replace(
        "          testbed_host_id: 1\n",
        "          testbed_host_id: 1\n          testbed_job_env: [NOTE]\n",
    )
    with pytest.raises(
        BadFile, match="a plan may not set NOTE; the lab's owner may open it with testbed_job_env"
    ):
        read_plan(text(env={"NOTE": "a word"}), "plan.json", read_lab(one, devices, fibres))


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PYTHONPATH", "PATH", "RANK", "MASTER_ADDR", "TESTBED_JOB_DIR", "HOME"]
)
def test_what_the_launcher_sets_is_opened_to_no_plan(name: str) -> None:
    with pytest.raises(
        BadFile, match=f"testbed_job_env: {name}: set by the hosts and the launcher"
    ):
        read(testbed_job_env=["NOTE", name])


@pytest.mark.parametrize("name", ["", "Root", "a b", "$(id)", "x" * 33, "-x"])
def test_the_user_that_jobs_run_as_is_a_users_name(name: str) -> None:
    with pytest.raises(BadFile, match="testbed_job_user"):
        read(testbed_job_user=name)
