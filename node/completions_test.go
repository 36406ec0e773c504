package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// bubbleClock is the clock inside a synctest bubble: it moves when everybody waits.
type bubbleClock struct{ since time.Time }

func (c bubbleClock) Now() forgeyard.Instant {
	return forgeyard.Instant(time.Since(c.since) + time.Second)
}
func (c bubbleClock) Wall() time.Time                        { return time.Now().UTC() }
func (c bubbleClock) BootID() string                         { return "boot" }
func (c bubbleClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// oneLog is a group of one over the real rules. What answer says happens to a proposal,
// before it is applied (take) or after (give).
type oneLog struct {
	r        *replica.Replica
	take     func(site.Command, int) error
	give     func(site.Command) error
	requests map[forgeyard.MessageID]int
	commands []site.Command
}

func (g *oneLog) Leader() (id, addr string, term uint64)    { return "me", "me", 1 }
func (g *oneLog) Applied() uint64                           { return 1 }
func (g *oneLog) WaitApplied(context.Context, uint64) error { return nil }
func (g *oneLog) Propose(_ context.Context, b []byte) (consensus.Result, error) {
	c, err := site.Decode(b)
	if err != nil {
		return consensus.Result{}, err
	}
	g.requests[c.ID]++
	g.commands = append(g.commands, c)
	if g.take != nil {
		if err := g.take(c, len(b)); err != nil {
			return consensus.Result{}, err
		}
	}
	at := g.r.State().Index + 1
	v := g.r.Apply(consensus.Entry{Index: at, Term: 1, Data: b, Live: true})
	if g.give != nil {
		if err := g.give(c); err != nil {
			return consensus.Result{}, err
		}
	}
	return consensus.Result{Index: at, Value: v}, nil
}

// halfNode is as much of a node as carries completions: the rules are the real ones, and
// the log is one that can be told to fail.
func halfNode(t *testing.T) (*Node, *oneLog, completion) {
	t.Helper()
	return halfNodeWith(t, job.Spec{})
}

func halfNodeWith(t *testing.T, sp job.Spec) (*Node, *oneLog, completion) {
	t.Helper()
	n := &Node{clock: bubbleClock{time.Now()}, log: slog.New(slog.DiscardHandler), replica: replica.New(), local: newLocal(), backlog: newBacklog(), kick: make(chan struct{}, 1), session: "one"}
	n.metrics = newMetrics(n)
	id, err := mesh.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	n.identity, n.enrolment.RunnerID = id, "R1"
	g := &oneLog{r: n.replica, requests: map[forgeyard.MessageID]int{}}
	n.proposer = &replica.Proposer{Group: g, Self: "me", Clock: n.clock, By: "test", NewID: func() forgeyard.MessageID { return forgeyard.MessageID(NewID(n.clock)) }}
	do := func(b site.Body) site.Reply {
		t.Helper()
		r, err := n.propose(t.Context(), b)
		if err != nil {
			t.Fatalf("%T: %v", b, err)
		}
		return r
	}
	do(site.Init{Site: forgeyard.SiteID(NewID(n.clock)), Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: id.PeerID().String()})
	do(site.Register{Runner: "R1", Session: "one", Formats: site.Formats})
	sp.Title, sp.Steps = "j", []job.Step{{Name: "s", Run: []string{"true"}}}
	sp = sp.Defaulted()
	sub, err := site.Value[site.Submitted](do(site.Submit{Kind: job.Build, Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical())}))
	if err != nil {
		t.Fatal(err)
	}
	a, err := site.Value[forgeyard.Authority](do(site.Offer{Job: sub.Job, Runner: "R1", Session: "one"}))
	if err != nil {
		t.Fatal(err)
	}
	do(site.Accept{Authority: a})
	n.local.book.Granted(a, sp.Resources, n.clock.Now())
	return n, g, completion{Authority: a, Message: "M1", Result: job.Result{Outcome: job.OutcomeDone}}
}

func (n *Node) jobNow(t *testing.T, id forgeyard.JobID) site.Job {
	t.Helper()
	j, ok := n.replica.State().Jobs.Get(id)
	if !ok {
		t.Fatalf("no job %s", id)
	}
	return j
}

