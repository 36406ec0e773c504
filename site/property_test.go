package site

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// chaos proposes commands that make sense, made no sense any more, or never did.
type chaos struct {
	r     *rand.Rand
	s     *State
	index uint64
	at    time.Time
	held  []forgeyard.Authority
}

func newChaos(seed uint64) *chaos {
	c := &chaos{r: rand.New(rand.NewPCG(seed, 7)), s: &State{}, at: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}
	id := forgeyard.SiteID(forgeyard.NewULID(c.at, [10]byte{1}))
	c.must(Init{Site: id, Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"})
	c.must(TokenCreate{Token: "T", Hash: [32]byte{1}, Expires: forgeyard.WallOf(c.at.Add(time.Hour)), Uses: 3, MayVote: true})
	c.must(Join{Token: "T", Hash: [32]byte{1}, Peer: "p2", Name: "n2"})
	c.must(UplinkConnect{Central: Central{Peer: "central"}, Terms: lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: 10 * time.Second, Allowance: time.Minute}})
	if seed%4 != 0 { // a quarter stays at the first format
		for _, m := range values(c.s.Members) {
			c.must(Register{Runner: m.Runner, Session: forgeyard.SessionID("S-" + m.Name), Version: "1", Formats: Formats})
		}
		c.must(FormatRaise{To: FormatNow, Voters: []forgeyard.RunnerID{"R1"}})
	}
	return c
}

func (c *chaos) raw(b Body) []byte {
	c.at = c.at.Add(time.Duration(c.r.IntN(3000)) * time.Millisecond)
	id := fmt.Sprintf("r%d", c.index+1)
	if c.r.IntN(20) == 0 {
		id = fmt.Sprintf("r%d", c.r.Uint64N(c.index+2)) // a repeat of an earlier request
	}
	return Command{ID: forgeyard.MessageID(id), At: forgeyard.WallOf(c.at), By: "x", Body: b}.Encode()
}

func (c *chaos) must(b Body) {
	c.index++
	next, r := c.s.Apply(c.index, Command{ID: forgeyard.MessageID(fmt.Sprintf("r%d", c.index)), At: forgeyard.WallOf(c.at), By: "x", Body: b}.Encode())
	if r.Err() != nil {
		panic(r.Err())
	}
	c.s = next
}

func pickOne[T any](c *chaos, all []T) (v T, ok bool) {
	if len(all) == 0 {
		return v, false
	}
	return all[c.r.IntN(len(all))], true
}

func (c *chaos) member() Member { m, _ := pickOne(c, values(c.s.Members)); return m }

func (c *chaos) someJob() Job {
	j, _ := pickOne(c, values(c.s.Jobs))
	return j
}

// acting is a job that somebody holds, if there is one: what happens to those is the most.
func (c *chaos) acting() Job {
	var all []Job
	for id := range c.s.Open.All() {
		if j, _ := c.s.Jobs.Get(id); j.Lease.Live() {
			all = append(all, j)
		}
	}
	if j, ok := pickOne(c, all); ok {
		return j
	}
	return c.someJob()
}

// authority is mostly the current one of some job, sometimes an old one, sometimes wrong.
func (c *chaos) authority() forgeyard.Authority {
	a := c.acting().Lease.Authority
	if c.r.IntN(4) == 0 {
		a, _ = pickOne(c, c.held)
	}
	if c.r.IntN(20) == 0 {
		a.Session = "wrong"
	}
	return a
}

func (c *chaos) spec() (raw []byte, id forgeyard.Digest) {
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}
	if c.r.IntN(2) == 0 {
		sp.Resume.Mode = job.ResumeApplication
	}
	if c.r.IntN(3) == 0 {
		sp.Effects = job.EffectsProtected
	}
	if c.r.IntN(3) == 0 {
		sp.Devices = []job.DeviceRequest{{Kind: "board", As: "d"}}
	}
	sp.Connectivity.NoReplace = c.r.IntN(4) == 0
	sp.Timeouts.Run = []time.Duration{time.Second, 20 * time.Second, time.Hour}[c.r.IntN(3)]
	sp = sp.Defaulted()
	sp.Interruption.Budget = c.r.IntN(4)
	raw = sp.Canonical()
	return raw, cas.Sum(raw)
}

