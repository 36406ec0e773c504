package node

import (
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// RA-041: there is no public API. Besides the private socket a node listens for people on
// loopback alone; every other address is refused with a word on what to do, also one that a
// name might lead to.
func TestHTTPIsForLoopback(t *testing.T) {
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:80", "bench-1.lab:80", "localhost.example.org:80", "127.0.0.1.example.org:80", "7440"} {
		l, err := listenLoopback(addr)
		if forgeyard.KindOf(err) != forgeyard.Invalid || l != nil {
			t.Errorf("%q is listened on: %v", addr, err)
		}
	}
	for _, addr := range []string{"", "off"} {
		if l, err := listenLoopback(addr); l != nil || err != nil {
			t.Errorf("%q: %v %v", addr, l, err)
		}
	}
	for _, addr := range []string{"127.0.0.1:0", "localhost:0"} {
		l, err := listenLoopback(addr)
		if err != nil {
			t.Errorf("%q: %v", addr, err)
			continue
		}
		_ = l.Close()
	}
}
