package node

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// RS-106: an end that the log knows is one for the daemon too: it is told only when nothing
// is done any more for the run's child, and nothing more is begun for it.
func TestErrandsEndBeforeTheRunDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newErrands()
		for range 2 {
			if !e.begin() {
				t.Fatal("not admitted")
			}
		}
		var told sync.WaitGroup
		ended := make([]bool, 2) // finish may be asked for twice: by the end, and by a kill
		for i := range ended {
			told.Go(func() { e.finish(); ended[i] = true })
		}
		synctest.Wait()
		if e.begin() {
			t.Error("one more was begun for a run that is over")
		}
		if ended[0] || ended[1] {
			t.Error("the end was told while two errands were at work")
		}
		e.end()
		synctest.Wait()
		if ended[0] || ended[1] {
			t.Error("the end was told while an errand was at work")
		}
		e.end()
		told.Wait()
		if e.begin() {
			t.Error("one was begun after the end")
		}
		e.finish()
	})
}

// A run whose child asked for nothing is not held up.
func TestErrandsWithoutAny(t *testing.T) {
	e := newErrands()
	e.finish()
	if e.begin() {
		t.Error("admitted after the end")
	}
}

// doctor names the last run of a kind that failed on this node, until a later one ends well.
func TestDoctorLooksAtOwnRuns(t *testing.T) {
	st := &site.State{}
	end := func(run forgeyard.RunID, kind job.RunKind, node forgeyard.RunnerID, status job.Status) {
		id := forgeyard.JobID("J" + run)
		st.Jobs = st.Jobs.Put(id, site.Job{ID: id, Run: run, Spec: job.Spec{Kind: kind, Node: node}, Status: status})
		st.Runs = st.Runs.Put(run, site.Run{ID: run, Kind: kind, Status: status, Error: "input scope is gone", Ended: 1_800_000_000_000})
		st.EndedSeq++
		st.Ended = st.Ended.Put(site.SeqKey(st.EndedSeq), id)
	}
	judged := func() (status, text string) {
		c := check("own_runs")
		said := judgeOwnRuns(c, st, "R1")
		return c.Status, strings.Join(said, "; ") + " " + c.Fix
	}
	is := func(status string, parts ...string) {
		t.Helper()
		got, text := judged()
		for _, p := range parts {
			if got != status || !strings.Contains(text, p) {
				t.Errorf("%s: %q does not say %q as %s", got, text, p, status)
			}
		}
	}
	is(checkOK, "no ingest has ended here", "no garden has ended here")
	end("A", job.Ingest, "R2", job.Failed) // another node's
	end("B", "", "", job.Failed)           // a build
	is(checkOK, "no ingest has ended here")
	end("C", job.Garden, "R1", job.Done)
	end("D", job.Ingest, "R1", job.Failed)
	is(checkWarn, "the last ingest failed at 2027-01-15T08:00:00Z: input scope is gone", "the last garden was done", "run show D")
	end("E", job.Ingest, "R1", job.Cancelled)
	is(checkOK, "the last ingest was cancelled")
}