func (c *chaos) body() Body {
	switch c.r.IntN(12) {
	case 0:
		raw, id := c.spec()
		return Submit{Kind: job.Build, Title: "t", Key: fmt.Sprint("k", c.r.IntN(30)), Spec: raw, SpecID: id}
	case 1, 2:
		j, m := c.someJob(), c.member()
		o := Offer{Job: j.ID, Runner: m.Runner, Session: m.Session.ID, Epoch: j.Epoch, Used: int64(time.Duration(c.r.IntN(70)) * time.Second)}
		for range j.Spec.Devices {
			if d, ok := pickOne(c, values(c.s.Devices)); ok {
				o.Devices = append(o.Devices, d.ID)
			}
		}
		return o
	case 3, 4:
		return Accept{Authority: c.authority()}
	case 5:
		return c.report()
	case 6:
		a := c.authority()
		seq := 1 + c.r.IntN(5)
		id := cas.Sum([]byte(fmt.Sprint(a.Fence, seq, c.r.IntN(10) == 0)))
		return Checkpoint{Authority: a, Continue: c.r.IntN(2) == 0, Productive: c.r.IntN(2) == 0, Commit: checkpoint.Commit{
			Seq: seq, Manifest: id, Payload: id, Marker: id, Attempt: a.Attempt, Epoch: a.Fence.Epoch, Replicas: []forgeyard.RunnerID{"R1", "R2"}, Consistency: checkpoint.Application,
		}}
	case 7:
		kinds := []job.Outcome{job.OutcomeDone, job.OutcomeFailed, job.OutcomeCancelled, "odd"}
		return Complete{Authority: c.authority(), Message: forgeyard.MessageID(fmt.Sprint("m", c.r.IntN(40))), Result: job.Result{Outcome: kinds[c.r.IntN(4)], Category: job.PreparationFailed}}
	case 8:
		j := c.acting()
		return Expire{Job: j.ID, Lease: j.Lease.Authority.Lease, Certain: c.r.IntN(2) == 0}
	case 9:
		return c.uplink()
	case 10:
		return c.devices()
	}
	return c.people()
}

func (c *chaos) report() Body {
	kinds := []string{"interrupted", "drain", "authority", "resume_failed", "resume_rejected"}
	phases := []job.Phase{job.PhasePreparing, job.PhaseRunning, job.PhaseUploading, "odd"}
	switch c.r.IntN(4) {
	case 2:
		if c.r.IntN(2) == 0 {
			return Stopped{Authority: c.authority()}
		}
		j := c.someJob()
		return Revoke{Job: j.ID, Lease: j.Lease.Authority.Lease, Class: []string{RevokedByOperator, RevokedDisabled, RevokedSecurity, "odd"}[c.r.IntN(4)], Reason: "so"}
	case 0:
		return Release{Authority: c.authority(), Kind: kinds[c.r.IntN(len(kinds))]}
	case 1:
		return Reject{Authority: c.authority(), Reason: job.RejectPressure}
	}
	return Phase{Authority: c.authority(), Phase: phases[c.r.IntN(len(phases))]}
}

func (c *chaos) uplink() Body {
	switch c.r.IntN(6) {
	case 5:
		if c.r.IntN(2) == 0 {
			return Readiness{Lacks: []lease.Shortfall{{Node: "n1", What: lease.WantClock, Detail: "so"}}[:c.r.IntN(2)]}
		}
		m := c.member()
		return Silence{Runner: m.Runner, Session: m.Session.ID, Silent: c.r.IntN(2) == 0, For: int64(time.Second)}
	case 0:
		return OutboxAck{Upto: c.r.Uint64N(c.s.Sent + 2)}
	case 1:
		raw, id := c.spec()
		from := c.s.Cursor + c.r.Uint64N(2)
		d := Delegation{Seq: from + 1, Spec: raw, SpecID: id, Cancel: c.r.IntN(4) == 0}
		d.Grant = lease.Grant{ID: forgeyard.GrantID(fmt.Sprint("G", c.r.IntN(6))), Term: c.r.Uint64N(3), Policy: job.Connectivity{Policy: job.OfflineAuthorized, For: 40 * time.Second}}
		if c.r.IntN(4) == 0 {
			d.Grant.End = forgeyard.WallOf(c.at.Add(time.Duration(c.r.IntN(120)) * time.Second))
		}
		return Delegate{From: from, To: from + 1, Grants: []Delegation{d}}
	case 2:
		if c.r.IntN(4) == 0 {
			return UplinkObserve{Doubt: "no clock"}
		}
	}
	return UplinkObserve{Used: int64(time.Duration(c.r.IntN(90)-5) * time.Second), Contact: c.r.IntN(3) == 0, Daemon: forgeyard.WallOf(c.at)}
}

