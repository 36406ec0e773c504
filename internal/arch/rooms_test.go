package arch

import (
	"slices"
	"strings"
	"testing"
)

// runnerRoles is the crate layout of 07§5, in its order, by our packages.
var runnerRoles = []role{
	{"RA-043 runner", []part{
		{"node", []string{"Node", "Run", "Config", "Node.shutdown"}},
		{"node/agent", []string{"Step", "Input", "Book"}},
		{"node/controllers", []string{"Step"}},
		{"node/runner", []string{"Runner", "Attempt", "Runner.Start"}},
	}},
	{"RA-044 model", []part{
		{".", []string{"JobID", "AttemptID", "LeaseID", "RunnerID", "SessionID", "MessageID", "Authority", "Fence", "Digest", "Kind", "Error"}},
		{"job", []string{"Spec", "Step", "Phase", "Result", "Outcome", "FailureCategory", "RejectReason"}},
		{"lease", []string{"Lease", "Lease.Accept", "Lease.End", "Check"}},
		{"site", []string{"Offer", "Accept", "Reject"}},
	}},
	{"RA-045 identity", []part{
		{"mesh", []string{"Identity", "Identity.PeerID", "LoadOrCreateIdentity", "Enrolment", "SaveEnrolment", "LoadEnrolment"}},
		{".", []string{"RunnerID", "SessionID"}},
	}},
	{"RA-046 registration", []part{
		{"mesh", []string{"Join", "Mesh.ServeJoin", "IssueCredential", "ParseCredential", "Credential.Verify"}},
		{"site", []string{"Register", "Registered", "Session", "State.Apply"}},
		{"consensus", []string{"Group.Propose"}},
	}},
	{"RA-047 capability", []part{
		{"job", []string{"Capabilities", "SandboxCapability", "Toolchain", "DeviceFact"}},
		{"node/capability", []string{"Probe", "Digest"}},
	}},
	{"RA-048 session", []part{
		{"site", []string{"Session"}},
		{"node", []string{"Node.sessionLoop", "Node.register", "Node.superseded"}},
	}},
	{"RA-049 lease", []part{
		{"lease", []string{"Check", "HolderStop", "ReassignAt", "CertainAt"}},
		{"node/agent", []string{"Accept", "Reject", "stepper.answer", "stepper.refusal"}},
		{"node", []string{"Node.propose"}},
	}},
	{"RA-050 workspace", []part{{"node/runner", []string{"newWorkspace", "removeWorkspace"}}}},
	{"RA-051 materialise", []part{{"cas/tree", []string{"Materialise", "MaterialiseFile"}}}},
	{"RA-052 input", []part{
		{"node/runner", []string{"Attempt.inputs", "Attempt.inputFile", "Attempt.inputTree"}},
		{"cas", []string{"Store", "Exchange"}},
	}},
	{"RA-053 output", []part{
		{"node/runner", []string{"Attempt.deliver"}},
		{"cas/tree", []string{"CaptureOutputs", "CheckOutputPath"}},
	}},
	{"RA-054 log", []part{{"node/runner/spool", []string{"Spool", "Spool.Append", "Spool.Tail", "Spool.Flush", "DecodeFrames"}}}},
	{"RA-055 heartbeat", []part{
		{"node", []string{"Node.beat", "Node.heartbeat", "Node.renewLoop"}},
		{"node/agent", []string{"Book.ToRenew", "Book.Renewed"}},
		{"node/controllers", []string{"Sign", "Renewal", "RenewalAnswer"}},
	}},
	{"RA-056 reconnect", []part{
		{"node", []string{"link.route", "link.heard", "link.ended"}},
		{"node/agent", []string{"Link", "Link.Route", "Link.Failed", "Pace"}},
		{"lease", []string{"Answer"}},
	}},
	{"RA-057 drain", []part{
		{"node/agent", []string{"Refusal", "Stop"}},
		{"site", []string{"MemberSet"}},
		{"node", []string{"Node.Drain", "Node.drainLoop"}},
	}},
	{"RA-058 local state", []part{
		{"node/runner", []string{"state", "readState", "Runner.Recover", "Attempt.KeepCompletion"}},
		{"node", []string{"dataDir"}},
	}},
	{"RA-059 health", []part{{"node", []string{"Node.health", "Node.Doctor"}}}},
	{"RA-060 metrics", []part{{"node", []string{"metrics", "newMetrics"}}}},
	{"RA-061 testkit", []part{
		{"simulation", []string{"Run"}},
		{"cas/castest", []string{"Run"}},
		{"node/executor/exectest", []string{"New", "Bench"}},
	}},
	{"RA-067 control transport", []part{ // events are proposals; commands are what the log and the answers to heartbeats say
		{"node/replica", []string{"Group", "Forward", "Proposer.Propose"}},
		{"node/agent", []string{"Input", "Effect"}},
		{"node", []string{"Node.propose", "Node.heartbeat"}},
	}},
	{"RA-062 application", []part{{"cmd/forgeyard-node", []string{"main", "app.upCommand"}}}},
}

