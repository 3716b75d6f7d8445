#!/bin/bash
# Submit with: sbatch slurm.sh /data/table /scratch/$USER/run
# Each task reads its part of the Parquet files in the first argument; the run directory must be on a disk that
# survives the job, and only rank 0 needs to see it.
#SBATCH --job-name=integrand
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --requeue

set -uo pipefail
DATA=$1
RUN=$2

# Coordinator, number of processes and rank are those that Slurm gives: JAX finds them.
if [ -e "$RUN/data.npz" ]; then
    # Requeued, or killed half-way: go on, with whatever number of nodes this job has.
    srun integrand resume "$RUN" --distributed --timeout 600 --quiet
else
    srun integrand fit "$DATA" --target y --inducing 300 --run-dir "$RUN" --out "$RUN.integrand" \
        --distributed --timeout 600 --quiet
fi
CODE=$?

# Slurm requeues a job whose node failed, not one that lost a task. Codes 2 (a mistake) and 3 (--strict) stay.
if [ "$CODE" -ne 0 ] && [ "$CODE" -ne 2 ] && [ "$CODE" -ne 3 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$CODE"
