package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/forgeyard/forgeyard-node/mesh"
)

// keepLine keeps the last stdout, which is one line, in a variable.
func keepLine(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: keepline VAR")
	}
	line := strings.TrimSpace(ts.ReadFile("stdout"))
	if line == "" || strings.Contains(line, "\n") {
		ts.Fatalf("not one line: %q", line)
	}
	ts.Setenv(args[0], line)
}

// forge makes a token of the right shape with another secret.
func forge(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: forge VAR TOKEN")
	}
	t, err := mesh.ParseToken(args[1])
	ts.Check(err)
	t.Secret, err = mesh.NewTokenSecret()
	ts.Check(err)
	text, err := t.Text()
	ts.Check(err)
	ts.Setenv(args[0], text)
}

// waitText asks until the text output of a command matches.
func waitText(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 4 {
		ts.Fatalf("usage: wait-text DURATION NAME 'command' REGEXP")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	re, err := regexp.Compile("(?m)" + args[3])
	ts.Check(err)
	words := append([]string{"--data-dir", ts.MkAbs(args[1])}, strings.Fields(args[2])...)
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.Command(filepath.Join(os.Getenv("FORGEYARD_BIN"), "forgeyard-node"), words...).CombinedOutput()
		if err == nil && re.Match(out) {
			return
		}
		if time.Now().After(end) {
			worldOf(ts).logs(ts)
			ts.Fatalf("%q does not say %s after %s: %v\n%s", args[2], args[3], limit, err, out)
		}
	}
}

// watch starts a command that goes on, whose words `said` waits for.
func watch(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: watch ID NAME args…")
	}
	cmd := exec.Command(filepath.Join(os.Getenv("FORGEYARD_BIN"), "forgeyard-node"), at(ts, args[1:])...)
	cmd.Dir = worldOf(ts).work
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &proc{cmd: cmd, out: &lockedBuffer{}, err: &lockedBuffer{}, done: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = p.out, p.err
	ts.Check(cmd.Start())
	go func() { p.done <- cmd.Wait() }()
	worldOf(ts).procs[args[0]] = p
}

// saidWithin bounds how long a command that is watched may take to say something.
const saidWithin = 30 * time.Second

func said(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: said ID REGEXP")
	}
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	p := worldOf(ts).procs[args[0]]
	if p == nil {
		ts.Fatalf("%s was not started", args[0])
	}
	for end := time.Now().Add(saidWithin); !re.MatchString(p.out.String() + p.err.String()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) || p.cmd.ProcessState != nil && !re.MatchString(p.out.String()+p.err.String()) {
			ts.Fatalf("%s did not say %s within %s (ended: %v): %q %q", args[0], args[1], saidWithin, p.cmd.ProcessState, p.out, p.err)
		}
	}
}

// interrupt sends Ctrl-C to a command that is watched, and takes its exit code and
// output as those of the last command.
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: interrupt ID CODE")
	}
	p := running(ts, args[:1])
	ts.Check(p.cmd.Process.Signal(os.Interrupt))
	ended(ts, p, args[1])
}

// ended waits for a watched command to end by itself.
func endedBy(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: ended ID CODE")
	}
	p := worldOf(ts).procs[args[0]]
	if p == nil {
		ts.Fatalf("%s was not started", args[0])
	}
	ended(ts, p, args[1])
}

func ended(ts *testscript.TestScript, p *proc, want string) {
	var err error
	select {
	case err = <-p.done:
	case <-time.After(saidWithin):
		p.kill()
		ts.Fatalf("it does not end within %s: %q %q", saidWithin, p.out, p.err)
	}
	code := 0
	if x := (*exec.ExitError)(nil); errors.As(err, &x) {
		code = x.ExitCode()
	}
	_, werr := ts.Stdout().Write([]byte(p.out.String()))
	_, eerr := ts.Stderr().Write([]byte(p.err.String()))
	ts.Check(errors.Join(werr, eerr))
	if strconv.Itoa(code) != want {
		ts.Fatalf("exit code %d, not %s", code, want)
	}
}

// sameBytes compares two files whole, for those that are no text.
func sameBytes(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: same FILE FILE")
	}
	x, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	y, err := os.ReadFile(ts.MkAbs(args[1]))
	ts.Check(err)
	if !bytes.Equal(x, y) {
		ts.Fatalf("%s (%d bytes) and %s (%d bytes) differ", args[0], len(x), args[1], len(y))
	}
}
