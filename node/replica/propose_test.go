package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// bubbleClock is the clock inside a synctest bubble.
type bubbleClock struct{}

func (bubbleClock) Now() forgeyard.Instant                 { return forgeyard.Instant(time.Now().UnixNano()) }
func (bubbleClock) Wall() time.Time                        { return time.Now().UTC() }
func (bubbleClock) BootID() string                         { return "boot" }
func (bubbleClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// far is a leader elsewhere, over the real rules, behind a link that can be told to fail.
type far struct {
	t      *testing.T
	s      *site.State
	calls  []string // request id of each call, as it left
	asked  []string // address of each call
	waited []uint64
	addr   string // who leads, as far as we know
	before func(call int) error
	after  func(call int) error
}

func newFar(t *testing.T) (*far, *Proposer) {
	t.Helper()
	f := &far{t: t, s: &site.State{}, addr: "n2"}
	r := f.apply(site.Command{ID: "init", Body: site.Init{Site: "01HF000000000000000000000S", Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"}}.Encode())
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	n := 0
	return f, &Proposer{Group: f, Self: "n1", Clock: bubbleClock{}, By: "test", Forward: f.forward, NewID: func() forgeyard.MessageID {
		n++
		return forgeyard.MessageID(fmt.Sprint("request-", n))
	}}
}

func (f *far) apply(b []byte) site.Reply {
	next, r := f.s.Apply(f.s.Index+1, b)
	f.s = next
	return r
}

func (f *far) Leader() (id, addr string, term uint64) { return f.addr, f.addr, 1 }

// Applied implements Group: this copy has applied something, so answers are awaited in it.
func (f *far) Applied() uint64 { return 1 }

func (f *far) WaitApplied(_ context.Context, index uint64) error {
	f.waited = append(f.waited, index)
	return nil
}

func (f *far) Propose(_ context.Context, b []byte) (consensus.Result, error) {
	index, reply, err := f.forward(context.Background(), "here", b)
	if err != nil {
		return consensus.Result{}, err
	}
	var r site.Reply
	if err := cborx.Unmarshal(reply, &r); err != nil {
		f.t.Fatal(err)
	}
	return consensus.Result{Index: index, Value: r}, nil
}

func (f *far) forward(_ context.Context, addr string, b []byte) (uint64, []byte, error) {
	c, err := site.Decode(b)
	if err != nil {
		f.t.Fatal(err)
	}
	f.calls, f.asked = append(f.calls, string(c.ID)), append(f.asked, addr)
	call := len(f.calls)
	if f.before != nil {
		if err := f.before(call); err != nil {
			return 0, nil, err
		}
	}
	r := f.apply(b)
	if f.after != nil {
		if err := f.after(call); err != nil {
			return 0, nil, err
		}
	}
	return f.s.Index, cborx.Marshal(r), nil
}

// answer is an error as the other side says it, over the wire.
func answer(k forgeyard.Kind, text string) error {
	return wire.FromConnect(wire.ToConnect(forgeyard.Errorf("there", k, "%s", text)))
}

// leaderOr asks the leader where one is known.
func leaderOr(other func(int) string) func(string, int) string {
	return func(leader string, try int) string {
		if leader != "" {
			return leader
		}
		return other(try)
	}
}

func submission() site.Submit {
	raw := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	return site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}
}

func jobs(s *site.State) int { return s.Jobs.Len() }

func sameID(t *testing.T, calls []string) {
	t.Helper()
	for _, id := range calls {
		if id != calls[0] {
			t.Fatalf("one proposal went out under several request ids: %v", calls)
		}
	}
}

// RA-442, decision 26f: an answer that is lost does nothing twice. A submission without an
// idempotency key would make a second job, were it a second request.
func TestLostAnswersDoNothingTwice(t *testing.T) {
	cut := errors.New("connection reset by peer")
	for name, lose := range map[string]func(*far){
		"the call":   func(f *far) { f.before = func(n int) error { return when(n <= 3, cut) } },
		"the answer": func(f *far) { f.after = func(n int) error { return when(n <= 3, cut) } },
		"both": func(f *far) {
			f.before = func(n int) error { return when(n%2 == 1 && n < 6, cut) }
			f.after = func(n int) error { return when(n < 6, cut) }
		},
		"the leader": func(f *far) {
			f.after = func(n int) error {
				f.addr = map[int]string{1: "n3", 2: "", 3: "n2"}[n]
				return when(n <= 2, cut)
			}
		},
		"the leader's own": func(f *far) {
			f.addr, f.after = "n1", func(n int) error { return when(n == 1, forgeyard.Errorf("propose", forgeyard.Unknown, "deposed")) }
		},
		"its leadership": func(f *far) {
			f.before = func(n int) error { return when(n <= 2, answer(forgeyard.Unavailable, "not the leader")) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newFar(t)
				lose(f)
				p.Route = leaderOr(func(int) string { return "n3" })
				r, err := p.Propose(t.Context(), submission())
				if err != nil || r.Err() != nil {
					t.Fatal(err, r.Err())
				}
				v, err := site.Value[site.Submitted](r)
				if err != nil || !f.s.Jobs.Has(v.Job) {
					t.Fatalf("the answer names no job: %+v %v", v, err)
				}
				if jobs(f.s) != 1 || len(f.calls) < 2 {
					t.Fatalf("%d jobs after %d calls", jobs(f.s), len(f.calls))
				}
				sameID(t, f.calls)
				if len(f.waited) != 1 || f.waited[0] == 0 {
					t.Errorf("our own copy was not waited for: %v", f.waited)
				}
			})
		})
	}
}

func when(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// What is said at the end: Unavailable only if the command certainly is not in the log.
func TestGaveUpSaysWhetherItMayHaveHappened(t *testing.T) {
	cut := errors.New("connection reset by peer")
	for _, c := range []struct {
		name string
		set  func(*far)
		want forgeyard.Kind
	}{
		{"nobody leads", func(f *far) { f.addr = "" }, forgeyard.Unavailable},
		{"the leader says no majority", func(f *far) { f.before = func(int) error { return answer(forgeyard.Unavailable, "no majority") } }, forgeyard.Unavailable},
		{"no answer", func(f *far) { f.after = func(int) error { return cut } }, forgeyard.Unknown},
		{"no answer, and then a certain no", func(f *far) {
			f.before = func(n int) error { return when(n > 1, answer(forgeyard.Unavailable, "no majority")) }
			f.after = func(int) error { return cut }
		}, forgeyard.Unknown},
		{"no answer, and then no leader", func(f *far) {
			f.after = func(int) error { f.addr = ""; return cut }
		}, forgeyard.Unknown},
		{"the leader does not know itself", func(f *far) { f.before = func(int) error { return answer(forgeyard.Unknown, "deposed") } }, forgeyard.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newFar(t)
				c.set(f)
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				defer cancel()
				from := time.Now()
				_, err := p.Propose(ctx, submission())
				var e *forgeyard.Error
				if forgeyard.KindOf(err) != c.want || !errors.As(err, &e) || e.Hint == "" {
					t.Fatalf("%v (%v), want %v and a hint", err, forgeyard.KindOf(err), c.want)
				}
				if took := time.Since(from); took < 8*time.Second || took > 9*time.Second {
					t.Errorf("it tried for %s of 8s", took)
				}
				if n := len(f.calls); c.want == forgeyard.Unknown && (n > 40 || jobs(f.s) > 1) {
					t.Errorf("%d calls, %d jobs", n, jobs(f.s))
				}
			})
		})
	}
}

