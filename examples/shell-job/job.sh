#!/bin/bash
# Sorts files with a checkpoint after each one. Replace /pfs/me by a directory of your parallel file system.
#
#   forebay validate job.sh                 checks the lines below, and starts nothing
#   forebay run --flash /dev/shm job.sh     runs the job on this machine
#   sbatch job.sh                           runs it under Slurm
#
#SBATCH --nodes=1
#DW jobdw type=scratch access_mode=striped capacity=256MiB
#DW stage_in  type=directory source=/pfs/me/input  destination=$DW_JOB_STRIPED/input
#DW stage_out type=directory source=$DW_JOB_STRIPED/results destination=/pfs/me/results
set -euo pipefail

# DW_JOB_STRIPED is the buffer. Everything here is at the speed of flash.
cd "$DW_JOB_STRIPED"
mkdir -p results

# An earlier run of this job may have staged out a part of the results before its time limit ended it.
if [ -d /pfs/me/results ]; then
  cp -rn /pfs/me/results/. results/
fi

for file in input/*; do
  name=$(basename "$file")
  if [ -e "results/$name" ]; then
    echo "$name: done by an earlier run"
    continue
  fi
  # Whole or absent: a result gets its name when it is complete.
  sort "$file" > "results/.$name.part"
  mv "results/.$name.part" "results/$name"
  echo "$name: sorted"
done
