package node

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor/keeper"
	"github.com/forgeyard/forgeyard-node/node/fitness"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// RA-341: whatever a check warns of or fails for, it says what to do. Read from the source, so
// that no check is forgotten: where a status is set, a fix is.
func TestEveryFindingHasAFix(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		found += eachFinding(tree, func(at token.Pos, fixed bool) {
			if !fixed {
				t.Errorf("%s: a finding without a fix", set.Position(at))
			}
		})
	}
	if found < 40 {
		t.Errorf("%d findings were found in the source: the search for them is wrong", found)
	}
	lacks, err := parser.ParseFile(token.NewFileSet(), "", "package a\nfunc f() { if x { c.Status, c.Detail = checkFail, y } }", 0)
	if err != nil {
		t.Fatal(err)
	}
	if eachFinding(lacks, func(_ token.Pos, fixed bool) {
		if fixed {
			t.Error("a finding without a fix passes")
		}
	}) != 1 {
		t.Error("a finding without a fix is not seen")
	}
}

// eachFinding calls f for each statement that sets a Status to checkWarn or checkFail, and says
// whether the same branch, or one around it in the function, sets a Fix.
func eachFinding(tree ast.Node, f func(at token.Pos, fixed bool)) (found int) {
	sets := func(s ast.Node, field string, values ...string) bool {
		a, ok := s.(*ast.AssignStmt)
		if !ok {
			return false
		}
		at := slices.IndexFunc(a.Lhs, func(e ast.Expr) bool { x, ok := e.(*ast.SelectorExpr); return ok && x.Sel.Name == field })
		if at < 0 || len(values) == 0 {
			return at >= 0
		}
		id, ok := a.Rhs[min(at, len(a.Rhs)-1)].(*ast.Ident)
		return ok && slices.Contains(values, id.Name)
	}
	var walk func(list []ast.Stmt, fixed bool)
	walk = func(list []ast.Stmt, fixed bool) {
		for _, s := range list {
			fixed = fixed || sets(s, "Fix")
		}
		for _, s := range list {
			if sets(s, "Status", "checkWarn", "checkFail") {
				found++
				f(s.Pos(), fixed)
			}
			ast.Inspect(s, func(n ast.Node) bool {
				switch b := n.(type) {
				case *ast.BlockStmt:
					walk(b.List, fixed)
					return false
				case *ast.CaseClause:
					walk(b.Body, fixed)
					return false
				}
				return true
			})
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		if d, ok := n.(*ast.FuncDecl); ok && d.Body != nil {
			walk(d.Body.List, false)
			return false
		}
		return true
	})
	return found
}

// judged is what a check must say.
type judged struct {
	got    *forgeyardv1.Health_Check
	status string
	says   string
}

// mustSay compares; what is in order needs no fix, and all else has one.
func mustSay(t *testing.T, all map[string]judged) {
	t.Helper()
	for name, c := range all {
		if c.got.Status != c.status || !strings.Contains(c.got.Detail, c.says) || (c.got.Fix == "") != (c.status == checkOK) {
			t.Errorf("%s: %+v", name, c.got)
		}
	}
}

