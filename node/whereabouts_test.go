package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// TestAddrsOfFew: an enrolment names the voters of a large site, and whoever the caller wants
// first, within the bounds of what can be read again.
func TestAddrsOfFew(t *testing.T) {
	one := makeSite(t, 1)[0]
	n := one.node
	at := func(i int, addr string) mesh.PeerAddr {
		id := forgeyard.RunnerID(fmt.Sprintf("R%02d", i))
		return mesh.PeerAddr{RunnerID: id, PeerID: peer.ID(id), Addrs: []string{addr}}
	}
	var noted []mesh.PeerAddr
	for i := range mesh.MaxPeers + 10 {
		noted = append(noted, at(i, "/ip4/10.0.0.1/tcp/1"))
	}
	n.noted.Store(&noted)
	guest := at(99, "/ip4/10.0.0.9/tcp/1")
	if got := n.fewAddrs(guest); len(got) != mesh.MaxPeers || got[0].RunnerID != guest.RunnerID || got[1].RunnerID != "R00" {
		t.Errorf("%d addresses, %v first", len(got), got[0])
	}
	long := []mesh.PeerAddr{at(1, "/dns/"+strings.Repeat("a", maxAddrsNoted)), at(2, "/ip4/10.0.0.1/tcp/1")}
	n.noted.Store(&long)
	if got := n.fewAddrs(); len(got) != 1 || got[0].RunnerID != "R02" {
		t.Errorf("what fits is %v", got)
	}
}
