package node

import (
	"bytes"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// maxLogEntry is what the site's log takes as one command.
const maxLogEntry = 1 << 20

// logging is an execution on half a node with a store, and parts of a log that are in it.
func logging(t *testing.T, sp job.Spec, parts int) (*execution, *oneLog, []job.LogChunk) {
	t.Helper()
	n, g, c := halfNodeWith(t, sp)
	g.take = func(_ site.Command, size int) error {
		if size > maxLogEntry {
			return forgeyard.Errorf("propose", forgeyard.Limit, "a command of %d bytes is larger than %d", size, maxLogEntry)
		}
		return nil
	}
	s, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	n.store = s
	ref, err := s.Put(t.Context(), bytes.NewReader([]byte("said")), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []job.LogChunk
	for i := range uint64(parts) {
		all = append(all, job.LogChunk{Digest: ref.Digest, Size: ref.Size, FirstSeq: 1000*i + 1, LastSeq: 1000 * (i + 1)})
	}
	return &execution{n: n, authority: c.Authority, job: n.jobNow(t, c.Authority.Job), logged: make(chan struct{}, 1)}, g, all
}

// A log of ten gibibytes has more parts than a command can name: the work that wrote it has
// its result all the same, and the record says that the log is not whole.
func TestResultOfALongLog(t *testing.T) {
	for _, parts := range []int{site.MaxLogChunks, site.MaxLogChunks + 1, 40_000} {
		x, _, all := logging(t, job.Spec{}, parts)
		x.deliver(t.Context(), job.Result{Outcome: job.OutcomeDone, Log: x.unsent(all)}, all, func([]byte) error { return nil })
		j := x.n.jobNow(t, x.authority.Job)
		if j.Status != job.Done || j.LogSeq != 1000*uint64(parts) || j.LogFull != (parts > site.MaxLogChunks) || !slices.Equal(j.Log, all[:site.MaxLogChunks]) {
			t.Errorf("%d parts: %s %s, %d in the record up to %d, full: %v", parts, j.Status, j.Reason, len(j.Log), j.LogSeq, j.LogFull)
		}
	}
	x, g, all := logging(t, job.Spec{}, 40_000)
	x.n.proposer.Group = g
	if !x.n.giveBack(t.Context(), runner.Recovered{Authority: x.authority, Log: all}) {
		t.Fatal("not answered")
	}
	if j := x.n.jobNow(t, x.authority.Job); j.Status != job.Queued || j.LogSeq != 40_000_000 {
		t.Errorf("given back: %s, the log is known up to %d", j.Status, j.LogSeq)
	}
}

// What is finished is written down before anything is waited for, the copies of its log
// too; and those are there before the site hears of it, where the job asks for copies.
func TestResultIsWrittenDownFirst(t *testing.T) {
	x, g, all := logging(t, job.Spec{Durability: job.DurSite}, 3)
	copied := func() bool {
		pins, err := x.n.store.Pins(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(pins, func(p cas.Pin) bool { return p.Owner == agent.LogPin(x.authority) })
	}
	kept := false
	g.take = func(site.Command, int) error {
		if !copied() || !kept {
			t.Errorf("the site hears of it while it is written down: %v, its log copied: %v", kept, copied())
		}
		return nil
	}
	x.deliver(t.Context(), job.Result{Outcome: job.OutcomeDone, Log: x.unsent(all)}, all, func([]byte) error {
		if kept = true; copied() {
			t.Error("the log was copied first")
		}
		return nil
	})
	if j := x.n.jobNow(t, x.authority.Job); j.Status != job.Done || !kept {
		t.Errorf("%s", j.Status)
	}
}

// An epoch that goes on in place names all of its log in the commit that ends it: the next
// one numbers on after what the site has.
func TestGoesOnWithItsWholeLog(t *testing.T) {
	for _, parts := range []int{site.MaxReportedLog + 100, 40_000} {
		x, _, all := logging(t, job.Spec{Resume: job.Resume{Mode: job.ResumeApplication}}, parts)
		x.Logged(t.Context(), all)
		id := cas.Sum([]byte("saved"))
		m := checkpoint.Manifest{Version: 1, Payload: id, Marker: id, Job: x.authority.Job, Attempt: x.authority.Attempt, Epoch: 1, Seq: 1, Consistency: checkpoint.Application}
		c := &checkpointer{x: x}
		got, err := c.commit(t.Context(), capture.Ingested{Manifest: m, ID: m.ID(), Owner: "mine"}, true)
		if err != nil || got.Verdict != runner.VerdictContinue {
			t.Fatalf("%+v %v", got, err)
		}
		if j := x.n.jobNow(t, x.authority.Job); j.Epoch != 2 || j.LogSeq != all[parts-1].LastSeq || len(j.Log) != min(parts, site.MaxLogChunks) {
			t.Errorf("%d parts: epoch %d, %d in the record up to %d", parts, j.Epoch, len(j.Log), j.LogSeq)
		}
	}
}
