"""A SLURM cluster on this machine: Debian's `slurm-wlm`, started as root without systemd, munge or a database."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

CONFIGURATION = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={next_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
KillWait=5
MaxArraySize=12
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing_requirement() -> str | None:
    """Return the reason why SLURM cannot start, or None."""
    if os.geteuid() != 0:
        return "only root can start SLURM for the tests"
    programs = [name for name in ("slurmctld", "slurmd", "sbatch", "srun") if shutil.which(name) is None]
    return f"no {', '.join(programs)}: apt-get install slurm-wlm" if programs else None


def start(folder: Path) -> Path:
    """Start the controller and the node, and return the path of the configuration for `SLURM_CONF`."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    host = socket.gethostname().partition(".")[0]
    path = folder / "slurm.conf"
    path.write_text(CONFIGURATION.format(host=host, folder=folder, port=port, next_port=port + 1))
    environment = os.environ | {"SLURM_CONF": str(path)}
    step_daemon = next((p for p in ("/usr/sbin/slurmstepd", "/usr/sbin/slurmstepd-wlm") if Path(p).exists()), None)
    for command in (["slurmctld"], ["slurmd", *(["-d", step_daemon] if step_daemon else [])]):
        subprocess.run([*command, "-f", str(path)], env=environment, check=True, capture_output=True)
    for _ in range(60):
        state = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True).stdout
        if state.startswith("idle"):
            return path
        time.sleep(0.5)
    stop(folder)
    raise RuntimeError(f"SLURM did not start: {(folder / 'slurmctld.log').read_text()[-500:]}")


def stop(folder: Path) -> None:
    for name in ("slurmd", "slurmctld"):
        path = folder / f"{name}.pid"
        if path.is_file():
            os.kill(int(path.read_text()), signal.SIGTERM)
