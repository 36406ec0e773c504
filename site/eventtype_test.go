package site

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
)

// TestEventTypesInTheLog holds the types of events in a snapshot: programs go by their words.
func TestEventTypesInTheLog(t *testing.T) {
	im := image{Format: snapshotFormat, Log: FormatLeases, Runs: []Run{{ID: "R", LastSeq: uint64(len(job.EventTypes))}}}
	for i, typ := range job.EventTypes {
		im.Events = append(im.Events, eventRow{Run: "R", Event: job.Event{Seq: uint64(i + 1), At: 1_800_000_000_000, Kind: job.EventMessage, Type: typ}})
	}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range golden.Rows(t, "testdata/event-types.hex", []golden.Row{{Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()}}) {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := back.image().Events; !reflect.DeepEqual(got, im.Events) {
			t.Errorf("%s: lost on the way: %+v", row.Name, got)
		}
	}
}