func (c *chaos) devices() Body {
	d, _ := pickOne(c, values(c.s.Devices))
	switch c.r.IntN(4) {
	case 0:
		return DeviceHealth{Device: d.ID, Action: []string{"checked", "quarantine", "clear", "lost"}[c.r.IntN(4)], OK: c.r.IntN(4) > 0, Reason: "so"}
	case 1:
		return DeviceLease{Device: d.ID, Holder: "ana", TTL: int64(time.Minute), Key: forgeyard.MessageID(fmt.Sprint("k", c.r.IntN(5)))}
	case 2:
		b := DeviceRelease{Force: c.r.IntN(4) == 0}
		if d.Lease != nil {
			b.Lease = d.Lease.ID
		}
		return b
	}
	b := DeviceReset{Device: d.ID, Host: d.Host, Evidence: devices.Evidence{Try: d.Resets + 1, OK: c.r.IntN(3) > 0}}
	if d.Last != nil {
		b.Evidence.Token = d.Last.Token
	}
	return b
}

func (c *chaos) people() Body {
	yes := c.r.IntN(2) == 0
	switch c.r.IntN(5) {
	case 0:
		if c.r.IntN(2) == 0 {
			return Cancel{Job: c.acting().ID, Force: yes}
		}
		return Cancel{Job: c.someJob().ID, Force: yes}
	case 1:
		return Stop{Job: c.someJob().ID, Kind: []string{"drain", "authority"}[c.r.IntN(2)], Reason: "so"}
	case 2:
		return Resume{Job: c.someJob().ID}
	case 3:
		return MemberSet{Runner: c.member().Runner, Draining: &yes, Cancel: c.r.IntN(2) == 0}
	}
	b := Register{Formats: Formats, Runner: c.member().Runner, Session: forgeyard.SessionID(fmt.Sprint("s", c.r.IntN(6)))}
	if b.Runner == "R1" && c.r.IntN(3) > 0 {
		b.Caps.Devices = []job.DeviceFact{{ID: "b1", Kind: "board"}, {ID: "b2", Kind: "board"}}
	}
	return b
}

// TestChaos applies thousands of commands, and looks after each at what must hold at
// every index: the same bytes give the same state (same-state), also from a snapshot
// taken anywhere; nobody writes into a state that a reader keeps; what is refused
// changes nothing but the memory of its request; and the invariants of the package.
func TestChaos(t *testing.T) {
	for seed := uint64(1); seed <= 6; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := newChaos(seed)
			for range 250 {
				c.step(t)
				if t.Failed() {
					return
				}
			}
		})
	}
}

func (c *chaos) step(t *testing.T) {
	raw := c.raw(c.body())
	c.index++
	before, was := c.s, c.s.Encode()
	next, r := before.Apply(c.index, raw)
	image := next.Encode()
	if !bytes.Equal(before.Encode(), was) {
		t.Fatalf("index %d wrote into the state before it", c.index)
	}
	if again, r2 := before.Apply(c.index, raw); !bytes.Equal(again.Encode(), image) || !bytes.Equal(cborx.Marshal(r), cborx.Marshal(r2)) {
		t.Fatalf("index %d: twice the same entry, two states", c.index)
	}
	restored, err := DecodeState(before.Snapshot())
	if err != nil {
		t.Fatalf("the snapshot at index %d cannot be read: %v", c.index-1, err)
	}
	if after, _ := restored.Apply(c.index, raw); !bytes.Equal(after.Encode(), image) {
		t.Fatalf("index %d: from a snapshot it goes another way", c.index)
	}
	if r.Err() != nil && !sameButMemory(before, next) {
		t.Fatalf("index %d was refused (%v) and changed something", c.index, r.Err())
	}
	c.s = next
	for _, j := range next.Jobs.All() {
		if b, ok := before.Jobs.Get(j.ID); !ok || b.Epoch != j.Epoch {
			c.held = append(c.held, j.Lease.Authority)
		}
		c.checkJob(t, before, j)
	}
	c.checkRest(t, before, raw)
	c.checkLedger(t, before)
}

