//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
)

func framework(t *testing.T, i job.Isolation) *site {
	return newSite(t, job.Resume{Mode: job.ResumeFramework, Isolation: i, Checkpoint: job.CheckpointDecl{Results: 1}})
}

// tests runs a program of mode framework to its end and commits its cursor, as the runner
// does when the tree is gone.
func (s *site) tests(argv ...string) (code int, stdout string) {
	s.t.Helper()
	cache, err := os.UserCacheDir()
	check(s.t, err)
	cmd := s.command(s.grant(), argv...)
	cmd.Env = append(cmd.Env, "RAN="+s.bin+"/ran", "HOME="+s.bin, "GOCACHE="+filepath.Join(cache, "go-build"), "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local")
	cmd.Env[0] += ":" + os.Getenv("PATH")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run() // its code is looked at below
	s.t.Logf("epoch %d: exit %d\n%s", s.epochs, cmd.ProcessState.ExitCode(), out.String())
	s.takeCursor()
	return cmd.ProcessState.ExitCode(), out.String()
}

func (s *site) takeCursor() {
	s.t.Helper()
	restored := s.path("restore")
	if _, err := os.Stat(restored); err != nil {
		restored = ""
	}
	c, ok, err := capture.ReadCursor(s.path("ckpt"), restored, s.expect())
	check(s.t, err)
	if !ok {
		return
	}
	g, err := capture.IngestCursor(s.t.Context(), s.store, c, s.expect())
	check(s.t, err)
	s.commit(g)
}

// ran is which tests ran, in which epoch: the tests write it outside of all that is taken.
func (s *site) ran() []string {
	b, err := os.ReadFile(filepath.Join(s.bin, "ran"))
	check(s.t, err)
	return strings.Fields(string(b))
}

func (s *site) readReport(name string) (r cursor.Report) {
	b, err := os.ReadFile(s.path("build/" + name))
	check(s.t, err)
	check(s.t, json.Unmarshal(b, &r))
	return r
}

func write(t *testing.T, name, text string) {
	check(t, os.MkdirAll(filepath.Dir(name), 0o755))
	check(t, os.WriteFile(name, []byte(text), 0o755))
}

// CK-058, CK-175, K11: a list of tests, killed -9 in the middle, goes on behind the last that
// ended; the one that was cut runs again; the report has all, and says which were carried.
func TestCursorOfAList(t *testing.T) {
	s := framework(t, job.Isolated)
	script := filepath.Join(s.bin, "one")
	write(t, script, `#!/bin/sh
echo "$1@$FORGEYARD_EPOCH" >>"$RAN"
case $1@$FORGEYARD_EPOCH in
t4@1) kill -9 0 ;;
t2@*) exit 1 ;;
t3@*) exit 77 ;;
esac
`)
	run := []string{"/bin/sh", "-euc", `[ -n "$FORGEYARD_TEST_ISOLATION" ]; seq -f t%g 6 | fyjob cursor plan; fyjob cursor run --format list --report r.json -- ` + script}
	if code, _ := s.tests(run...); code != -1 {
		t.Fatalf("exit %d, it was to be killed", code)
	}
	if c := s.history[0]; c.Consistency != checkpoint.Framework || c.Progress != (checkpoint.Progress{Unit: "test", Done: 3, Total: 6}) {
		t.Fatalf("CK-091: %+v", c)
	}
	code, out := s.tests(run...)
	if code != exitNo || !strings.Contains(out, "6 tests: 4 passed, 1 failed, 1 skipped, 0 errors, 0 missing; 3 carried over") {
		t.Fatalf("exit %d", code)
	}
	if got := strings.Join(s.ran(), " "); got != "t1@1 t2@1 t3@1 t4@1 t4@2 t5@2 t6@2" {
		t.Errorf("ran %s", got)
	}
	r := s.readReport("r.json")
	if !r.Complete || r.Carried != 3 || r.Results[1].Outcome != cursor.Fail || r.Results[1].Carried != 1 || r.Results[3].Carried != 0 {
		t.Errorf("%+v", r)
	}
	// Another list: nothing of it counts, and the program is told why.
	code, out = s.tests("/bin/sh", "-euc", `echo t1 | fyjob cursor plan; fyjob cursor next`)
	if code != 0 || !strings.Contains(out, "every test runs again: test-list") || !strings.HasSuffix(out, "t1\n") {
		t.Errorf("another list: exit %d, %q", code, out)
	}
}

