package site

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
)

// TestMarksInTheLog holds a program's mark, and the contract of a list of tests, in the log and
// in a snapshot.
func TestMarksInTheLog(t *testing.T) {
	var m Mark
	golden.Fill(t, &m)
	held := Job{ID: "J", Mark: "rebooted"}
	held.Spec.Resume = job.Resume{Mode: job.ResumeFramework, Isolation: job.Suite, Profile: job.ProfileSlurm, Checkpoint: job.CheckpointDecl{Results: 42}}
	s, err := DecodeState(cborx.Marshal(image{Format: snapshotFormat, Log: FormatLeases, Jobs: []Job{held}}))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/marks.hex", []golden.Row{{Name: "Mark", Bytes: cborx.Marshal(m)}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()}})
	if b, err := decodeBody(kindMark, rows[0].Bytes); err != nil || !reflect.DeepEqual(b, m) || FormatOf(b) != FormatLeases {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	for _, row := range rows[1:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if j, _ := back.Jobs.Get("J"); j.Mark != held.Mark || !reflect.DeepEqual(j.Spec.Resume, held.Spec.Resume) {
			t.Errorf("%s: lost on the way: %+v", row.Name, j)
		}
	}
}
