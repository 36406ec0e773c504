package site

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

func part(first, last uint64) job.LogChunk {
	return job.LogChunk{Digest: cas.Sum([]byte{byte(first), byte(last)}), Size: 100, FirstSeq: first, LastSeq: last}
}

// RA-247: parts of a log that an execution reports while it runs are the job's, each once and in their
// order, whatever becomes of its runner; the next epoch goes on after them, and knows how
// much more its predecessor said it had.
func TestReportedLog(t *testing.T) {
	l := newLab(t)
	a := l.held("one")
	l.must(Report{Authority: a, Log: []job.LogChunk{part(1, 4), part(5, 9)}})
	l.must(Report{Authority: a, Log: []job.LogChunk{part(5, 9), part(10, 12)}})
	want := []job.LogChunk{part(1, 4), part(5, 9), part(10, 12)}
	if j := l.job(a); !reflect.DeepEqual(j.Log, want) || j.LogSeq != 12 {
		t.Fatalf("%+v up to %d", j.Log, j.LogSeq)
	}
	if err := l.do(Report{Authority: a, Log: make([]job.LogChunk, MaxReportedLog+1)}).Err(); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Fatalf("too many: %v", err)
	}
	l.must(Expire{Job: a.Job, Lease: a.Lease, Certain: true, State: lease.Accepted, LogSeq: 30})
	if err := l.do(Report{Authority: a, Log: []job.LogChunk{part(13, 14)}}).Err(); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatalf("from one whose lease is certainly over: %v", err)
	}
	next := l.offer(a.Job, "one")
	if j := l.job(a); j.Tail != 30 || j.LogSeq != 12 || !reflect.DeepEqual(j.Log, want) {
		t.Fatalf("tail %d after %d: %+v", j.Tail, j.LogSeq, j.Log)
	}
	// An offer that was not taken has run nothing: what was lost before it is still to be said.
	l.must(Reject{Authority: next, Reason: job.RejectPressure})
	next = l.offer(a.Job, "one")
	if j := l.job(a); j.Tail != 30 || j.LogSeq != 12 {
		t.Fatalf("after a rejection: tail %d after %d", j.Tail, j.LogSeq)
	}
	l.must(Accept{Authority: next})
	l.must(Report{Authority: next, Log: []job.LogChunk{part(13, 20)}})
	// One that was given back in order has lost nothing.
	l.must(Release{Authority: next, Kind: "interrupted", Log: []job.LogChunk{part(21, 22)}})
	l.offer(a.Job, "one")
	if j := l.job(a); j.Tail != 0 || j.LogSeq != 22 || len(j.Log) != 5 {
		t.Fatalf("tail %d after %d: %+v", j.Tail, j.LogSeq, j.Log)
	}
	// One that stopped before it was missed says itself how far it was.
	l.must(FormatRaise{To: FormatNow, Voters: []forgeyard.RunnerID{"R1"}})
	last := l.job(a).Lease.Authority
	l.must(Accept{Authority: last})
	l.must(Stopped{Authority: last, LogSeq: 40})
	l.offer(a.Job, "one")
	if j := l.job(a); j.Tail != 40 || j.LogSeq != 22 {
		t.Fatalf("tail %d after %d", j.Tail, j.LogSeq)
	}
}

// TestLogOfTheLost holds the bytes of what was added for logs that outlive their runner.
func TestLogOfTheLost(t *testing.T) {
	chunk := job.LogChunk{}
	golden.Fill(t, &chunk)
	im := image{Format: snapshotFormat, Log: FormatRuns, Jobs: []Job{{ID: "J", Tail: 7}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	command := func(b Body) []byte {
		return Command{ID: "01JD0000000000000000000001", At: 1_800_000_000_000, By: "operator", Body: b}.Encode()
	}
	bodies := []Body{Report{Log: []job.LogChunk{chunk}}, Expire{LogSeq: 7}}
	rows := golden.Rows(t, "testdata/joblog.hex", []golden.Row{
		{Name: "Report", Bytes: command(bodies[0])}, {Name: "Expire", Bytes: command(bodies[1])}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
	})
	for i, b := range bodies {
		if c, err := Decode(rows[i].Bytes); err != nil || !reflect.DeepEqual(c.Body, b) || FormatOf(b) != FormatRuns {
			t.Errorf("%v: %+v", err, c.Body)
		}
	}
	for _, row := range rows[2:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if j, _ := back.Jobs.Get("J"); j.Tail != 7 {
			t.Errorf("%s: lost on the way: %+v", row.Name, j)
		}
	}
}