// CK-176: a suite that was cut runs again as a whole; ordered tests begin anew.
func TestCursorIsolation(t *testing.T) {
	for i, want := range map[job.Isolation]string{job.Isolated: "b/2", job.Suite: "b/1 b/2"} {
		s := framework(t, i)
		code, _ := s.tests("/bin/sh", "-euc", `printf '%s\n' a/1 a/2 b/1 b/2 | fyjob cursor plan
for id in a/1 a/2 b/1; do fyjob cursor start $id; fyjob cursor done $id --outcome pass; done; fyjob cursor start b/2`)
		if code != 0 {
			t.Fatal(code)
		}
		_, out := s.tests("/bin/sh", "-euc", `[ -n "$FORGEYARD_TEST_LIST_DIGEST" ]; printf '%s\n' a/1 a/2 b/1 b/2 | fyjob cursor plan; fyjob cursor next`)
		if got := strings.Join(strings.Fields(out), " "); got != want {
			t.Errorf("%s: %q remain, want %q", i, got, want)
		}
	}
	c, err := checkpoint.NewContract(job.Resume{Mode: job.ResumeFramework, Isolation: job.Ordered, Checkpoint: job.CheckpointDecl{Results: 1}}, checkpoint.Limits{})
	if err != nil || c.Resumable() || !c.Speaks() {
		t.Errorf("ordered: %v %+v", err, c)
	}
}

// Helpers at once take turns, and a line that one left half written is cut off.
func TestCursorTurns(t *testing.T) {
	s := framework(t, job.Isolated)
	env := s.grant()
	call := func(args ...string) (int, string) {
		code, _, errs := s.call(env, args...)
		return code, errs
	}
	var p cursor.Plan
	for i := range 16 {
		p = append(p, fmt.Sprintf("t%d", i))
	}
	check(t, os.WriteFile(s.path("ckpt/plan"), p.Encode(), 0o644))
	check(t, os.WriteFile(s.path("ckpt/binding.json"), cursor.Bind(p, [32]byte{}, job.Isolated).Encode(), 0o644))
	check(t, os.WriteFile(s.path("ckpt/cursor.jsonl"), []byte(`{"seq":1,"epo`), 0o644))
	var all sync.WaitGroup
	for _, id := range p {
		all.Go(func() {
			for _, args := range [][]string{{"cursor", "start", id}, {"cursor", "done", id, "--outcome", "pass"}} {
				if code, errs := call(args...); code != 0 {
					t.Errorf("%v: exit %d %s", args, code, errs)
				}
			}
		})
	}
	all.Wait()
	b, err := os.ReadFile(s.path("ckpt/cursor.jsonl"))
	check(t, err)
	if l, err := cursor.Decode(b); err != nil || len(l.Records) != 32 || l.Good != len(b) || l.Last() != 32 {
		t.Fatalf("%d records, %v", len(l.Records), err)
	}
	for _, c := range []struct {
		code int
		args string
	}{
		{2, "cursor done nobody --outcome pass"}, {2, "cursor done t1 --outcome fine"}, {2, "cursor start"}, {2, "cursor plan --format go"}, {2, "cursor run --format x -- y"},
		{2, "cursor run --format go -- make"}, {2, "cursor run --format go -- go test -run=x"}, {2, "mark set"}, {1, "cursor next"}, {0, "cursor report"},
	} {
		if code, errs := call(strings.Fields(c.args)...); code != c.code {
			t.Errorf("%q: exit %d, want %d: %s", c.args, code, c.code, errs)
		}
	}
	env[checkpoint.EnvMode] = "application"
	if code, errs := call("cursor", "next"); code != exitRejected || !strings.Contains(errs, "mode framework") {
		t.Errorf("exit %d %s", code, errs)
	}
}

// What fails while the job is asked to end may fail of that: it is not counted.
func TestCursorStop(t *testing.T) {
	s := framework(t, job.Isolated)
	check := func(code, want int, out, has string) {
		t.Helper()
		if code != want || !strings.Contains(out, has) {
			t.Fatalf("exit %d, want %d: %s", code, want, out)
		}
	}
	stop := string(checkpoint.Request{Seq: 1, Kind: checkpoint.StopDrain, WantCheckpoint: true, WantExit: true}.Encode())
	script := filepath.Join(s.bin, "one")
	write(t, script, "#!/bin/sh\ncase $1@$FORGEYARD_EPOCH in t2@1) echo '"+stop+"' >\"$FORGEYARD_CTL_DIR/r\"; mv \"$FORGEYARD_CTL_DIR/r\" \"$FORGEYARD_CTL_DIR/request.json\"; exit 1;; esac\n")
	run := []string{"/bin/sh", "-euc", `seq -f t%g 3 | fyjob cursor plan; fyjob cursor run --format list -- ` + script}
	code, out := s.tests(run...)
	check(code, checkpoint.DefaultExitCode, out, "asked to end")
	if d := s.history[0].Progress.Done; d != 1 {
		t.Fatalf("%d tests count", d)
	}
	code, out = s.tests(run...)
	check(code, 0, out, "3 passed, 0 failed")
}