// RA-333, RA-334, RA-335: what a probe found, as it is judged.
func TestChecksOfExecutors(t *testing.T) {
	strict := job.Capabilities{Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict}}, Toolchains: []job.Toolchain{{Name: "gcc"}, {Name: "go"}}}
	executors := func(probes ...func(*tried)) *tried {
		x := &tried{}
		for _, p := range probes {
			p(x)
		}
		return x
	}
	works := func(x *tried) { x.probed(strict, nil) }
	breaks := func(x *tried) {
		x.probed(job.Capabilities{Toolchains: []job.Toolchain{{Name: "go"}}}, map[job.Sandbox]string{job.SandboxStrict: "no user namespace"})
	}
	if executors().works(job.SandboxStrict) || !executors(works).works(job.SandboxStrict) || executors(works, breaks).works(job.SandboxStrict) {
		t.Error("only what worked the last time is tried once more")
	}
	mustSay(t, map[string]judged{
		"nothing probed yet":  {executors().judgeExecutors(), checkOK, "0 were"},
		"an executor works":   {executors(works).judgeExecutors(), checkOK, "1 were"},
		"it never worked":     {executors(breaks).judgeExecutors(), checkWarn, "strict does not work here: no user namespace"},
		"it stopped working":  {executors(works, breaks).judgeExecutors(), checkFail, "strict worked and does not any more: no user namespace"},
		"it works again":      {executors(works, breaks, works).judgeExecutors(), checkOK, "1 were"},
		"toolchains":          {executors(works).judgeToolchains(strict.Toolchains, nil), checkOK, "2 can be asked for"},
		"a toolchain is gone": {executors(works, breaks).judgeToolchains(nil, nil), checkWarn, "gcc was here"},
		"nobody has the tree": {executors(works).judgeToolchains(strict.Toolchains, []string{"go", "zig"}), checkWarn, "for go, zig is neither here"},
	})
}

// RA-332, RA-336, RA-337: each other check of 07§125 that was not made by
// another package, as it is judged.
func TestChecksOfThisMachine(t *testing.T) {
	at := forgeyard.Instant(time.Hour)
	disk := func(events ...consensus.EventKind) *raftDisk {
		d := &raftDisk{}
		for _, k := range events {
			d.happened(consensus.Event{Kind: k, Err: errors.New("input/output error")}, at)
		}
		return d
	}
	clock := func(doubt string, against, met int) *forgeyardv1.Health_Check {
		c := check("clock")
		sayClock(c, doubt, against, met)
		return c
	}
	host := forgeyard.RunnerID("here")
	hosts := func(d devices.Device) *site.State {
		d.Host = host
		st := &site.State{}
		st.Devices = st.Devices.Put("dut", d)
		return st
	}
	gone := keeper.Health{Err: errors.New("it does not answer")}
	mustSay(t, map[string]judged{
		"the keeper answers":      {judgeKeeper(keeper.Health{PID: 7, Held: 2}, 0), checkOK, "holds 2 deadlines"},
		"it missed one answer":    {judgeKeeper(gone, 1), checkWarn, "it does not answer"},
		"it missed the next too":  {judgeKeeper(gone, 2), checkFail, "2 times in a row"},
		"the log's disk":          {disk().judge(at), checkOK, "in time"},
		"it hangs":                {disk(consensus.DiskHung).judge(at.Add(time.Minute)), checkFail, "since 1m0s (disk_hung: input/output error)"},
		"it hung":                 {disk(consensus.DiskHung, consensus.Restarted).judge(at.Add(time.Minute)), checkWarn, "1m0s ago"},
		"it hung long ago":        {disk(consensus.DiskHung, consensus.Restarted).judge(at.Add(time.Hour)), checkOK, ""},
		"all are heard":           {judgeGossip(2, nil, "a:1"), checkOK, "2 members"},
		"one is not heard":        {judgeGossip(2, []string{"n2"}, "a:1"), checkWarn, "not heard by gossip: n2"},
		"a device":                {judgeDevices(hosts(devices.Device{Presence: devices.Present}), host, map[forgeyard.DeviceID]string{}), checkOK, "1 devices"},
		"a device elsewhere":      {judgeDevices(hosts(devices.Device{Presence: devices.Absent}), "there", map[forgeyard.DeviceID]string{}), checkOK, "0 devices"},
		"it is unplugged":         {judgeDevices(hosts(devices.Device{Presence: devices.Absent, Reason: "no such file"}), host, map[forgeyard.DeviceID]string{}), checkWarn, "dut: absent no such file"},
		"its memory is damaged":   {judgeDevices(hosts(devices.Device{Presence: devices.Present}), host, map[forgeyard.DeviceID]string{"dut": "damaged"}), checkWarn, "dut: damaged"},
		"no workspace is left":    {judgeWorkspaces(nil, nil, "", 1, nil), checkOK, ""},
		"a workspace is left":     {judgeWorkspaces([]runner.Leftover{{Name: "a-1-x"}}, nil, "", 0, nil), checkWarn, "a-1-x"},
		"workspaces unreadable":   {judgeWorkspaces(nil, nil, "", 0, errors.New("no")), checkFail, "no"},
		"a write fails":           {sayWrite(check("spool"), &os.PathError{Op: "open", Err: syscall.EROFS}), checkFail, "read-only"},
		"no room for a write":     {sayWrite(check("spool"), &os.PathError{Op: "write", Err: syscall.ENOSPC}), checkWarn, "no space"},
		"the clock is right":      {clock("", 0, 2), checkOK, ""},
		"one of two doubts it":    {clock("off by 1h", 1, 2), checkWarn, "off by 1h"},
		"the only one doubts it":  {clock("off by 1h", 1, 1), checkWarn, "off by 1h"},
		"both doubt it":           {clock("off by 1h", 2, 2), checkFail, "off by 1h"},
		"two of four doubt it":    {clock("off by 1h", 2, 4), checkWarn, "off by 1h"},
		"it is off by less":       {clock("off by 20s", 0, 4), checkWarn, "off by 20s"},
		"two of three doubt it":   {clock("off by 1h", 2, 3), checkFail, "off by 1h"},
		"nobody else is to doubt": {clock("", 0, 0), checkOK, ""},
	})
}

