#!/usr/bin/env bash
# Sees to the peer that `make bench SUITE=runner` compares with: Debian's Slurm. Installs
# its packages as root, and has none of their services started: the bench runs its own daemons below a folder
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
# The packages would start their services, if this machine's word for that is not no.
no=/usr/sbin/policy-rc.d
if [ ! -e "$no" ]; then
  trap 'rm -f "$no"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$no"
  chmod 755 "$no"
fi
apt-get install -y -qq --no-install-recommends "${need[@]}" >&2