// CK-175: `go test` goes on test by test over two packages, one of which ends its process;
// another binary begins anew.
func TestCursorOfGoTest(t *testing.T) {
	s := framework(t, job.Isolated)
	src := filepath.Join(s.bin, "src")
	write(t, filepath.Join(src, "go.mod"), "module example.com/m\n\ngo 1.24\n")
	const head = `
import ("os"; "testing"; "syscall"; "time")
func ran(t *testing.T) {
	f, _ := os.OpenFile(os.Getenv("RAN"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	f.WriteString(t.Name()+"@"+os.Getenv("FORGEYARD_EPOCH")+"\n")
	f.Close()
}
var _ = syscall.Kill
var _ = time.Now
`
	write(t, filepath.Join(src, "a/a_test.go"), "package a\n"+head+`
func TestA1(t *testing.T) { ran(t) }
func TestA2(t *testing.T) { ran(t); t.Run("sub", func(t *testing.T) {}) }
func TestA3(t *testing.T) { ran(t); if os.Getenv("FORGEYARD_EPOCH") == "1" { time.Sleep(time.Second); syscall.Kill(0, syscall.SIGKILL) } }
func TestA4(t *testing.T) { ran(t); t.Skip() }
`)
	write(t, filepath.Join(src, "b/b_test.go"), "package b\n"+head+`
func TestB1(t *testing.T) { ran(t); os.Exit(3) }
func TestB2(t *testing.T) { ran(t) }
`)
	run := []string{"/bin/sh", "-euc", "cd " + src + "; fyjob cursor run --format go --report $OLDPWD/r.json -- go test ./..."}
	if code, _ := s.tests(run...); code != -1 {
		t.Fatalf("exit %d, it was to be killed", code)
	}
	if d := s.history[0].Progress; d.Done != 2 || d.Total != 6 {
		t.Fatalf("%+v", d)
	}
	code, out := s.tests(run...)
	if code != exitNo || !strings.Contains(out, "6 tests: 4 passed, 0 failed, 1 skipped, 1 errors, 0 missing; 2 carried over") {
		t.Fatalf("exit %d", code)
	}
	if got := strings.Join(s.ran(), " "); got != "TestA1@1 TestA2@1 TestA3@1 TestA3@2 TestA4@2 TestB1@2 TestB2@2" {
		t.Errorf("ran %s", got)
	}
	write(t, filepath.Join(src, "b/more_test.go"), "package b\n\nvar changed = 1\nfunc init() { if changed == 2 { println(changed) } }\n")
	_, out = s.tests(run...)
	if !strings.Contains(out, "every test runs again: test-binary") || !strings.Contains(out, "0 carried over") {
		t.Errorf("another binary is carried on: %s", out)
	}
}