// E13: a finished result is tried for as long as it takes, always as the same message,
// and counts once (RA-025, RA-449, RA-492, RA-518, RA-539, RA-561), also when only its answer got
// lost (RA-276): that it is a duplicate settles it (RA-275). Before the first try it is written
// down (RA-277), whole: whose it is, its result and its message id (RA-270, RA-271).
func TestCompletionIsTriedUntilAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g, c := halfNode(t)
		from, kept := time.Now(), []byte(nil)
		g.commands = nil
		g.take = func(cmd site.Command, _ int) error {
			if b, ok := cmd.Body.(site.Complete); ok && b.Message != "M1" {
				t.Errorf("it went out as message %s", b.Message)
			}
			if kept == nil {
				t.Error("it was proposed before it was written down")
			}
			if time.Since(from) < 20*time.Minute {
				return forgeyard.Errorf("propose", forgeyard.Unavailable, "no quorum")
			}
			return nil
		}
		lost := 2 // and when the quorum is back, the first answers get lost
		g.give = func(site.Command) error {
			if lost--; lost >= 0 {
				return forgeyard.Errorf("propose", forgeyard.Unknown, "cut")
			}
			return nil
		}
		if !n.deliver(t.Context(), c, func(b []byte) error { kept = b; return nil }) {
			t.Fatal("given up")
		}
		if j := n.jobNow(t, c.Authority.Job); j.Status != job.Done || j.Message != "M1" || len(j.Late) != 0 {
			t.Fatalf("%s by message %s, %d late results", j.Status, j.Message, len(j.Late))
		}
		if back, err := decodeCompletion(kept); err != nil || !reflect.DeepEqual(back, c) {
			t.Fatalf("what was written down: %+v %v", back, err)
		}
		if n.local.book.Active() != 0 {
			t.Error("the lease holds room after the answer")
		}
	})
}

// A disk that is full does not hold a result back.
func TestCompletionGoesOutWithoutItsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, c := halfNode(t)
		if !n.deliver(t.Context(), c, func([]byte) error { return errors.New("no space left on device") }) {
			t.Fatal("given up")
		}
		if j := n.jobNow(t, c.Authority.Job); j.Status != job.Done {
			t.Fatal(j.Status)
		}
	})
}

// A node that stops while nobody answers leaves the lease and the file to its next
// process.
func TestCompletionIsLeftToTheNextProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g, c := halfNode(t)
		g.take = func(site.Command, int) error { return forgeyard.Errorf("propose", forgeyard.Unavailable, "no quorum") }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if n.deliver(ctx, c, nil) {
			t.Fatal("answered, by nobody")
		}
		if n.local.book.Active() != 1 {
			t.Error("the lease was let go without an answer")
		}
	})
}

// A result that this program cannot read, since a newer one wrote it, is left for that one.
func TestUnreadableCompletionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g, c := halfNode(t) // without a runner: to forget the record would be to call it
		g.commands = nil
		n.recovered = []runner.Recovered{{Authority: c.Authority, Completion: []byte{0xff}}}
		n.deliverRecovered(t.Context())
		if len(g.commands) != 0 {
			t.Errorf("%d proposals of what nobody can read", len(g.commands))
		}
	})
}

// A result does not wait for the logs of other epochs, whose time to be saved begins after it.
func TestRecoveredResultsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g, c := halfNode(t)
		dir := t.TempDir()
		r, err := runner.New(runner.Config{
			Workspaces: filepath.Join(dir, "w"), Spool: filepath.Join(dir, "s"), StateDir: filepath.Join(dir, "a"), Store: fullStore{}, Clock: n.clock, Log: n.log,
			Fetch: func(context.Context, cas.Ref) error { return nil }, FetchTree: func(context.Context, forgeyard.Digest) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		n.runner = r
		other := c.Authority
		other.Attempt, other.Lease = "other", "other"
		sp, err := spool.Open(spool.Config{Dir: filepath.Join(dir, "s", "other", "1"), Epoch: 1, Clock: n.clock})
		if err == nil {
			err = errors.Join(sp.Append(t.Context(), spool.Stdout, 1, []byte("unsaved")), sp.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		n.recovered = []runner.Recovered{{Authority: other, Unsaved: true}, {Authority: c.Authority, Completion: c.encode()}}
		begun := n.clock.Now()
		var order []string
		g.commands, g.take = nil, func(s site.Command, _ int) error {
			order = append(order, fmt.Sprintf("%T after %v", s.Body, n.clock.Now().Sub(begun).Round(5*time.Second)))
			if len(order) == 1 {
				<-n.clock.After(time.Minute)
			}
			return nil
		}
		n.deliverRecovered(t.Context())
		if want := []string{"site.Complete after 0s", "site.Release after 1m10s"}; !slices.Equal(order, want) {
			t.Errorf("%q", order)
		}
	})
}

// fullStore takes nothing.
type fullStore struct{ cas.Store }

func (fullStore) Put(context.Context, io.Reader, cas.PutOptions) (cas.Ref, error) {
	return cas.Ref{}, forgeyard.Errorf("put", forgeyard.NoSpace, "the store is full")
}

// A result that no log takes ends its job with one that the log can take, which says why:
// otherwise the job would be run again, to the same end.
func TestResultThatIsTooLargeFailsItsJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g, c := halfNode(t)
		g.take = func(_ site.Command, size int) error {
			if size > 200_000 {
				return forgeyard.Errorf("propose", forgeyard.Limit, "a command of %d bytes is larger than %d", size, 200_000)
			}
			return nil
		}
		for i := range 5000 {
			c.Result.Steps = append(c.Result.Steps, job.StepResult{Name: fmt.Sprintf("step %40d", i)})
		}
		if !n.deliver(t.Context(), c, nil) {
			t.Fatal("not settled")
		}
		j := n.jobNow(t, c.Authority.Job)
		if j.Status != job.Failed || j.Category != job.Internal || !strings.Contains(j.Result.Message, "could not be committed") || !strings.Contains(j.Result.Message, "200000") {
			t.Fatalf("%s %s: %s", j.Status, j.Category, j.Result.Message)
		}
		if j.Message == c.Message {
			t.Error("the small result went out as the message of the large one")
		}
		if n.local.book.Active() != 0 {
			t.Error("the lease holds room after the answer")
		}
	})
}

