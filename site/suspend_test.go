package site

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// TestSuspension holds the wishes of people to a holder, in the log and in a snapshot.
func TestSuspension(t *testing.T) {
	var ask Ask
	var no StopRefused
	var held Job
	golden.Fill(t, &ask)
	golden.Fill(t, &no)
	golden.Fill(t, &held.Hold)
	held.ID, held.Asks = "J", 42
	im := image{Format: snapshotFormat, Log: FormatLeases, Jobs: []Job{held}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/suspension.hex", []golden.Row{
		{Name: "Ask", Bytes: cborx.Marshal(ask)}, {Name: "StopRefused", Bytes: cborx.Marshal(no)}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
	})
	for i, want := range []Body{ask, no} {
		b, err := decodeBody(want.kind(), rows[i].Bytes)
		if err != nil || !reflect.DeepEqual(b, want) || FormatOf(b) != FormatLeases {
			t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
		}
	}
	for _, row := range rows[2:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if j, _ := back.Jobs.Get("J"); j.Hold == nil || *j.Hold != *held.Hold || j.Asks != 42 {
			t.Errorf("%s: lost on the way: %+v", row.Name, j.Hold)
		}
	}
}