// CK-175: the tests of a Rust workspace go on test by test, each in a process of its own, over a
// library and a test program of it; another build begins anew.
func TestCursorOfCargo(t *testing.T) {
	if out, err := exec.Command("cargo", "--version").CombinedOutput(); err != nil {
		needs.Lacking(t, "cargo: %v %s", err, out)
	}
	home, err := os.UserHomeDir()
	check(t, err)
	s := framework(t, job.Isolated)
	src := filepath.Join(s.bin, "src")
	write(t, filepath.Join(src, "Cargo.toml"), "[package]\nname = \"c\"\nversion = \"0.1.0\"\nedition = \"2021\"\n")
	const lib = `
#[cfg(test)]
mod tests {
    use std::{env, fs, io::Write, process};
    fn ran(name: &str) {
        let f = fs::OpenOptions::new().append(true).create(true).open(env::var("RAN").unwrap());
        writeln!(f.unwrap(), "{}@{}", name, env::var("FORGEYARD_EPOCH").unwrap()).unwrap();
    }
    #[test] fn a() { ran("a"); assert!(env::var("CARGO_MANIFEST_DIR").unwrap().ends_with("src")); }
    #[test] fn b() { ran("b"); panic!("it fails") }
    #[test] fn c() {
        ran("c");
        if env::var("FORGEYARD_EPOCH").unwrap() == "1" {
            process::Command::new("sh").args(["-c", "kill -9 0"]).status().unwrap();
        }
    }
    #[test] #[ignore] fn never() { ran("never"); }
}
`
	write(t, filepath.Join(src, "src/lib.rs"), lib)
	write(t, filepath.Join(src, "tests/whole.rs"), "#[test] fn d() { std::process::abort() }\n#[test] fn e() {}\n")
	env := "cd " + src + "; export CARGO_HOME=" + filepath.Join(home, ".cargo") + " RUSTUP_HOME=" + filepath.Join(home, ".rustup") + " CARGO_NET_OFFLINE=true; "
	run := []string{"/bin/sh", "-euc", env + "fyjob cursor run --format cargo --report $OLDPWD/r.json -- cargo test"}
	if code, _ := s.tests(run...); code != -1 {
		t.Fatalf("exit %d, it was to be killed", code)
	}
	if d := s.history[0].Progress; d.Done != 2 || d.Total != 5 {
		t.Fatalf("%+v", d)
	}
	code, out := s.tests(run...)
	if code != exitNo || !strings.Contains(out, "5 tests: 3 passed, 1 failed, 0 skipped, 1 errors, 0 missing; 2 carried over") {
		t.Fatalf("exit %d", code)
	}
	if got := strings.Join(s.ran(), " "); got != "a@1 b@1 c@1 c@2" {
		t.Errorf("ran %s", got)
	}
	if r := s.readReport("r.json"); r.Results[0].ID != "c::tests::a" || r.Results[3].ID != "c::whole::d" || r.Results[3].Outcome != cursor.Error {
		t.Errorf("%+v", r.Results)
	}
	write(t, filepath.Join(src, "tests/whole.rs"), "#[test] fn d() {}\n#[test] fn e() {}\n")
	if _, out = s.tests(run...); !strings.Contains(out, "every test runs again: test-binary") || !strings.Contains(out, "0 carried over") {
		t.Errorf("another build is carried on: %s", out)
	}
}

// CK-175: what nextest lists is run by the programs that it names; the rest of its command is its
// own. Here a cargo of the test answers for it.
func TestCursorOfNextest(t *testing.T) {
	s := framework(t, job.Isolated)
	dir := filepath.Join(s.bin, "src")
	write(t, filepath.Join(dir, "prog"), "#!/bin/sh\necho \"$PWD $*\" | sed \"s|$HOME/||; s/ /,/g\" >>\"$RAN\"\n[ $2 != fails ]\n")
	write(t, filepath.Join(dir, "list.json"), `{"rust-suites": {"c": {"binary-path": "`+dir+`/prog", "cwd": "`+dir+`", "testcases": {
 "good": {"filter-match": {"status": "matches"}}, "fails": {"filter-match": {"status": "matches"}}, "other": {"filter-match": {"status": "mismatch"}}}}}}`)
	write(t, filepath.Join(dir, "cargo"), "#!/bin/sh\n[ \"$*\" = 'nextest list --message-format=json -E all()' ] && cat "+dir+"/list.json\n")
	code, out := s.tests("/bin/sh", "-euc", "fyjob cursor run --format nextest -- "+dir+"/cargo nextest list -E 'all()'")
	if code != exitNo || !strings.Contains(out, "2 tests: 1 passed, 1 failed") {
		t.Fatalf("exit %d", code)
	}
	if got := strings.Join(s.ran(), " "); got != "src,--exact,fails,--nocapture src,--exact,good,--nocapture" {
		t.Errorf("ran %s", got)
	}
	for _, command := range []string{"cargo test", "cargo nextest run", "cargo nextest list -- x", "go nextest list"} {
		if code, out := s.tests("/bin/sh", "-uc", "fyjob cursor run --format nextest -- "+command); code != 2 {
			t.Errorf("%s: exit %d %s", command, code, out)
		}
	}
}

