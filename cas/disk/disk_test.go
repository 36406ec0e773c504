package disk_test

import (
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

func open(t testing.TB, c disk.Config) *disk.Store {
	t.Helper()
	s, err := disk.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	castest.Run(t, func(t *testing.T) cas.Store { return open(t, disk.Config{Dir: t.TempDir()}) })
}

func TestConformanceOfNames(t *testing.T) {
	castest.RunNames(t, func(t *testing.T) castest.Named { return open(t, disk.Config{Dir: t.TempDir()}) })
}
