// Package e2e tells the stories of people at a site, with the real binaries on
// loopback. Each archive in testdata stands alone: it starts its own daemons in its
// own folder and ends them.
//
// The language is testscript's, and these commands:
//
//	daemon NAME [args]           start a node in $WORK/NAME, wait for its ready line; $NAME_pid, $NAME_http
//	central NAME [args]          the same for a central daemon
//	kill9 NAME                   end a daemon as a power cut would
//	boot NAME                    its machine begins anew: all that it ran is gone, and what starts next is in another boot
//	pause NAME                   stop a daemon where it stands (SIGSTOP)
//	resume NAME                  let it go on (SIGCONT)
//	metric NAME REGEXP           a line of a daemon's metrics
//	gone PID                     wait until a process is no more
//	lives PID                    a process runs at this moment, or with ! does not
//	stopd NAME                   end a daemon in order; it must exit 0
//	fy NAME args                 a command of that node; must exit 0
//	fc NAME args                 a command of that central daemon
//	fails CODE NAME args         a command that must exit with CODE and one line of error
//	json PATH VALUE              a value in the last stdout
//	keep VAR PATH                keep a value of the last stdout in a variable
//	wait-json D NAME 'args' PATH VALUE   ask again until the value is there, at most for D
//	expand FILE                  put variables into a file
//	pty LINK                     a serial device that echoes, and answers reset with baseline
//	unplug LINK                  pull its cable; pty plugs it in again
//	tmpfs DIR SIZE               mount a small disk (root only)
//	fill FILE SIZE               a file of that size whose bytes repeat nowhere
//	log NAME REGEXP              what a daemon must have said by now
//	keepline VAR                 keep the last stdout, one line, in a variable
//	forge VAR TOKEN              a token with another secret
//	wait-text D NAME 'args' RE   ask again until the text is there
//	watch ID NAME args           start a command that goes on
//	said ID REGEXP               wait until it has said that
//	interrupt ID CODE            Ctrl-C; it must exit with CODE, its output is the last one
//	ended ID CODE                it ends by itself
//	died NAME CODE REGEXP        wait until a daemon has ended by itself with CODE and said that
//	damage FILE TO               a copy with one byte changed in its middle
//	same FILE FILE               two files have the same bytes
//	narrow NAME DIR BYTES        DIR is a data dir whose daemon is NAME's, until so many bytes have passed
//	stalled DIR                  wait until they have
//	reapi NAME VERB FILE [N]     ask a node's build cache about a file's bytes; VERB is write, status, read, missing, result or hit
//
// A PATH is keys and indices with dots between, `count` for a length, `*` for all
// elements; the values of `*` stand in order with commas between.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// binaries are built once when nobody says where they are.
var binaries = []string{"forgeyard-node", "forgeyard-central", "fyjob"}

func TestMain(m *testing.M) { os.Exit(withBinaries(m)) }

func withBinaries(m *testing.M) int {
	if os.Getenv("FORGEYARD_BIN") != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "forgeyard-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X main.version=e2e", "-o", dir + "/"}
	for _, b := range binaries {
		args = append(args, "../cmd/"+b)
	}
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	os.Setenv("FORGEYARD_BIN", dir)
	return m.Run()
}

