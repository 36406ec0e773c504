package site

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
)

// One entry may hold several commands, which then share its index: each has a step of its
// own, and what must be unique or rising is made of the step.
func TestCommandsOfOneEntryHaveTheirOwnSteps(t *testing.T) {
	c := newChaos(1)
	c.must(Register{Formats: Formats, Runner: "R1", Session: "S1", Caps: job.Capabilities{MilliCPU: 8000, Memory: 1 << 34, Disk: 1 << 40, MaxJobs: 99}})
	at := c.index + 1
	send := func(n int, b Body) Reply {
		t.Helper()
		cmd := Command{ID: forgeyard.MessageID(fmt.Sprint("same-entry-", n)), At: forgeyard.WallOf(c.at), By: "x", Body: b}
		next, r := c.s.ApplyEntry(at, 1, cmd.Encode())
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		if next.Step <= c.s.Step || next.Index != at {
			t.Fatalf("step %d at index %d after step %d", next.Step, next.Index, c.s.Step)
		}
		c.s = next
		return r
	}
	const grants = 5
	var jobs []forgeyard.JobID
	for n := range grants {
		v, err := Value[Submitted](send(n, submitOf(fmt.Sprint("job ", n))))
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, v.Job)
	}
	tokens, leases := map[uint64]bool{}, map[forgeyard.LeaseID]bool{}
	last := uint64(0)
	for n, id := range jobs {
		send(grants+n, Offer{Job: id, Runner: "R1", Session: "S1"})
		j, ok := c.s.Jobs.Get(id)
		if !ok || j.Lease.Token <= last {
			t.Fatalf("job %d of %v: token %d after %d", n, jobs, j.Lease.Token, last)
		}
		last = j.Lease.Token
		tokens[last], leases[j.Lease.Authority.Lease] = true, true
	}
	if len(tokens) != grants || len(leases) != grants || c.s.Jobs.Len() < grants {
		t.Errorf("%d tokens, %d leases, %d jobs of %d", len(tokens), len(leases), c.s.Jobs.Len(), grants)
	}
	for n := range 2 * grants { // each is remembered by itself: a repeat changes nothing
		cmd := Command{ID: forgeyard.MessageID(fmt.Sprint("same-entry-", n)), At: forgeyard.WallOf(c.at), By: "x", Body: OutboxAck{}}
		if next, r := c.s.ApplyEntry(at+1, 1, cmd.Encode()); r.Err() != nil || !sameButMemory(c.s, next) {
			t.Errorf("the repeat of %d was not known: %v", n, r.Err())
		}
	}
	// The next entry's index is below the last step, and its grant is above all of before.
	at++
	v, err := Value[Submitted](send(99, submitOf("later")))
	if err != nil {
		t.Fatal(err)
	}
	send(100, Offer{Job: v.Job, Runner: "R1", Session: "S1"})
	if j, _ := c.s.Jobs.Get(v.Job); j.Lease.Token <= last || at > last {
		t.Errorf("token %d at index %d, the last one was %d", j.Lease.Token, at, last)
	}
}

func submitOf(title string) Submit {
	raw := job.Spec{Title: title, Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	return Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}
}

// The step is in a snapshot only where it says more than the index: a site whose entries
// hold one command each has the bytes that it always had.
func TestStepInSnapshot(t *testing.T) {
	s := &State{Index: 7, Step: 7}
	if old := s.Encode(); !bytes.Equal(old, cborx.Marshal(func() image { im := s.image(); im.Step = 0; return im }())) {
		t.Errorf("%x", old)
	}
	for _, step := range []uint64{7, 9, 1 << 40} {
		s.Step = step
		back, err := DecodeState(s.Encode())
		if err != nil || back.Step != step || back.Index != 7 || back.Hash() != s.Hash() {
			t.Errorf("step %d came back as %+v: %v", step, back, err)
		}
	}
	if b := s.Encode(); !bytes.HasSuffix(b, []byte{0x18, 26, 0x1b, 0, 0, 1, 0, 0, 0, 0, 0}) {
		t.Errorf("key 26 is not where it was: %x", b)
	}
}
