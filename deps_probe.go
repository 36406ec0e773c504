//go:build depsprobe

package forgeyard

import (
	_ "connectrpc.com/connect"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/creack/pty"
	_ "github.com/fxamacker/cbor/v2"
	_ "github.com/hashicorp/go-immutable-radix/v2"
	_ "github.com/hashicorp/memberlist"
	_ "github.com/hashicorp/raft"
	_ "github.com/hashicorp/raft-boltdb/v2"
	_ "github.com/ipfs/boxo/bitswap"
	_ "github.com/libp2p/go-libp2p"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/zeebo/blake3"
	_ "go.etcd.io/bbolt"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/protobuf/proto"
	_ "lukechampine.com/blake3"
)
