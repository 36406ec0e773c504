#!/bin/bash
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
# A job script for Slurm: USR1 comes before its time is over, it saves and is started again.
# What is Forgeyard's is the exit code, where Slurm's script calls `scontrol requeue`.
#
#   job:
#     steps: [{name: sum, run: [bash, /work/source/slurm.sh, "1000"]}]
#     outputs: [{path: result}]
#     resume: {mode: application, compat_profile: slurm, checkpoint: {exit_code: 85, files: [state/]}}
set -eu
total=$1
mkdir -p state
asked=0
trap 'asked=1' USR1

i=0 sum=0
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -f state/sum ]; then
	read -r i sum <state/sum
fi
echo "restart ${SLURM_RESTART_COUNT:-0}: from $i"
while [ "$i" -lt "$total" ]; do
	i=$((i + 1))
	sum=$(((sum * 31 + i) % 1000003)) # the work
	[ -z "${PACE:-}" ] || sleep "$PACE"
	if [ "$asked" -eq 1 ]; then
		echo "$i $sum" >state/sum
		exit 85
	fi
done
echo "$sum" >result
