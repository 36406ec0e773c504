package node

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node/cas"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
)

// A peer that offers wrong content is named in a line whose event does not change as words
// do, and counted.
func TestBadPeerIsNamedInAnEvent(t *testing.T) {
	var out bytes.Buffer
	n := &Node{log: slog.New(slog.NewJSONHandler(&out, nil))}
	n.metrics = newMetrics(n)
	r := prometheus.NewRegistry() // of this one alone: others ask for more of a node
	r.MustRegister(n.metrics.badPeers)
	liar, digest := peer.ID("the one"), cas.Sum([]byte("x"))
	n.badPeer(caspeer.Event{Peer: liar, Digest: digest, Reason: "other bytes"})
	var line struct{ Level, Event, Peer, Digest, Reason string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	if line.Level != "WARN" || line.Event != "bad_peer" || line.Peer != liar.String() || line.Digest != digest.String() || line.Reason != "other bytes" {
		t.Errorf("%s", out.Bytes())
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if f := families[0]; f.GetName() != "forgeyard_cas_bad_peer_total" || f.GetMetric()[0].GetCounter().GetValue() != 1 {
		t.Errorf("%v", f)
	}
}