// RA-043–062, RA-067: each part of the runner has a package of ours, which has a line in the table and
// declares what the part is made of. What it may import, and whether it only decides, the
// table says, and TestLayers and TestPurity keep.
func TestRunnerRoles(t *testing.T) {
	none(t, checkRoles(house(t), table, runnerRoles))
	for _, pure := range []string{".", "job", "lease", "site", "node/agent", "node/controllers"} { // RA-044
		if i := slices.IndexFunc(table, func(l line) bool { return l.dir == pure }); i < 0 || !table[i].pure {
			t.Errorf("%s is not pure", pure)
		}
	}
}

var (
	decides  = []string{"node/agent", "node/controllers"}
	core     = []string{"node/agent", "node/runner"}
	programs = []string{"node", "mesh", "site", "lease", "job", "consensus", "cas", "checkpoint", "devices", "uplink"}
)

var charges = []charge{
	{what: "start a process: workloads go through an executor (RA-019, RA-206)", in: programs,
		but:     []string{"node/capability", "node/preempt", "node/executor/sandbox", "node/executor/keeper", "node/executor/ptree"},
		imports: []string{"os/exec"}, uses: []string{"os.StartProcess", "syscall.ForkExec", "syscall.StartProcess", "unix.Exec", "syscall.Exec"}},
	{what: "compile what people write: it executes planned specs (RA-037)", in: programs, uses: []string{"job.ParseFile"}},
	{what: "know a view or a policy of people (RA-036)", in: core,
		imports: []string{"api/render", "api/wire", "api/forgeyard/v1", "node/control", "sitecfg", "net/http", "html/template"}},
	{what: "ask who may do what: the log answers that (RA-039)", in: core, imports: []string{"sitecfg", "mesh"}, uses: []string{".Admits", ".RightOf", "site.Right"}},
	{what: "sign anything: that is a program of its own, which runs no work of others (RA-034, RA-399, RA-569)",
		in: append(core, "node/executor", "checkpoint", "job"), imports: []string{"crypto/ed25519", "crypto/ecdsa", "crypto/rsa", "crypto/x509", "crypto/hmac", "mesh"}},
	{what: "know what confidential work is: a runner is given it by the site, a job asks for it, and the one is held against the other (RA-400)",
		in: append(core, "node/executor", "node/controllers", "node"), uses: []string{"job.TrustConfidential", "job.TrustNetwork"}},
	{what: "know how the network is made (RA-066)", in: append(decides, "node/runner"),
		imports: []string{"github.com/libp2p", "github.com/quic-go", "github.com/multiformats/go-multiaddr", "net", "mesh", "consensus"}},
	{what: "make walls around processes: the few acts that need privilege (RA-376)", in: programs,
		but:  []string{"node/executor/sandbox", "node/executor/sitenet", "node/executor/ptree"},
		uses: []string{"unix.Mount", "unix.Setns", "unix.Unshare", "unix.PivotRoot", "syscall.Mount", "syscall.Unshare"}},
	{what: "decide: it is an application without logic of its own (RA-062)", in: []string{"cmd/forgeyard-node"},
		imports: []string{"lease", "site", "checkpoint", "devices", "consensus", "node/agent", "node/controllers", "node/runner"}},
}