// A refusal that no second try changes is passed on at once.
func TestRefusalsAreNotRepeated(t *testing.T) {
	for _, k := range []forgeyard.Kind{forgeyard.Denied, forgeyard.Invalid, forgeyard.Limit, forgeyard.Conflict, forgeyard.Stale, forgeyard.NotFound} {
		synctest.Test(t, func(t *testing.T) {
			f, p := newFar(t)
			f.before = func(int) error { return answer(k, "no") }
			from := time.Now()
			_, err := p.Propose(t.Context(), submission())
			if forgeyard.KindOf(err) != k || len(f.calls) != 1 || time.Since(from) != 0 {
				t.Errorf("%v: %v after %d calls and %s", k, err, len(f.calls), time.Since(from))
			}
		})
	}
}

// What Apply refuses is no failure of the way there.
func TestTheCommandsOwnErrorIsInTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newFar(t)
		r, err := p.Propose(t.Context(), site.Cancel{Job: "nothing"})
		if err != nil || forgeyard.KindOf(r.Err()) != forgeyard.NotFound || len(f.calls) != 1 {
			t.Fatalf("%v, %v after %d calls", err, r.Err(), len(f.calls))
		}
	})
}

// With no leader known, members are asked in turn until one leads or knows.
func TestFallbackGoesRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newFar(t)
		f.addr = ""
		f.before = func(n int) error { return when(n < 4, answer(forgeyard.Unavailable, "not the leader")) }
		p.Route = leaderOr(func(try int) string { return fmt.Sprint("n", 2+try%3) })
		if _, err := p.Propose(t.Context(), submission()); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(f.asked); got != "[n2 n3 n4 n2]" {
			t.Errorf("asked %s", got)
		}
		sameID(t, f.calls)
	})
}

// Here is the other end of Forward.
func TestHereAnswersForAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newFar(t)
		index, b, err := p.Here(t.Context(), site.Command{ID: "x", Body: submission()}.Encode())
		var r site.Reply
		if err != nil || index != 2 || cborx.Unmarshal(b, &r) != nil || r.Err() != nil || jobs(f.s) != 1 {
			t.Fatalf("%d %x %v", index, b, err)
		}
		f.before = func(int) error { return forgeyard.Errorf("propose", forgeyard.Unavailable, "not the leader") }
		if _, _, err := p.Here(t.Context(), site.Command{ID: "y", Body: submission()}.Encode()); forgeyard.KindOf(err) != forgeyard.Unavailable {
			t.Fatal(err)
		}
	})
}