// A result of an earlier version, whose log has more parts than an entry holds, is delivered:
// the job's record names those that it has room for, and says that the rest is not kept. So is
// one that tells of more than fits.
func TestLongLogDoesNotCostTheResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g, c := halfNode(t)
		if _, err := n.propose(t.Context(), site.FormatRaise{To: site.FormatNow, Voters: []forgeyard.RunnerID{"R1"}}); err != nil {
			t.Fatal(err)
		}
		const bound = 100_000
		g.take = func(_ site.Command, size int) error {
			if size > bound {
				return forgeyard.Errorf("propose", forgeyard.Limit, "a command of %d bytes is larger than %d", size, bound)
			}
			return nil
		}
		for i := range 5000 {
			c.Result.Log = append(c.Result.Log, job.LogChunk{Digest: cas.Sum(fmt.Append(nil, i)), Size: 1, FirstSeq: uint64(i + 1), LastSeq: uint64(i + 1)})
			c.Result.Told.Events = append(c.Result.Told.Events, job.Happening{Kind: job.EventMessage, Message: fmt.Sprint("what happened at ", i)})
		}
		c.Result.Told.First = 1
		if !n.deliver(t.Context(), c, nil) {
			t.Fatal("not settled")
		}
		j := n.jobNow(t, c.Authority.Job)
		if j.Status != job.Done || j.Message != c.Message || len(j.Log) != site.MaxLogChunks || j.LogSeq != 5000 {
			t.Errorf("%s by message %s, %d parts of the log, up to %d", j.Status, j.Message, len(j.Log), j.LogSeq)
		}
		var said []string
		for _, e := range n.replica.State().RunEvents(j.Run, 0) {
			if e.Kind == job.EventError {
				said = append(said, e.Message)
			}
		}
		if all := strings.Join(said, "; "); !strings.Contains(all, "what follows number 512 is not kept") || !strings.Contains(all, "5000 events are not told") {
			t.Errorf("it says %q", said)
		}
	})
}

// Where even that is refused, trying ends: the lease is over here, and the leader finds
// it silent.
func TestGivingUpEnds(t *testing.T) {
	for _, kind := range []forgeyard.Kind{forgeyard.Limit, forgeyard.Denied, forgeyard.Invalid} {
		t.Run(kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, g, c := halfNode(t)
				g.commands = nil
				g.take = func(site.Command, int) error { return forgeyard.Errorf("propose", kind, "never") }
				if !n.deliver(t.Context(), c, nil) {
					t.Fatal("not settled")
				}
				if len(g.commands) != 2 {
					t.Errorf("%d proposals, 2 are expected: the result, and the small one", len(g.commands))
				}
				if j := n.jobNow(t, c.Authority.Job); j.Status.Terminal() || n.local.book.Active() != 0 {
					t.Errorf("%s, %d leases here", j.Status, n.local.book.Active())
				}
			})
		})
	}
}

// What the log refuses as stale is settled too, and is not tried again (RA-273, RA-519; E27 keeps it
// as evidence).
func TestStaleCompletionIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, c := halfNode(t)
		if _, err := n.propose(t.Context(), site.Register{Runner: "R1", Session: "two"}); err != nil {
			t.Fatal(err)
		}
		if !n.deliver(t.Context(), c, nil) || n.local.book.Active() != 0 {
			t.Fatal("not settled")
		}
		if j := n.jobNow(t, c.Authority.Job); j.Status != job.Queued || len(j.Late) != 1 {
			t.Fatalf("%s, %d late results", j.Status, len(j.Late))
		}
	})
}

// TestCompletionOfVersion1: it stands in the state file of an attempt, and the process
// after an upgrade delivers it.
func TestCompletionOfVersion1(t *testing.T) {
	var want completion
	golden.Fill(t, &want, "Result.Told", "Result.Overran", "Result.Diagnostics") // that came later
	got, err := decodeCompletion(golden.Bytes(t, "testdata/completion-v1.hex", want.encode()))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v %v", got, err)
	}
}

// FuzzDecodeCompletion: what is read is written and read as the same.
func FuzzDecodeCompletion(f *testing.F) {
	f.Add(completion{Message: "m", Result: job.Result{Outcome: job.OutcomeFailed, Steps: []job.StepResult{{Name: "s", ExitCode: -1}}}}.encode())
	f.Add([]byte{0xa0})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCompletion(b)
		if err != nil {
			return
		}
		again, err := decodeCompletion(c.encode())
		if err != nil || !bytes.Equal(again.encode(), c.encode()) {
			t.Fatalf("%v: %+v, then %+v", err, c, again)
		}
	})
}
