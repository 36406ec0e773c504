package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
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
	n.store, n.uploads = s, newAdmission(1)
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
		got, err := c.commit(t.Context(), capture.Ingested{Manifest: m, ID: m.ID(), Owner: "mine"}, c.x.n.clock.Now(), true)
		if err != nil || got.Verdict != runner.VerdictContinue {
			t.Fatalf("%+v %v", got, err)
		}
		if j := x.n.jobNow(t, x.authority.Job); j.Epoch != 2 || j.LogSeq != all[parts-1].LastSeq || len(j.Log) != min(parts, site.MaxLogChunks) {
			t.Errorf("%d parts: epoch %d, %d in the record up to %d", parts, j.Epoch, len(j.Log), j.LogSeq)
		}
	}
}

// RA-054, RA-247: the parts of a log are stored packed from when every member reads them so,
// and read the same, from any frame on. What could not be saved of a log is read on its node.
func TestPackedLog(t *testing.T) {
	if (&Node{}).packsLogs() {
		t.Error("packed, before anybody could be asked who reads it")
	}
	p := makeSite(t, 1)[0]
	n := p.node
	p.wait("all read packed parts", n.packsLogs)
	st := *n.replica.State()
	m, _ := st.Members.Get(n.enrolment.RunnerID)
	m.Session.Formats = site.FormatRange{Min: 1, Max: 1}
	st.Members = st.Members.Put(m.Runner, m)
	if allReadPacked(&st) {
		t.Error("packed, though a member of an older version could not read it")
	}
	st = *n.replica.State()
	st.Format = 1
	if allReadPacked(&st) {
		t.Error("packed in a log of format 1")
	}
	_, id := p.submit(strings.NewReplacer("echo hello from $FORGEYARD_EPOCH", "i=0; while [ $i -lt 3000 ]; do echo this is line number $i; i=$((i+1)); done").Replace(helloJob))
	p.waitDone(id)
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&want, "this is line number %d\n", i)
	}
	if got := p.log(id); got != want.String() {
		t.Errorf("%d bytes of %d", len(got), want.Len())
	}
	j, _ := n.replica.State().Jobs.Get(forgeyard.JobID(id))
	stored := int64(0)
	for _, c := range j.Log {
		stored += c.Size
	}
	if stored == 0 || stored > int64(want.Len())/2 {
		t.Errorf("%d bytes are stored of %d", stored, want.Len())
	}
	from := j.LogSeq - 1
	next := from
	if err := n.Log(t.Context(), j.ID, from-1, false, func(f *forgeyardv1.LogFrame) error {
		if f.Seq != next {
			return fmt.Errorf("frame %d where %d is due", f.Seq, next)
		}
		next++
		return nil
	}); err != nil || next != j.LogSeq+1 {
		t.Errorf("%v, up to %d of %d", err, next-1, j.LogSeq)
	}
	aside := func(a forgeyard.AttemptID, epoch, first uint64, text string) {
		t.Helper()
		dir := filepath.Join(p.dir, dirSpool, string(a), strconv.FormatUint(epoch, 10)+".unsaved")
		sp, err := spool.Open(spool.Config{Dir: dir, Epoch: epoch, First: first, Clock: clock.System()})
		if err == nil {
			err = errors.Join(sp.Append(t.Context(), spool.Stdout, 1, []byte(text)), sp.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	aside(j.Attempt, j.Epoch, j.LogSeq+1, "its last words\n")
	if got := p.log(id); got != want.String()+"its last words\n" {
		t.Errorf("it ends with %q", got[max(0, len(got)-60):])
	}
	before := site.EpochRecord{Attempt: "before", Epoch: j.Epoch - 1}
	j.History = append([]site.EpochRecord{before}, j.History...)
	aside(before.Attempt, before.Epoch, 3, "words of the attempt before\n") // its numbers were given anew
	var got strings.Builder
	s := &logSender{n: n, sent: map[uint64]uint64{}, aside: map[uint64]bool{}, silent: map[forgeyard.RunnerID]bool{}, send: func(f *forgeyardv1.LogFrame) error {
		if f.Stream == spool.Stdout.String() {
			got.Write(f.Data)
		}
		return nil
	}}
	if err := n.logFromStore(t.Context(), j, 0, func(f *forgeyardv1.LogFrame) error { return s.frame(t.Context(), j, f) }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.putAside(t.Context(), j, j.Epoch+1, 0); err != nil || got.String() != "words of the attempt before\n"+want.String()+"its last words\n" {
			t.Errorf("%v; it begins with %q and ends with %q", err, got.String()[:60], got.String()[max(0, got.Len()-60):])
		}
		aside(j.Attempt, j.Epoch, 0, "a follower reads it again\n")
	}
}

// RA-054, CK-410: who reads a log by way of another node, is cut off and goes on after the last number that
// came gets what follows and nothing twice: cut where the store has it, and cut where only its
// runner does.
func TestLogGoesOnAfterACut(t *testing.T) {
	site := makeSite(t, 2)
	one, two := site[0], site[1]
	one.wait("both online", func() bool { return two.node.State() == StateOnline })
	if _, err := one.node.Drain(t.Context(), &forgeyardv1.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	const script = "pad=$(head -c 900 /dev/zero | tr '\\\\0' x); i=0; while [ $i -lt 2500 ]; do echo $i $pad; i=$((i+1)); done; until [ -e go ]; do sleep 0.05; echo $i; i=$((i+1)); done; echo last"
	_, id := one.submit(strings.NewReplacer("echo hello from $FORGEYARD_EPOCH", script).Replace(helloJob))
	saved := func() uint64 {
		j, _ := one.node.replica.State().Jobs.Get(forgeyard.JobID(id))
		return j.LogSeq
	}
	one.wait("some of it is in the store", func() bool { return saved() > 2 })
	var got strings.Builder
	last := uint64(0)
	read := func(cut func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		st, err := one.jobs().Log(ctx, connect.NewRequest(&forgeyardv1.LogRequest{JobId: id, Follow: true, After: last}))
		if err != nil {
			t.Fatal(err)
		}
		for st.Receive() {
			f := st.Msg()
			if f.Seq != last+1 {
				t.Fatalf("frame %d follows %d", f.Seq, last)
			}
			if last = f.Seq; f.Stream == spool.Stdout.String() {
				got.Write(f.Data)
			}
			if cut() {
				return
			}
		}
		if err := st.Err(); err != nil {
			t.Fatal(err)
		}
	}
	read(func() bool { return last >= saved()/2 })
	read(func() bool { return last > saved() })
	for range 2 {
		from := last
		read(func() bool { return last > from })
	}
	spaces, err := filepath.Glob(filepath.Join(two.dir, dirWorkspaces, "*", "build"))
	if err != nil || len(spaces) != 1 {
		t.Fatalf("%v %v", spaces, err)
	}
	if err := os.WriteFile(filepath.Join(spaces[0], "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	read(func() bool { return false })
	all, end := got.String(), last
	last = end / 2 // the store alone has it now
	if read(func() bool { return false }); last != end {
		t.Errorf("up to %d of %d", last, end)
	}
	next := 0
	for line := range strings.Lines(all) {
		if n, _, _ := strings.Cut(strings.TrimSpace(line), " "); n != strconv.Itoa(next) && n != "last" {
			t.Fatalf("line %.20q where %d is due", line, next)
		}
		next++
	}
	if next <= 2500 || !strings.HasSuffix(all, "\nlast\n") {
		t.Errorf("%d lines", next)
	}
}

// RA-250, RA-247: what the runner could not save of a log is fetched from it by whoever is asked,
// and nothing else of its disk is.
func TestLogThatIsElsewhere(t *testing.T) {
	site := makeSite(t, 2)
	one, two := site[0], site[1]
	one.wait("both online", func() bool { return two.node.State() == StateOnline })
	if _, err := one.node.Drain(t.Context(), &forgeyardv1.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	_, id := one.submit(helloJob)
	one.waitDone(id)
	j, _ := one.node.replica.State().Jobs.Get(forgeyard.JobID(id))
	dir := filepath.Join(two.dir, dirSpool, string(j.Attempt), strconv.FormatUint(j.Epoch, 10)+".unsaved")
	sp, err := spool.Open(spool.Config{Dir: dir, Epoch: j.Epoch, First: j.LogSeq, Clock: clock.System()})
	if err == nil {
		err = errors.Join(sp.Append(t.Context(), spool.Stdout, 1, []byte("saved before\n")), sp.Append(t.Context(), spool.Stdout, 1, []byte("its last words\n")), sp.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := one.log(id), fmt.Sprintf("hello from %d\nits last words\n", j.Epoch); got != want {
		t.Errorf("%q, not %q", got, want)
	}
	p, err := one.node.peers.runner(two.node.enrolment.RunnerID)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*forgeyardv1.PeerLogRequest{
		"another's attempt": {JobId: id, AttemptId: "../" + string(j.Attempt), Epoch: j.Epoch},
		"no such epoch":     {JobId: id, AttemptId: string(j.Attempt), Epoch: j.Epoch + 1},
		"no such job":       {JobId: "x", AttemptId: string(j.Attempt), Epoch: j.Epoch},
	} {
		st, err := p.Log(t.Context(), connect.NewRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		if st.Receive() || forgeyard.KindOf(st.Err()) != forgeyard.NotFound {
			t.Errorf("%s: %v %v", name, st.Msg(), st.Err())
		}
	}
}
