package consensus

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/hashicorp/raft"
)

func commandAt(i uint64, data string) *raft.Log {
	return &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: encodeCommand([]byte(data))}
}

// RA-442: a snapshot that does not lead to the state which it names costs the state, and no
// reader sees either the wrong one or the blank one. They see the new state once it has all
// that they had; until then nobody is told that an index is applied, and nothing that comes
// again is called new.
func TestReadersKeepWhatTheyHadThroughARebuild(t *testing.T) {
	n := &notebook{}
	m, err := newMachine(n, nonce{1}, newStamper(""), guardsOff{})
	if err != nil {
		t.Fatal(err)
	}
	m.liveAfter(position{Term: 1, Index: 1})
	for i, data := range []string{"a", "b", "c"} {
		m.Apply(commandAt(uint64(i+1), data))
	}
	bad := stateHeader{index: 9, hash: m.stamp.put([32]byte{7})}
	var body bytes.Buffer
	if err := json.NewEncoder(&body).Encode(&notebookSnapshot{Entries: []Entry{{Index: 8, Data: []byte("wrong")}}}); err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(io.NopCloser(io.MultiReader(bytes.NewReader(bad.encode()), &body))); err == nil {
		t.Fatal("a snapshot that is not what it says was taken")
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for i, data := range []string{"a", "b", "c"} {
		if err := m.wait(now, uint64(i), nil); err == nil || !m.suspect() {
			t.Errorf("at %d of 3 the state is served: %v", i, err)
		}
		m.Apply(commandAt(uint64(i+1), data))
		if n.entries[i].Live {
			t.Errorf("%s came again, and is called new", data)
		}
	}
	if m.suspect() || m.wait(now, 3, nil) != nil || n.held || n.wentBack != "" || len(n.shown) != 3 {
		t.Errorf("suspect: %v; readers see %d entries; %s", m.suspect(), len(n.shown), n.wentBack)
	}
	if m.Apply(commandAt(4, "d")); !n.entries[3].Live {
		t.Error("what comes after is new")
	}
}
