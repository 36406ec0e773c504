#!/usr/bin/env bash
# Sees to the peer that `make bench SUITE=runner` compares with: Debian's Slurm. Installs
# its packages as root, and starts nothing: the bench runs its own daemons below a folder
# of its own. As anyone else it says what is missing.
set -euo pipefail

need=()
want() { # want COMMAND PACKAGE
  PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 || need+=("$2")
}
want slurmctld slurmctld
want slurmd slurmd
want srun slurm-client
want munged munge
[ "${#need[@]}" -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
  echo "missing: ${need[*]} (their Debian names)" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >&2
apt-get install -y -qq --no-install-recommends "${need[@]}" >&2