// RA-019, RA-034, RA-036, RA-037, RA-039, RA-062, RA-066, RA-376, RA-399, RA-400, RA-569: acts that are some packages' business and nobody
// else's.
func TestCharges(t *testing.T) { none(t, checkCharges(house(t), charges)) }

// RA-042, RA-038: all that an agent can wish for. It answers offers, starts and ends what it
// was given, and looks after its devices; it has no word for placing work, for letting
// somebody do something, or for approving a release.
func TestWishesOfAnAgent(t *testing.T) {
	want := []string{"Accept", "Cancel", "CheckDevice", "Hasten", "Kill", "Reject", "ResetDevice", "Start", "Stop"}
	if got := receivers(house(t), "node/agent", "effect"); !slices.Equal(got, want) {
		t.Errorf("an agent wishes for %q, the list has %q", got, want)
	}
}

// RA-063, RA-065, RA-568: a node asks its operating system through its Platform and nowhere
// else; node's own test of that has another one in its place.
func TestPlatformFiles(t *testing.T) {
	none(t, checkPlatformFiles(house(t), "node"))
	tr, err := parse(map[string]string{
		"node/platform_linux.go": "package node\nimport \"golang.org/x/sys/unix\"\nvar _ = unix.Getpid\n",
		"node/disk_windows.go":   "package node\n",
		"node/serve.go":          "// Package node acts.\npackage node\nimport \"syscall\"\nvar _ = syscall.Getpid\n",
		"node/x_test.go":         "package node\nimport \"syscall\"\nvar _ = syscall.Getpid\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if found := checkPlatformFiles(tr, "node"); len(found) != 2 {
		t.Errorf("of two faults %v were found", found)
	}
}

// The checkers of roles and charges are shown what they are to find.
func TestSeededRooms(t *testing.T) {
	tr, err := parse(map[string]string{
		"node/agent/a.go": "// Package agent decides.\npackage agent\nimport (\n\"" + Module + "/sitecfg\"\n\"github.com/libp2p/go-libp2p/core/peer\"\n)\n" +
			"type Approve struct{}\nfunc (*Approve) effect() {}\nfunc Step(peer.ID, sitecfg.Node) { job.ParseFile(``); in.State.Admits() }\ntype Way interface{ Ask() }\n",
		"node/runner/r.go": "// Package runner acts.\npackage runner\nimport \"os/exec\"\nvar _ = exec.Command\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := []line{{dir: "node/agent"}}
	found := checkRoles(tr, lines, []role{
		{"one", []part{{"node/agent", []string{"Step", "Approve.effect", "Way.Ask"}}}},
		{"two", []part{{"node/agent", []string{"Book"}}}},
		{"three", []part{{"node/runner", nil}}},
	})
	found = append(found, checkCharges(tr, append(charges, charge{what: "hide", in: []string{"nowhere"}}))...)
	var said []string
	for _, f := range found {
		said = append(said, f.String())
	}
	all := strings.Join(said, "\n")
	for _, want := range []string{
		"two needs Book, which is not declared there", "three has no line in the table",
		"node/runner imports os/exec: it must not start a process", "node/agent uses job.ParseFile: it must not compile",
		"imports " + Module + "/sitecfg: it must not know a view", "node/agent uses .Admits: it must not ask who may", "imports github.com/libp2p/go-libp2p/core/peer: it must not know how the network",
		"nowhere: is not there",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q was not found in\n%s", want, all)
		}
	}
	if strings.Contains(all, "one ") || !slices.Equal(receivers(tr, "node/agent", "effect"), []string{"Approve"}) {
		t.Errorf("found too much, or the wish of an agent not:\n%s", all)
	}
}
