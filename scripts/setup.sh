#!/usr/bin/env bash
# Installs what building and testing need on Debian, and nothing that is there
# already. Safe to repeat; takes no time when there is nothing to do.
#
#   scripts/setup.sh          for building and testing
#   scripts/setup.sh generate also for `make generate`
#   scripts/setup.sh soak     also for `make soak`: Bazel, which brings a JDK
#
# As root it installs Debian packages itself; as anyone else it says which.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

need=()
want() { # want COMMAND PACKAGE
  PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 || need+=("$2")
}

# install fetches the packages collected in need.
install() {
  [ "${#need[@]}" -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    say "missing: ${need[*]} (their Debian names). Install them with this system's package manager."
    exit 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    say "missing: ${need[*]}. Run: sudo apt-get update && sudo apt-get install -y ${need[*]}"
    exit 1
  fi
  say "installing ${need[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2
  apt-get install -y -qq --no-install-recommends "${need[@]}" >&2
  need=()
}

# go_is_new tells whether the go command serves the version that go.mod asks for.
# Go 1.21 and later fetch a newer toolchain themselves, where GOTOOLCHAIN lets them.
wanted=$(sed -n 's/^go //p' go.mod)
go_is_new() {
  command -v go >/dev/null 2>&1 || return 1
  have=$(go env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n%s\n' "go$wanted" "$have" | sort -V | head -1)" = "go$wanted" ]
}

# bootstrap makes a toolchain in .cache/go from whatever Go Debian has. The
# toolchain is a Go module like any other, checked against Go's checksum database;
# a Go older than 1.21 only doesn't know yet how to put it together.
bootstrap() {
  command -v go >/dev/null 2>&1 || need+=(golang-go ca-certificates)
  install
  if go_is_new; then return 0; fi
  local cpu version dir
  case "$(uname -m)" in
    x86_64) cpu=amd64 ;;
    aarch64) cpu=arm64 ;;
    *) say "Go $wanted is needed and $(uname -m) is not a machine that this script knows. Install it from your system's packages."; exit 1 ;;
  esac
  version="v0.0.1-go$wanted.linux-$cpu"
  say "fetching Go $wanted as a Go module (once)"
  mkdir -p .cache/bootstrap
  echo 'module bootstrap' >.cache/bootstrap/go.mod # an older Go cannot read ours
  dir=$(cd .cache/bootstrap && GOFLAGS=-mod=mod GOMODCACHE="$PWD/mod" GOTOOLCHAIN=local go mod download -json "golang.org/toolchain@$version" |
    sed -n 's/^[[:space:]]*"Dir": "\(.*\)",$/\1/p')
  if [ -z "$dir" ]; then
    say "Go $wanted is needed, found $(go version 2>/dev/null || echo none), and fetching it failed. Install Go $wanted or later and put it on PATH."
    exit 1
  fi
  chmod -R u+w "$dir"
  # A module may not hold another one's go.mod or an executable: undo both.
  find "$dir" -name _go.mod -execdir mv {} go.mod ';'
  chmod +x "$dir"/bin/* "$dir"/pkg/tool/*/* 2>/dev/null || true
  rm -rf .cache/go
  mv "$dir" .cache/go
  chmod -R u+w .cache/bootstrap
  rm -rf .cache/bootstrap
}

export PATH="$PWD/.cache/go/bin:$PATH"
want bwrap bubblewrap # the sandbox executor
want ip iproute2      # network namespaces of the end-to-end tests
want nft nftables     # their one-way cuts
want mkfs.ext4 e2fsprogs # and their disks
want mkfs.xfs xfsprogs # disks that clone files, one of them with exceptions
want mkfs.btrfs btrfs-progs
want mount.exfat-fuse exfat-fuse # a disk that takes two names for one
want mkfs.exfat exfatprogs
want rsync rsync      # the benches bring small files beside it
want restic restic    # and checkpoints
want ccache ccache    # a client of the build cache
want gcc gcc          # what it caches
want strace strace    # what the helper syncs
want systemd-analyze systemd # what reads the unit file of docs/operations.md
want cargo cargo      # tests that go on one by one, of Rust
/usr/bin/python3 -c 'import pytest' 2>/dev/null || need+=(python3-pytest) # and of Python
[ -e /usr/include/stdio.h ] || need+=(libc6-dev)
if [ "${1:-}" = soak ]; then want bazel bazel-bootstrap; fi
if [ "${1:-}" = generate ]; then want protoc protobuf-compiler; fi
install
go_is_new || bootstrap
go_is_new || { say "Go $wanted is needed, found $(go version 2>/dev/null || echo none). Install it and put it on PATH."; exit 1; }