func (c *chaos) checkJob(t *testing.T, before *State, j Job) {
	b, ok := before.Jobs.Get(j.ID)
	r, _ := c.s.Runs.Get(j.Run)
	switch {
	case !ok:
		return
	case j.Epoch < b.Epoch || j.Epoch > b.Epoch+1:
		t.Errorf("index %d: epoch %d after %d", c.index, j.Epoch, b.Epoch)
	case j.Epoch != b.Epoch && b.Lease.Live() && b.Lease.Authority == j.Lease.Authority:
		t.Errorf("index %d: epoch %d without a lease of its own", c.index, j.Epoch)
	case b.Status.Terminal() && (b.Status != j.Status || b.Epoch != j.Epoch || b.Result != j.Result || b.Ended != j.Ended):
		t.Errorf("index %d: job %s was %s and is %s (terminal-once)", c.index, j.ID, b.Status, j.Status)
	case j.Status.Terminal() == c.s.Open.Has(j.ID):
		t.Errorf("index %d: job %s is %s, open %v", c.index, j.ID, j.Status, c.s.Open.Has(j.ID))
	case j.Status.Terminal() && (j.Lease.Live() || len(j.Devices) > 0 || r.Status != j.Status):
		t.Errorf("index %d: job %s is %s with a live lease, devices, or a run that is %s", c.index, j.ID, j.Status, r.Status)
	case j.SpecID != b.SpecID || (j.Lease.State != "" && j.Lease.Authority.Spec != j.SpecID):
		t.Errorf("index %d: job %s had spec %s, now %s, leased %s (RA-168, RA-511, RA-549)", c.index, j.ID, b.SpecID.Short(), j.SpecID.Short(), j.Lease.Authority.Spec.Short())
	case b.Epoch == j.Epoch && j.Phase.Order() != 0 && j.Phase.Order() < b.Phase.Order():
		t.Errorf("index %d: epoch %d went from %s back to %s (RA-161)", c.index, j.Epoch, b.Phase, j.Phase)
	case j.Interruptions < 0:
		t.Errorf("index %d: %d interruptions", c.index, j.Interruptions)
	case j.Epoch > b.Epoch && b.Lease.Protected && b.Status == job.Unknown && !b.Certain:
		t.Errorf("index %d: epoch %d granted while the protected holder of %d may act", c.index, j.Epoch, b.Epoch)
	case !j.Lease.Live() && len(j.Devices) > 0:
		t.Errorf("index %d: job %s holds devices without a lease", c.index, j.ID)
	}
	for i, e := range c.s.RunEvents(j.Run, 0) {
		if e.Seq != uint64(i)+1 {
			t.Errorf("index %d: event %d stands at %d", c.index, e.Seq, i+1)
		}
	}
}

func (c *chaos) checkRest(t *testing.T, before *State, raw []byte) {
	cmd, err := Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := cmd.Body.(UplinkObserve)
	if c.s.Uplink.Used < before.Uplink.Used && !o.Contact {
		t.Errorf("index %d: the silence shrank from %s to %s without a contact (within-allowance)", c.index, before.Uplink.Used, c.s.Uplink.Used)
	}
	want := c.s.Acked
	for _, r := range c.s.Outbox.All() {
		if want++; r.Seq != want {
			t.Errorf("index %d: record %d where %d is due: a gap (E01)", c.index, r.Seq, want)
		}
	}
	if want != c.s.Sent || c.s.Acked < before.Acked {
		t.Errorf("index %d: the outbox ends at %d of %d, acknowledged %d after %d", c.index, want, c.s.Sent, c.s.Acked, before.Acked)
	}
	for id, d := range c.s.Devices.All() {
		b, _ := before.Devices.Get(id)
		if d.HighestFence < b.HighestFence || (d.Lease != nil) != (d.Use == devices.Leased || d.Use == devices.Preparing) {
			t.Errorf("index %d: device %s: token %d after %d, %s with lease %v", c.index, id, d.HighestFence, b.HighestFence, d.Use, d.Lease != nil)
		}
		if d.Lease != nil && d.Lease.Holder.Job != "" {
			j, _ := c.s.Jobs.Get(d.Lease.Holder.Job)
			if !j.Lease.Live() || j.Epoch != d.Lease.Holder.Epoch {
				t.Errorf("index %d: device %s is held by epoch %d of a job at epoch %d, lease %s", c.index, id, d.Lease.Holder.Epoch, j.Epoch, j.Lease.State)
			}
		}
	}
}

