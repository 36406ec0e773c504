package castest_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// The double that others test with keeps the promises of the exchange.
func TestDirect(t *testing.T) {
	castest.RunExchange(t, func(t *testing.T) cas.Store {
		s, err := disk.Open(disk.Config{Dir: filepath.Join(t.TempDir(), "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}, func(_ *testing.T, local cas.Store, peers ...cas.Store) castest.Site {
		x := castest.Direct{To: local, From: map[string]cas.Store{}}
		s := castest.Site{Exchange: x}
		for i, p := range peers {
			name := fmt.Sprintf("peer-%d", i)
			x.From[name] = p
			s.Peers = append(s.Peers, castest.Peer{Name: name, Gone: func() { x.From[name] = nil }})
		}
		return s
	})
}