// Checks that hang are a finding of their own, beside what was found before; a look that is
// only under way is none.
func TestChecksThatHang(t *testing.T) {
	var s selfChecks
	at := forgeyard.Instant(time.Hour)
	s.begin(at)
	if got := s.all(at.Add(selfCheckHangs - time.Second)); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	s.end([]*forgeyardv1.Health_Check{check("store")}, at)
	s.begin(at)
	got := s.all(at.Add(selfCheckHangs))
	if len(got) != 2 || got[1].Check != "checks" || fitness.Of(got) != fitness.Unhealthy || !strings.Contains(got[1].Detail, "began 30s ago") {
		t.Errorf("%+v", got)
	}
	if own, looked := s.shown(at.Add(selfCheckHangs), true); len(own) != 1 || looked.Status != checkFail || looked.Name != "checks" || looked.Fix == "" {
		t.Errorf("people see %+v, %+v", own, looked)
	}
	s.end(nil, at)
	if _, looked := s.shown(at.Add(time.Second), true); looked.Status != checkOK || !strings.Contains(looked.Detail, "1s ago") {
		t.Errorf("people see %+v", looked)
	}
	if _, looked := s.shown(at, false); looked.Status != checkWarn || looked.Fix == "" {
		t.Errorf("people see %+v", looked)
	}
	if got := s.all(at.Add(time.Hour)); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// A disk that does not answer holds up neither status nor doctor nor /healthz, which say so.
func TestHangingChecksHoldNobodyUp(t *testing.T) {
	n := makeSite(t, 1)[0].node
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !is(); {
			if time.Now().After(end) {
				t.Fatal(what + ": not seen in 30s")
			}
			<-n.clock.After(10 * time.Millisecond)
		}
	}
	n.raftDisk.mu.Lock() // one of its checks waits for it
	defer func() { n.raftDisk.mu.Unlock() }()
	await("a look hangs", func() bool {
		n.selfChecks.mu.Lock()
		defer n.selfChecks.mu.Unlock()
		return n.selfChecks.under && n.clock.Now().Sub(n.selfChecks.began) > 200*time.Millisecond
	})
	n.selfChecks.begin(n.clock.Now().Add(-selfCheckHangs))
	said := make(chan []*forgeyardv1.Health, 1)
	code := make(chan int, 1)
	go func() {
		said <- []*forgeyardv1.Health{n.Status(t.Context()).Health, n.Doctor(t.Context()).Health}
		w := httptest.NewRecorder()
		n.withHealth(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
		code <- w.Code
	}()
	select {
	case all := <-said:
		for _, h := range all {
			if i := slices.IndexFunc(h.Checks, func(c *forgeyardv1.Health_Check) bool { return c.Name == "checks" }); i < 0 || h.Checks[i].Status != checkFail || h.Status != string(fitness.Unhealthy) {
				t.Errorf("%+v", h)
			}
		}
	case <-time.After(20 * time.Second):
		t.Fatal("status and doctor wait for a check that hangs")
	}
	if got := <-code; got != http.StatusServiceUnavailable {
		t.Errorf("/healthz answers %d", got)
	}
}

// The check of the store goes through no object: how long that takes, and what it meets, says
// nothing of the next job.
func TestStoreCheckReadsNoTree(t *testing.T) {
	n := makeSite(t, 1)[0].node
	var tree cas.Tree
	for i := range 300 { // too large for the index
		tree.Entries = append(tree.Entries, cas.Entry{Name: fmt.Sprintf("%0100d", i), Kind: cas.Symlink, Target: "x"})
	}
	enc, err := tree.Encode()
	if err != nil {
		t.Fatal(err)
	}
	ref, err := n.store.Put(t.Context(), bytes.NewReader(enc), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.store.Pin(t.Context(), cas.Pin{Owner: "person/ann", Trees: []forgeyard.Digest{ref.Digest}}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(n.dir.join(dirCAS, "blobs", "*", "*", "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Truncate(files[0], 1); err != nil { // who reads it sets it aside
		t.Fatal(err)
	}
	if c := n.checkStore(); c.Status != checkOK {
		t.Errorf("%+v", c)
	}
	if _, err := os.Stat(files[0]); err != nil {
		t.Errorf("the check of the store read a pinned tree: %v", err)
	}
	if _, err := n.store.Usage(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(files[0]); err == nil {
		t.Error("a sum of what is pinned reads no tree: this test shows nothing")
	}
}

// RA-328, RA-329, RA-339: a node that cannot write its logs stays connected, says so to everybody
// within seconds, takes no new work and leaves alone what runs; it takes work again by itself.
func TestIllNodeTakesNoNewWork(t *testing.T) {
	p := makeSite(t, 1)[0]
	n := p.node
	_, running := p.submit(strings.Replace(helloJob, "echo hello", "sleep 600; echo hello", 1))
	p.wait("it runs", func() bool { return p.show(running).Status == "running" })
	spool := n.dir.join(dirSpool)
	if err := os.Rename(spool, spool+".away"); err != nil {
		t.Fatal(err)
	}
	p.wait("the node finds it", func() bool { return slices.Contains(n.refusingWords(), "unhealthy") })
	if got := n.refusing(); len(got) != 1 || got[0].Reason != job.RejectPreparation || !strings.Contains(got[0].Detail, "cannot be written to") {
		t.Errorf("an offer is answered %+v", got)
	}
	st := n.Status(t.Context())
	if st.State != StateOnline || st.Health.Status != string(fitness.Unhealthy) || !slices.Contains(st.NotTakingWork, "unhealthy") || len(st.Reasons) == 0 || !strings.Contains(st.Reasons[0].Detail, "cannot be written to") {
		t.Errorf("status: %s %s %v %v", st.State, st.Health.Status, st.NotTakingWork, st.Reasons)
	}
	_, waits := p.submit(helloJob)
	p.wait("the leader heard of it", func() bool {
		j := p.show(waits)
		return len(j.Candidates) == 1 && slices.Contains(j.Candidates[0].Reasons, "unhealthy")
	})
	if s := p.show(running).Status; s != "running" {
		t.Errorf("what ran is %s", s)
	}
	if err := os.Rename(spool+".away", spool); err != nil {
		t.Fatal(err)
	}
	p.waitDone(waits)
	if got := n.refusingWords(); len(got) != 0 {
		t.Errorf("it is mended, and not taking work: %v", got)
	}
	if s := p.show(running).Status; s != "running" {
		t.Errorf("what ran is %s", s)
	}
	if _, err := p.jobs().Cancel(t.Context(), connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: running})); err != nil {
		t.Error(err)
	}
	p.waitDone(running)
}
