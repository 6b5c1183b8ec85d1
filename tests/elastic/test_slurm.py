"""A job of SLURM by the script of the page: it is told to end, requeued, and begins elsewhere.

`srun` and `scontrol` are stand-ins. What SLURM does to a job that is requeued, it ends all of it,
is done here when the script has ended.
"""

import os
import shlex
import signal

import pytest
from elastic_runs import block_of_page, check_ledger
from forked_programs import free_port

pytestmark = [pytest.mark.ddp, pytest.mark.matrix, pytest.mark.timeout(600)]

SRUN = """#!/bin/sh
for rank in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NODEID=0 "$@" &
done
wait
"""
SCONTROL = '#!/bin/sh\necho "$@" >> requeued.txt\n'


@pytest.fixture
def start_job(tmp_path):
    """Starts the page's script for a run on so many ranks of one node; its pid."""
    for name, script in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)

    def start(launchers, ranks):
        of_page = "fit --config configs/elastic.yaml"
        script = block_of_page("bash", "#!/bin/bash")
        assert of_page in script
        script = script.replace(of_page, shlex.join(launchers.options))
        job = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NAME": "train", "SLURM_NNODES": "1"}
        tasks = dict.fromkeys(("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"), str(ranks))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        with_stand_ins = f"export PATH={tmp_path}:$PATH\n{script}"
        return launchers.start_shell(with_stand_ins, **job, **tasks, **meeting)

    return start


def test_a_job_that_is_requeued_by_the_signal_goes_on_elsewhere(launchers_of, start_job, tmp_path):
    launchers = launchers_of((2, 15, "1"))
    job = start_job(launchers, 2)
    launchers.wait_for_stop(0)
    os.kill(job, signal.SIGUSR1)
    launchers.wait_for_end(job)
    assert (tmp_path / "requeued.txt").read_text() == "requeue 1234\n"
    assert launchers.wait_for_end(start_job(launchers, 1)) == 0
    assert check_ledger(tmp_path, [2, 1]) == [0, 12]
