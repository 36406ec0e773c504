package consensus

import (
	"testing"

	"github.com/hashicorp/raft"
)

// What a shelf remembers is what is on disk: after a snapshot that was given up, and
// after one that was finished.
func TestShelfRemembersTheNewest(t *testing.T) {
	dir := t.TempDir()
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, newHCLog(quiet()))
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{SnapshotStore: files}
	want := func(p position) {
		t.Helper()
		for range 2 {
			if got, err := s.at(); err != nil || got != p {
				t.Errorf("%+v, %v; want %+v", got, err, p)
			}
		}
	}
	want(position{})
	_, trans := raft.NewInmemTransport("")
	write := func(index uint64, cancel bool) {
		t.Helper()
		sink, err := s.Create(raft.SnapshotVersionMax, index, 3, raft.Configuration{}, 1, trans)
		if err != nil {
			t.Fatal(err)
		}
		if cancel {
			err = sink.Cancel()
		} else {
			err = sink.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(7, false)
	want(position{Term: 3, Index: 7})
	write(9, true)
	want(position{Term: 3, Index: 7})
	write(12, false)
	want(position{Term: 3, Index: 12})
}
