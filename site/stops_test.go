package site

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
)

// TestStopsInTheLog holds how and why work is stopped: the commands, and what the state keeps.
func TestStopsInTheLog(t *testing.T) {
	var cancel Cancel
	var stopping Stopping
	var preempt Preempt
	var suspend RunSuspend
	var resume RunResume
	golden.Fill(t, &cancel)
	golden.Fill(t, &stopping)
	golden.Fill(t, &preempt)
	golden.Fill(t, &suspend)
	golden.Fill(t, &resume)
	j, r, m := Job{ID: "J", Run: "R", Stuck: 2}, Run{ID: "R", Job: "J", Group: "main", Order: 7, SupersededBy: "S"}, Member{Runner: "N", Assigned: job.Assignment{Class: job.Spot}}
	golden.Fill(t, &j.Cancel)
	golden.Fill(t, &r.Suspension)
	golden.Fill(t, &m.Notice)
	j.Spec.Interruption = job.Interruption{StableAfter: 2, ResumeFailures: 1, Priority: job.PriorityHigh, FinishWithin: 3}
	j.Spec.Resume.Checkpoint.OnCancel = true
	submit := Submit{Kind: job.Build, Group: "main", Order: 7}
	s, err := DecodeState(cborx.Marshal(image{Format: snapshotFormat, Log: FormatLeases, Jobs: []Job{j}, Runs: []Run{r}, Members: []Member{m}}))
	if err != nil {
		t.Fatal(err)
	}
	bodies := []Body{cancel, stopping, preempt, suspend, resume, submit}
	var today []golden.Row
	for _, b := range bodies {
		today = append(today, golden.Row{Name: reflect.TypeOf(b).Name(), Bytes: cborx.Marshal(b)})
	}
	today = append(today, golden.Row{Name: "snapshot", Bytes: s.Encode()}, golden.Row{Name: "packed", Bytes: s.Snapshot()})
	rows := golden.Rows(t, "testdata/stops.hex", today)
	for i, want := range bodies {
		b, err := decodeBody(want.kind(), rows[i].Bytes)
		if err != nil || !reflect.DeepEqual(b, want) || FormatOf(b) != FormatLeases {
			t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
		}
	}
	for _, row := range rows[len(bodies):] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		gotJob, _ := back.Jobs.Get("J")
		gotRun, _ := back.Runs.Get("R")
		gotMember, _ := back.Members.Get("N")
		if !reflect.DeepEqual([]any{gotJob.Cancel, gotJob.Stuck, gotJob.Spec.Interruption, gotRun, gotMember.Notice, gotMember.Assigned}, []any{j.Cancel, j.Stuck, j.Spec.Interruption, r, m.Notice, m.Assigned}) {
			t.Errorf("%s: lost on the way: %+v", row.Name, back.image())
		}
	}
	if !j.Spec.SaysLater() {
		t.Error("the spec says nothing of format 2")
	}
}