func TestStories(t *testing.T) {
	bin := os.Getenv("FORGEYARD_BIN")
	for _, b := range binaries {
		if _, err := os.Stat(filepath.Join(bin, b)); err != nil {
			t.Fatalf("FORGEYARD_BIN: %v", err)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			w := &world{work: e.WorkDir, procs: map[string]*proc{}, passages: map[string]*passage{}, cables: map[string]func(){}, boots: map[string]bool{}}
			e.Values[worldKey{}] = w
			e.Defer(w.end)
			e.Setenv("PATH", bin+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_STATE_HOME", e.WorkDir)
			e.Setenv("FORGEYARD_DATA_DIR", filepath.Join(e.WorkDir, "nobody"))
			return withModule(e)
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				if os.Geteuid() != 0 && needs.CI() {
					return false, errors.New("CI skips no story, and this one needs root")
				}
				return os.Geteuid() == 0, nil
			case "bwrap":
				_, err := exec.LookPath("bwrap")
				if err != nil && needs.CI() {
					return false, fmt.Errorf("%w: CI skips no story; make setup installs bubblewrap", err)
				}
				return err == nil, nil
			case "ccache":
				_, err := exec.LookPath("ccache")
				if err == nil {
					_, err = exec.LookPath("gcc")
				}
				if err != nil && needs.CI() {
					return false, fmt.Errorf("%w: CI skips no story; make setup installs ccache and gcc", err)
				}
				return err == nil, nil
			case "boots":
				err := canBoot()
				if err != nil && needs.CI() {
					return false, fmt.Errorf("CI skips no story, and this one gives a daemon a boot of its own: unshare: %w", err)
				}
				return err == nil, nil
			case "bazel":
				// It brings a JDK, so only the soak installs it; whoever asked for it misses it.
				_, err := exec.LookPath("bazel")
				if err != nil && os.Getenv("FORGEYARD_BAZEL") != "" {
					return false, fmt.Errorf("%w: scripts/setup.sh soak installs bazel-bootstrap", err)
				}
				return err == nil, nil
			}
			return false, fmt.Errorf("no condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon": daemon, "central": centralDaemon, "kill9": kill9, "boot": boot, "pause": pause, "resume": resume, "gone": gone, "lives": processLives, "metric": metric, "stopd": stopd, "fy": fy, "fc": fc, "fails": fails,
			"json": jsonIs, "keep": keep, "wait-json": waitJSON, "expand": expandFile, "pty": openPTY, "unplug": pullPTY, "tmpfs": mountTmpfs, "fill": fill, "log": logSays,
			"keepline": keepLine, "forge": forge, "wait-text": waitText, "wait-metric": waitMetric, "watch": watch, "said": said, "interrupt": interrupt, "ended": endedBy, "same": sameBytes,
			"died": died, "damage": damage, "cut": cut, "reapi": reapi, "narrow": narrow, "stalled": stalled,
		},
	})
}

// withModule says where this module and those that it needs are: a real one to build.
func withModule(e *testscript.Env) error {
	repo, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	e.Setenv("REPO", repo)
	for _, v := range []string{"GOMODCACHE", "GOCACHE"} {
		out, err := exec.Command("go", "env", v).Output()
		if err != nil {
			return fmt.Errorf("go env: %w", err)
		}
		e.Setenv(v, strings.TrimSpace(string(out)))
	}
	return nil
}

// fy runs a command of a node.
func fy(ts *testscript.TestScript, neg bool, args []string) { command(ts, neg, "forgeyard-node", args) }

// fc runs a command of a central daemon.
func fc(ts *testscript.TestScript, neg bool, args []string) {
	command(ts, neg, "forgeyard-central", args)
}

func command(ts *testscript.TestScript, neg bool, program string, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: fy|fc NAME args… (fails CODE for those that must fail)")
	}
	if err := ts.Exec(program, at(ts, args)...); err != nil {
		ts.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
}

// at puts the data dir of a daemon in front of a command's arguments.
func at(ts *testscript.TestScript, args []string) []string {
	return append([]string{"--data-dir", ts.MkAbs(args[0])}, args[1:]...)
}

// fails runs a command that must exit with a code and say why in one line.
func fails(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 || neg {
		ts.Fatalf("usage: fails CODE NAME args…")
	}
	program := "forgeyard-node"
	if p := worldOf(ts).procs[args[1]]; p != nil && p.program != "" {
		program = p.program
	}
	err := ts.Exec(program, at(ts, args[1:])...)
	code := "0"
	if err != nil {
		code = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if !matches(code, args[0]) {
		ts.Fatalf("exit code %s, not %s", code, args[0])
	}
	said := strings.TrimSpace(ts.ReadFile("stderr"))
	if said == "" {
		ts.Fatalf("nothing on stderr says why")
	}
	if n := strings.Count(said, program+": "); n != 1 || !strings.HasPrefix(lastLine(said), program+": ") {
		ts.Fatalf("not one line of error: %q", said)
	}
}

func lastLine(s string) string {
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// expandFile puts the script's variables into a file.
func expandFile(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		path := ts.MkAbs(name)
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(path, []byte(text), 0o644))
	}
}
