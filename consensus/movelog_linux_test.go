package consensus

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

var moveSteps = []string{"planned", "cleared", "copying", "copied", "moved", "emptied", "done"}

// Cut short at each step, by a failure and by SIGKILL: a node that is started then has its
// whole log, and the move can be done again.
func TestMoveLogCutShort(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []LogStore{BoltDB, WAL} {
		from := map[LogStore]LogStore{BoltDB: WAL, WAL: BoltDB}[to]
		for _, step := range moveSteps {
			cut := map[string]func(dir string){
				"failed": func(dir string) {
					_, err := moveLog(dir, to, nil, func(s string) error {
						if s == step {
							return errMetaTest
						}
						return nil
					})
					if !errors.Is(err, errMetaTest) {
						t.Errorf("%s: %v", step, err)
					}
				},
				"killed": func(dir string) {
					c := exec.Command(exe, "-test.run=^TestMoveLogChild$")
					c.Env = append(os.Environ(), "FY_MOVE="+strings.Join([]string{dir, string(to), step}, "|"))
					out, err := c.CombinedOutput()
					var exit *exec.ExitError
					if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
						t.Fatalf("%s: the child was not killed: %v\n%s", step, err, out)
					}
				},
			}
			for how, do := range cut {
				started, redone := logDir(t, from, 1, 200), logDir(t, from, 1, 200)
				do(started)
				checkMoved(t, started, "", 1, 200)
				do(redone)
				if _, err := MoveLog(redone, to, nil); err != nil {
					t.Errorf("%s at %s, and again: %v", how, step, err)
				}
				checkMoved(t, redone, to, 1, 200)
			}
		}
	}
}

// TestMoveLogChild is the process that is killed.
func TestMoveLogChild(t *testing.T) {
	f := strings.Split(os.Getenv("FY_MOVE"), "|")
	if len(f) != 3 {
		return // a run of the suite
	}
	_, err := moveLog(f[0], LogStore(f[1]), nil, func(s string) error {
		if s == f[2] {
			return errors.Join(syscall.Kill(os.Getpid(), syscall.SIGKILL), errors.New("still here"))
		}
		return nil
	})
	t.Fatalf("it was not killed at %s: %v", f[2], err)
}