// FuzzDecode: whatever is in the log, it is a command or an error; a command's bytes
// name it.
func FuzzDecode(f *testing.F) {
	c := newChaos(99)
	for range 60 {
		f.Add(c.raw(c.body()))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		cmd, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(cmd.Encode())
		if err != nil || !bytes.Equal(again.Encode(), cmd.Encode()) {
			t.Fatalf("%v: %+v", err, cmd)
		}
	})
}

// FuzzDecodeState: a snapshot is a state that writes the same bytes, or an error.
func FuzzDecodeState(f *testing.F) {
	c := newChaos(98)
	f.Add((&State{}).Encode())
	for range 3 {
		for range 40 {
			c.must2()
		}
		f.Add(c.s.Encode())
		f.Add(c.s.Snapshot())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeState(b)
		if err != nil {
			return
		}
		first := s.Encode()
		for _, written := range [][]byte{first, s.Snapshot()} {
			again, err := DecodeState(written)
			if err != nil || !bytes.Equal(again.Encode(), first) {
				t.Fatalf("the state does not survive its own bytes: %v", err)
			}
		}
		s.Apply(s.Index+1, []byte("no command"))
	})
}

// must2 applies one more command, whatever its answer.
func (c *chaos) must2() {
	raw := c.raw(c.body())
	c.index++
	c.s, _ = c.s.Apply(c.index, raw)
}

// FuzzApply: no bytes crash a voter, and all voters agree on what they meant.
func FuzzApply(f *testing.F) {
	c := newChaos(97)
	for range 300 {
		c.must2()
	}
	for range 60 {
		f.Add(c.raw(c.body()))
	}
	image := c.s.Encode()
	f.Fuzz(func(t *testing.T, b []byte) {
		next, r := c.s.Apply(c.index+1, b)
		other, err := DecodeState(image)
		if err != nil {
			t.Fatal(err)
		}
		again, r2 := other.Apply(c.index+1, b)
		if next.Hash() != again.Hash() || !bytes.Equal(cborx.Marshal(r), cborx.Marshal(r2)) {
			t.Fatal("two voters, two states")
		}
	})
}

// BenchmarkApply is one entry on a site with a thousand jobs.
func BenchmarkApply(b *testing.B) {
	c := newChaos(1)
	for range 1000 {
		raw, id := c.spec()
		c.must(Submit{Kind: job.Build, Title: "t", Spec: raw, SpecID: id})
	}
	c.must(Register{Formats: Formats, Runner: "R1", Session: "s"})
	raw, id := c.spec()
	b.ReportAllocs()
	for b.Loop() {
		c.must(Submit{Kind: job.Build, Title: "t", Spec: raw, SpecID: id})
		j, _, _ := c.s.Ended.Min()
		_ = j
		var last forgeyard.JobID
		for k, at := range c.s.Open.All() {
			if at == c.index {
				last = k
			}
		}
		c.must(Cancel{Job: last})
	}
}

// Two commands that one state is given make two states that have nothing in common that
// either could change: a leader works out what may come next while something else is applied.
func TestBranchesStayApart(t *testing.T) {
	for seed := range uint64(12) {
		c := newChaos(seed)
		for range 250 {
			index := c.index + 1
			whole := c.s.Hash()
			body := c.body()
			left, _ := c.s.Apply(index, c.raw(body))
			was := left.Hash()
			if c.r.IntN(3) == 0 {
				body = c.body() // else the same one, later: it goes to the same places
			}
			right, _ := c.s.Apply(index, c.raw(body))
			if left.Hash() != was || c.s.Hash() != whole {
				t.Fatalf("seed %d, entry %d: a state was changed by a command that another one was given", seed, index)
			}
			c.index, c.s = index, left
			if c.r.IntN(2) == 0 {
				c.s = right
			}
		}
	}
}