// CK-175: the plugin in docs/examples, with a suite that was cut.
func TestCursorOfPytest(t *testing.T) {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import pytest").CombinedOutput(); err != nil {
		needs.Lacking(t, "pytest for %s: %v %s", python, err, out)
	}
	s := framework(t, job.Suite)
	src := filepath.Join(s.bin, "src")
	plugin, err := os.ReadFile(example(t, "forgeyard_cursor.py"))
	check(t, err)
	write(t, filepath.Join(src, "forgeyard_cursor.py"), string(plugin))
	const head = "import os, signal, pytest\ndef ran(n):\n    open(os.environ['RAN'], 'a').write(n + '@' + os.environ['FORGEYARD_EPOCH'] + '\\n')\n"
	write(t, filepath.Join(src, "test_a.py"), head+"def test_1(): ran('a1')\n@pytest.mark.parametrize('x', ['p q'])\ndef test_2(x): ran('a2')\n@pytest.mark.skip\ndef test_3(): ran('a3')\n")
	write(t, filepath.Join(src, "test_b.py"), head+"def test_1(): ran('b1')\ndef test_2():\n    ran('b2')\n    if os.environ['FORGEYARD_EPOCH'] == '1': os.killpg(0, signal.SIGKILL)\n    assert False\n")
	run := []string{"/bin/sh", "-euc", "cd " + src + "; PYTHONPATH=. " + python + " -m pytest -q -p no:cacheprovider -p forgeyard_cursor"}
	if code, _ := s.tests(run...); code != -1 {
		t.Fatalf("exit %d, it was to be killed", code)
	}
	if code, _ := s.tests(run...); code != 1 {
		t.Fatalf("exit %d", code)
	}
	if got := strings.Join(s.ran(), " "); got != "a1@1 a2@1 b1@1 b2@1 b1@2 b2@2" {
		t.Errorf("ran %s", got)
	}
	if p := s.history[1].Progress; p.Done != 5 || p.Total != 5 {
		t.Errorf("%+v", p)
	}
	if code, out := s.tests(run...); code != 1 {
		t.Errorf("a failure that was carried over is forgotten: exit %d %s", code, out)
	}
}

// What was interrupted, and what fails when the job is being stopped, has no outcome: a test
// is not skipped for good because somebody pressed Ctrl-C.
func TestCursorOfPytestInterrupted(t *testing.T) {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import pytest").CombinedOutput(); err != nil {
		needs.Lacking(t, "pytest for %s: %v %s", python, err, out)
	}
	s := framework(t, job.Suite)
	src := filepath.Join(s.bin, "src")
	plugin, err := os.ReadFile(example(t, "forgeyard_cursor.py"))
	check(t, err)
	write(t, filepath.Join(src, "forgeyard_cursor.py"), string(plugin))
	stop := string(checkpoint.Request{Seq: 1, Kind: checkpoint.StopDrain, WantExit: true}.Encode())
	write(t, filepath.Join(src, "test_a.py"), `import os, pytest
EPOCH = os.environ['FORGEYARD_EPOCH']
@pytest.fixture
def torn():
    yield
    if EPOCH == '2': raise KeyboardInterrupt
def test_1():
    if EPOCH == '1': raise KeyboardInterrupt
def test_2(torn): pass
def test_3():
    if EPOCH == '3': pytest.exit('enough')
def test_4():
    if EPOCH == '4':
        with open(os.environ['FORGEYARD_CTL_DIR'] + '/request.json', 'w') as f:
            f.write('`+strings.TrimSpace(stop)+`')
        assert False, 'what it needs was stopped'
def test_5(): pytest.skip('not here')
`)
	run := []string{"/bin/sh", "-euc", "cd " + src + "; PYTHONPATH=. " + python + " -m pytest -q -p no:cacheprovider -p forgeyard_cursor"}
	for epoch, done := range []int{0, 1, 2, 4, 5} {
		_, out := s.tests(run...)
		if p := s.history[len(s.history)-1].Progress; int(p.Done) != done {
			t.Errorf("epoch %d: %+v, want %d ended\n%s", epoch+1, p, done, out)
		}
	}
}

// A mark is set when the site has it.
func TestMark(t *testing.T) {
	s := framework(t, job.Isolated)
	env := s.grant()
	env[checkpoint.EnvWindow] = "1"
	if code, _, errs := s.call(env, "mark", "set", "early"); code != exitStaged {
		t.Fatalf("nobody answers: exit %d %s", code, errs)
	}
	cmd := s.command(env, filepath.Join(s.bin, "fyjob"), "mark", "set", "flashed")
	check(t, cmd.Start())
	w := capture.NewWatcher(s.path("ckpt"), s.path("ctl"), testAttempt, s.epochs)
	var last checkpoint.Message
	for last.Reason != "flashed" {
		found, err := w.Poll()
		check(t, err)
		for _, m := range found.Messages {
			last = m
			check(t, capture.WriteAnswer(s.path("ctl"), m.N, checkpoint.Answer{Status: checkpoint.StatusCommitted}))
		}
		time.Sleep(time.Millisecond)
	}
	check(t, cmd.Wait())
}
