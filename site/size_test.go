package site

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// maxFinished is what a finished job may take of a snapshot.
const maxFinished = 1024

// TestFinishedJobIsSmall: a job that ran and left a log and an output takes less than a KiB
// of a snapshot, with nothing of it left out. Each has its own title, spec, output and log.
func TestFinishedJobIsSmall(t *testing.T) {
	f := &finishing{t: t, s: &State{}}
	id := func(n uint64) string { return forgeyard.DeriveULID(time.UnixMilli(1_800_000_000_000), n, 0) }
	runner, session := forgeyard.RunnerID(id(2)), forgeyard.SessionID(id(3))
	f.apply(Init{Site: forgeyard.SiteID(id(1)), Name: "lab", Config: sitecfg.DefaultSite(), Runner: runner, Node: "bench-1", Peer: "12D3KooW"})
	f.apply(Register{Runner: runner, Session: session, Formats: Formats, Caps: job.Capabilities{MilliCPU: 1 << 20, Memory: 1 << 40, Disk: 1 << 40, MaxJobs: 8}})
	f.apply(FormatRaise{To: FormatNow, Voters: []forgeyard.RunnerID{runner}})
	empty := f.size()
	const jobs = 200
	for n := range uint64(jobs) {
		spec := job.Spec{Title: fmt.Sprintf("firmware image %d", n), Steps: []job.Step{{Name: "compile", Run: []string{"make", fmt.Sprintf("BOARD=rev%d", n), "image"}}}, Outputs: []job.OutputDecl{{Path: "out/image.bin"}}}.Defaulted().Canonical()
		v := value[Submitted](f, Submit{Kind: job.Build, Title: fmt.Sprintf("firmware image %d", n), Spec: spec, SpecID: cas.Sum(spec)})
		a := value[forgeyard.Authority](f, Offer{Job: v.Job, Runner: runner, Session: session})
		f.apply(Accept{Authority: a})
		f.apply(Phase{Authority: a, Phase: job.PhasePreparing})
		f.apply(Phase{Authority: a, Phase: job.PhaseRunning, Exec: ExecutionRef{Node: runner, PID: 4000 + int(n), Birth: 900_000 + n}})
		f.apply(Phase{Authority: a, Phase: job.PhaseUploading})
		digest := func(what string) forgeyard.Digest { return cas.Sum(fmt.Append(nil, what, n)) }
		f.apply(Complete{Authority: a, Message: forgeyard.MessageID(id(1000 + n)), Result: job.Result{
			Outcome: job.OutcomeDone, Steps: []job.StepResult{{Name: "compile", Took: time.Minute + time.Duration(n)}},
			Outputs: []job.Output{{Path: "out/image.bin", Digest: digest("image"), Size: 1 << 20}},
			Log:     []job.LogChunk{{Digest: digest("log"), FirstSeq: 1, LastSeq: 40 + n, Size: 3000 + int64(n)}},
			Told: job.Told{First: 1, Events: []job.Happening{
				{Kind: job.EventTool, Tool: &job.Tool{Source: job.ToolExecutor, Name: "compile", State: job.ToolEnded, Took: time.Minute + time.Duration(n)}},
				{Kind: job.EventOutput, Output: &job.Printed{FirstSeq: 2, LastSeq: 39 + n, Stdout: 2800 + int64(n)}},
			}},
		}})
	}
	if f.s.Ended.Len() != jobs {
		t.Fatalf("%d of %d jobs have ended", f.s.Ended.Len(), jobs)
	}
	each, plain := (f.size()-empty)/jobs, len(f.s.Encode())/jobs
	if t.Logf("a finished job takes %d bytes, not packed %d", each, plain); each >= maxFinished || plain <= maxFinished {
		t.Errorf("a finished job takes %d bytes (not packed: %d), less than %d are promised", each, plain, maxFinished)
	}
	back, err := DecodeState(f.s.Snapshot())
	if err != nil || !bytes.Equal(back.Encode(), f.s.Encode()) {
		t.Fatalf("something was lost on the way: %v", err)
	}
}

type finishing struct {
	t *testing.T
	s *State
}

func (f *finishing) apply(b Body) Reply {
	f.t.Helper()
	next, r := f.s.Apply(f.s.Index+1, Command{ID: forgeyard.MessageID(fmt.Sprint("c", f.s.Index)), At: forgeyard.Wall(1_800_000_000_000 + int64(f.s.Index)*1000), By: "operator", Body: b}.Encode())
	if r.Err() != nil {
		f.t.Fatalf("%T: %v", b, r.Err())
	}
	f.s = next
	return r
}

func value[V any](f *finishing, b Body) V {
	f.t.Helper()
	v, err := Value[V](f.apply(b))
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

// size is that of a snapshot without what has a bound of its own: the memory of requests
// and the events of leases.
func (f *finishing) size() int {
	bare := *f.s
	bare.Requests, bare.Order, bare.LeaseLog = (&State{}).Requests, (&State{}).Order, (&State{}).LeaseLog
	return len(bare.Snapshot())
}
